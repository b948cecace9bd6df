"""Ctrl-C, and being told to end, while ``python -m construct.from_conv`` still imports: the line and the exit code it has later.

Importing torch takes seconds, in which Python by itself would answer with its traceback.  Python runs this before the command's
own module, and only there is the first argument ``-m``: whoever imports the package in a program of his own is left alone.
"""

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
"""The exit code."""


def end_quietly() -> None:
    """From here on, both signals end the process with one line; until :func:`as_usual`."""
    if sys.argv[:1] == ["-m"] and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else someone else answers, or it is ignored
            signal.signal(signal.SIGINT, _end)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _end)


def as_usual() -> None:
    """Give both signals back, for a command that answers them itself."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    # Nothing is open yet that would have to be closed, and modules that are half imported are best not asked.
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


end_quietly()
