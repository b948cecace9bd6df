"""``python -m construct.from_conv``: a saved network in, attention weights out, and the equality shown layer by layer.

The command lives in :mod:`construct.command`; this is its name.
"""

import construct.command.overwritten  # noqa: F401, I001  before what may not be there any more
import sys

from construct.command.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
