"""The error of a run that does not begin, or measures nothing: its text is one sentence that says what to change."""

from __future__ import annotations


class NotMeasured(Exception):
    """The run has no verdict; exit status 2."""
