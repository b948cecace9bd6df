"""``python -m construct.from_conv``: converts a saved network and checks every layer; the code is
in :mod:`construct.command`.
"""

import sys

from construct.command.startup import exit_on_signals, require_ours

require_ours()  # first: another package's files may have replaced the rest
if __name__ == "__main__":
    exit_on_signals()

from construct.command.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
