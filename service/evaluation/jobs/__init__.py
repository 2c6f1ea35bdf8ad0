"""Jobs are imports, quantizations and evaluations beside a serving process: one at a time, each in its own process."""
