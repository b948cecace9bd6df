"""``python -m examples.taught`` and ``python examples/taught``."""

import sys
from pathlib import Path

if not __package__:  # run as a folder: the packages beside it are not on the path yet
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.taught.command import main

if __name__ == "__main__":
    sys.exit(main())
