"""Says that a session database cannot be used until an operator acts. Imports no database library."""

from __future__ import annotations


class UnusableDatabase(Exception):
    """The text says what is wrong and what to do; it holds no password."""
