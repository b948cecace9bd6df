"""Answers Ctrl-C and SIGTERM with one line while ``python -m construct.from_conv`` imports torch, which takes seconds.

The package imports this first.  Without it, Python answers Ctrl-C during the import with a traceback.
"""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM."""
_USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def restore_signals() -> None:
    """Restore Python's own handlers, for a command that handles both signals itself."""
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is _exit:
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    # No file is open yet, and cleanup handlers of half-imported modules could fail.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


# While Python imports the package of a module that it was told to run, its first argument is still -m.
_running = sys.orig_argv[-len(sys.argv) :][:1] if sys.argv[:1] == ["-m"] else []
if _running in (["construct.from_conv"], ["-mconstruct.from_conv"]):
    for number, handler in _USUAL.items():
        if signal.getsignal(number) is handler:  # else it is ignored, or handled elsewhere
            signal.signal(number, _exit)
