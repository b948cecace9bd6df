"""The headline theorems of ``verify/coq``: those that its build compiles, and whose axioms it compares with a list."""

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "coq"


@cache
def headlines() -> dict[str, str]:
    """The file of every headline theorem by the theorem's name."""
    printed = (FOLDER / "Headlines.v").read_text(encoding="utf-8")
    names = re.findall(r"^Print Assumptions (\w+)\.$", printed, re.MULTILINE)
    stated = {
        name: path.relative_to(FOLDER).as_posix()
        for path in sorted(FOLDER.glob("*/*.v"))
        for name in re.findall(r"^(?:Theorem|Corollary) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    return {name: stated[name] for name in names if name in stated}
