"""Ours against every peer on the same prompts in one run: `python -m loadtest.bench`, or `make bench`."""
