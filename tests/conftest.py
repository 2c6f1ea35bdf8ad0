"""All tests run with Ctrl-C as a terminal gives it to a program."""

from __future__ import annotations

import signal

# A shell that runs the tests in its background ignores SIGINT, and programs inherit that: Ctrl-C would end none of
# them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
