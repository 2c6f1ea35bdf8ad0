"""The error of a measurement that does not begin, or measures nothing: its text is one sentence that says what to
change."""

from __future__ import annotations

from service.errors import DosirakError


class NotMeasured(DosirakError):
    """There is no verdict; exit status 2."""
