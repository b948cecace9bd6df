"""``python -m verify``: the commands check, coq, lemmas, claims, audit, conformance, sweep and
plot; each imports what it needs when it runs.
"""

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name
from textwrap import fill
from typing import Any, NoReturn

from verify.coq import command as coq_command
from verify.experiment import command as audit_command
from verify.experiment.sweep import command as sweep_command
from verify.plots import command as plot_command
from verify.verdict import escaped

COMMAND = "python -m verify"
EXAMPLES = """check model.mhsa.json --conv model.pt --mhsa model.mhsa.pt
claims --why 3
audit layer.pt --grid 8 8"""
EXIT_CODES = """exit codes:
  0    everything is PROVED, and confirmed; an audited layer is a convolution,
       as far as experiments tell; every row of a contract is CHECKED; no
       verdict of a random sweep is false
  1    something is not
  2    bad input, or a certificate that its files belie: one line says what
  130  interrupted
"""


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        summary: one line for the help.
        examples: lines for its help, without the program.
        arguments: adds the command's arguments to a parser.
        run: runs it, prints, and returns the exit code; a ValueError or OSError becomes one line
            and exit code 2.
    """

    summary: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("files")
    files.add_argument("certificate", metavar="CERT", help="the certificate, model.mhsa.json")
    files.add_argument(
        "--conv", required=True, metavar="FILE", help="the file with the convolutions"
    )
    files.add_argument(
        "--mhsa", required=True, metavar="FILE", help="the file with the attention layers"
    )
    files.add_argument(
        "--key", metavar="KEY", help="of the convolutions' network, if their file holds several"
    )
    parser.add_argument(
        "--verified",
        action="store_true",
        help="also by the checker that is proved in Coq and built by the command coq build",
    )


def _check(options: argparse.Namespace) -> int:
    from verify.checker import NotConfirmed, check

    judges = []
    if options.verified:
        judges = [coq_command.judge(options)]
    try:
        result = check(options.certificate, options.conv, options.mhsa, *judges, key=options.key)
        print(result)
    except NotConfirmed:  # the verified checker may have judged some layers already
        print(*judges, sep="\n", end="\n" * bool(judges))
        raise
    for judge in judges:
        print(judge)
    return int(not (result.verdict.name == "PROVED" and all(judge.accepts for judge in judges)))


def _dims_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dims", type=int, nargs="+", default=[1, 2, 3], metavar="D", help="in how many dimensions"
    )


def _lemmas_arguments(parser: argparse.ArgumentParser) -> None:
    _dims_argument(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--full", action="store_true", help="every expression, and every dimension")
    form.add_argument("--latex", action="store_true", help="print a document for LaTeX")


def _lemmas(options: argparse.Namespace) -> int:
    from verify.theory.symbolic.lemmas import all_proofs
    from verify.theory.symbolic.proof import ProofFailed, in_brief, in_latex

    try:
        proofs = list(all_proofs(tuple(options.dims)))
    except ProofFailed as failure:
        print(f"NOT PROVED: {failure}")
        return 1
    if options.full:
        print(*(proof.full() for proof in proofs), sep="\n\n")
    elif options.latex:
        print(in_latex(proofs))
    else:
        print(in_brief(proofs))
    return 0


def _claims_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--why",
        nargs="+",
        metavar="N",
        help="only these rows, by number or name, with their evidence",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the table as in docs/claims.md"
    )


def _claims(options: argparse.Namespace) -> int:
    from verify.theory.literature.claim_table import claims

    table = claims(options.why)
    if options.markdown:
        print(table.markdown())
    elif options.why:
        print(*table, sep="\n\n")
    else:
        print(table)
    return int(not table.good)


def _coq(options: argparse.Namespace) -> int:
    for text in coq_command.run(
        options, report=lambda line: print(line, file=sys.stderr, flush=True)
    ):
        print(text, flush=True)
    return 0


def _audit(options: argparse.Namespace) -> int:
    result = audit_command.run(options)
    print(result.to_json() if options.json else f"{result}\n", end="")
    return int(not result.is_convolution)


def _conformance_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "factory",
        metavar="MODULE:MAKE_LAYER",
        help="a function that makes a layer from a torch.nn convolution; this code is run",
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="of the table (default: all)")
    _dims_argument(parser)
    parser.add_argument(
        "--examples", type=int, default=100, metavar="N", help="for each row (default: %(default)s)"
    )


def _conformance(options: argparse.Namespace) -> int:
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.devnull)  # it leaves no folder
    from verify.experiment.conformance import ROWS, conformance

    warnings.filterwarnings("ignore", "Using padding='same'")  # torch's, about its speed
    try:
        make_layer = resolve_name(options.factory)
    except Exception as error:  # the module may raise anything
        raise ValueError(f"{options.factory}: {type(error).__name__}: {error}") from error
    if callable(make_layer) is False:  # written so that pyright does not narrow it
        raise ValueError(f"{options.factory}: is no function that makes a layer")
    if options.examples < 1:
        raise ValueError(f"--examples is 1 or more, not {options.examples}")
    good = True
    for row in options.rows or ROWS:
        verdict = conformance(make_layer, row, options.dims, options.examples)
        print(escaped(" ".join(f"{row:13}{verdict}".split("\n"))), flush=True)
        good &= verdict.good
    return int(not good)


def _sweep(options: argparse.Namespace) -> int:
    from construct.command.arguments import parse

    text, code = sweep_command.run(options, parse)
    print(text)
    return code


def _plot(options: argparse.Namespace) -> int:
    print(f"wrote {plot_command.run(options)}")
    return 0


COMMANDS = {
    "check": Command(
        "recheck a certificate from the tensors of two weight files",
        "check model.mhsa.json --conv model.pt --mhsa model.mhsa.pt\n"
        "check m.mhsa.json --conv m.pt --mhsa m.mhsa.pt --verified\n"
        "check m.json --conv m.safetensors --mhsa m.mhsa.safetensors",
        _check_arguments,
        _check,
    ),
    "coq": Command(
        "the theorem in Coq: build the verified checker, print the statements",
        "coq build\ncoq statements\ncoq statements theorem1",
        coq_command.add_arguments,
        _coq,
    ),
    "lemmas": Command(
        "prove the lemmas symbolically, step by step",
        "lemmas\nlemmas --dims 2\nlemmas --full",
        _lemmas_arguments,
        _lemmas,
    ),
    "claims": Command(
        "judge the claims of the talk, the abstract, the slides, the blog and a review, and show what we add",
        "claims\nclaims --why 3\nclaims --why lemma-1 alpha-46",
        _claims_arguments,
        _claims,
    ),
    "audit": Command(
        "find out by experiment how far an attention layer is from a convolution",
        "audit layer.pt --grid 8 8 --kernel 3\n"
        "audit model.mhsa.pt --layer stem.conv\n"
        "audit layer.pt --grid 8 8 --json",
        audit_command.add_arguments,
        _audit,
    ),
    "conformance": Command(
        "try the contract of a convolution, row by row, on anybody's layer",
        "conformance package.module:make_layer\n"
        "conformance construct:conv_to_mhsa --dims 2\n"
        "conformance my_layers:make --rows stride padding",
        _conformance_arguments,
        _conformance,
    ),
    "sweep": Command(
        "certify many networks, or search random layers for a false verdict, on a cluster",
        "sweep --random 1000 --output db.sqlite\n"
        "sweep 'nets/*.pt' --input-size 3 64 64 --output db.sqlite\n"
        "sweep --report db.sqlite",
        sweep_command.add_arguments,
        _sweep,
    ),
    "plot": Command(
        "draw a figure of a layer, a certificate, the leakage or the cost",
        "plot attention m.mhsa.pt --layer stem --alpha 1 -o heads.svg\n"
        "plot errors m.mhsa.json -o errors.png\n"
        "plot leakage -o leakage.svg",
        plot_command.add_arguments,
        _plot,
    ),
}
"""The commands by name."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors as one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (--help lists the options)")


def _help(program: str, examples: str, summary: str) -> dict[str, Any]:
    """Keyword arguments for a parser: its description, with three examples first, and its format,
    80 columns wide.
    """
    lines = "".join(f"  {program} {example}\n" for example in examples.splitlines())
    return {
        "description": f"examples:\n{lines}\n{fill(f'{summary[0].upper()}{summary[1:]}.', 79)}",
        "formatter_class": partial(argparse.RawDescriptionHelpFormatter, width=80),
        "allow_abbrev": False,
    }


def parser_of_commands(program: str = COMMAND) -> argparse.ArgumentParser:
    """The parser of the command line, with a subparser for each command."""
    parser = _Parser(
        prog=program,
        **_help(
            program,
            EXAMPLES,
            "recheck certificates, print proofs, judge the claims, audit layers, draw figures",
        ),
    )
    parser.epilog = EXIT_CODES
    parser.add_argument(
        "--version", action="version", version="conv-as-attention 0.1.0", help="print the version"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.arguments(
            commands.add_parser(
                name, help=command.summary, **_help(program, command.examples, command.summary)
            )
        )
    return parser


def main(argv: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """Run one command.

    Args:
        argv: the arguments; by default those of the process.
        program: what was typed before them, which the help and remedies name.

    Returns:
        The exit code: 0 all proved and confirmed, 1 not all, 2 bad input, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  names of files and layers may be anything
    try:
        parser = parser_of_commands(program)
        options = parser.parse_args(argv)
        if options.command is None:
            parser.print_help()
            return 2
        try:
            return COMMANDS[options.command].run(options)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's code may exit, which is no result
            raise ValueError(f"{type(error).__name__}: {error}") from error
    except SystemExit as end:  # argparse has shown the help
        return int(end.code or 0)
    except KeyboardInterrupt as stop:  # its message may say what was kept
        print("interrupted", *stop.args, file=sys.stderr)
        return 130
    except BrokenPipeError:  # a reader that stops early (``| head``) is not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        what = str(error).replace(COMMAND, program)
        if isinstance(error, OSError) and error.strerror:
            what = f"{error.filename or 'output'}: {error.strerror}"
        print(f"error: {escaped(' '.join(what.split())[:1000])}", file=sys.stderr)
        return 2


def run(argv: Sequence[str] | None = None, program: str = COMMAND) -> int:
    """:func:`main` for a process of its own: SIGTERM ends it like Ctrl-C, and both do cleanly while
    torch or numpy is imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    return main(argv, program)


def _interrupt(number: int, frame: Any) -> NoReturn:
    for name in ("torch", "numpy"):  # half imported, they abort, or raise another error
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            os.write(2, b"interrupted\n")
            os._exit(130)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run())
