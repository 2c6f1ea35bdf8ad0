"""All tests run with Ctrl-C as a terminal gives it to a program."""

from __future__ import annotations

import signal

import hypothesis

# Other work on the cores makes a test case late, and nothing else.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# A shell that runs the tests in its background ignores SIGINT, and programs inherit that: Ctrl-C would end none of
# them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
