"""``conv-as-attention`` and ``python -m conv_as_attention``: both commands under one name.

Like :mod:`construct.command.startup` it starts from the standard library.
"""

import sys

from construct.command.startup import exit_on_signals, require_ours


def run_as(program: str) -> int:
    """Run ``conv-as-attention``, whose folder is the first of ``sys.path`` for this: the command, or
    after the word ``verify``, ``python -m verify``.

    Args:
        program: what was typed, which usage lines and remedies name.

    Returns:
        The exit code.
    """
    try:
        require_ours()
        from construct.command.main import main
        from verify.__main__ import run
    except ImportError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    del sys.path[0]
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # the current folder, as python -m does
    if sys.argv[1:2] == ["verify"]:
        return run(sys.argv[2:], f"{program} verify")
    exit_on_signals()
    return main(None, program)
