"""This module says that a session database cannot be used until an operator acts. It imports no database library."""

from __future__ import annotations


class UnusableDatabase(Exception):
    """The database cannot be used. The text says what is wrong and what to do; it holds no password."""
