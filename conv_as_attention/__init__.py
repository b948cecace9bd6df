"""The command ``conv-as-attention``: ``python -m construct.from_conv`` and ``python -m verify`` in one."""

import sys
from pathlib import Path


def main(program: str = "conv-as-attention") -> int:
    """Run the command with our packages, even where others are called construct or verify, too."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from construct.command.alias import run_as

    return run_as(program)
