"""``python -m verify coq`` and ``check --verified``: their arguments and output."""

import argparse
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.coq.verified.judging import Judge


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``coq`` to its parser."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser(
        "build", help="compile the proofs, compare their axioms, and build the verified checker"
    )
    statements = actions.add_parser(
        "statements", help="print the headline theorems from the sources; needs no Coq"
    )
    statements.add_argument(
        "names", nargs="*", metavar="THEOREM", help="only these (all by default)"
    )
    statements.add_argument(
        "--digests", action="store_true", help="a line a theorem and a file, as in statements.txt"
    )
    statements.add_argument(
        "--page",
        action="store_true",
        help="the paper's own (or THEOREM ...) with the definitions that they rest on, in Markdown",
    )


def run(options: argparse.Namespace, report: Callable[[str], None]) -> Iterator[str]:
    """Yield the text to print; ``report`` receives a build's progress.

    Raises:
        ValueError: a tool is missing, a step fails, or there is no such theorem.
    """
    if options.action == "statements":
        from verify.coq.statements import headlines, page, pinned

        if options.page:
            yield page(options.names).rstrip("\n")
            return
        if options.digests:
            yield pinned().rstrip("\n")
            return
        group = None
        for headline in headlines(options.names):
            if headline.group != group:
                yield f"==== {(group := headline.group)} ====\n"
            yield str(headline)
        return
    from verify.coq.building import build

    yield f"the verified checker is {build(report)}"


def judge(options: argparse.Namespace) -> "Judge":
    """The verified checker for two weight files.

    Raises:
        ValueError: it is not built.
    """
    from verify.coq.building import program
    from verify.coq.verified.judging import Judge

    return Judge(program(), options.conv, options.mhsa)
