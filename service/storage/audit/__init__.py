"""The audit says who did what and when: rows that only grow, each with the hash of the row before.

chain ── what a row is, and what fits into a chain; knows no database
trail ── rows in the session database
writing ── rows of one server: what must be written first, what waits for the database, what is counted
"""
