"""``python -m construct.from_conv``: converts a saved network and checks every layer; the code is in :mod:`construct.command`."""

import construct.command.overwritten  # noqa: F401, I001  first: another package's files may have replaced the rest
import sys

from construct.command.main import main

if __name__ == "__main__":
    sys.exit(main())
