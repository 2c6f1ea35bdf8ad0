"""Imports, quantizations and evaluations beside a serving process: one at a time, each in a process of its own."""
