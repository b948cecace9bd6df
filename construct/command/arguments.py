"""The argument parser of ``python -m construct.from_conv``."""

import argparse
import math
import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from construct.command import demo
from construct.command.startup import COMMAND, VERSION
from construct.errors import BadModelFile, printable
from construct.execution import NAMES as EXECUTION_NAMES
from construct.geometry import PADDING_MODES

DESCRIPTION = """examples:
  %(prog)s
  %(prog)s model.pt --input-size 3 64 64
  %(prog)s model.pt --report page.html

Turn every convolution of a saved network into multi-head self-attention, and
prove layer by layer that both compute the same function.
"""
EXIT_CODES = """exit codes:
  0    every layer is PROVED (or CHECKED, with --no-certify), and the network
       makes the same calls
  1    something is REFUTED or UNDECIDED, the network makes other calls, or a
       convolution is left (--partial allows that); no network is written
  2    bad input: one line says what, and what to do
  130  interrupted
"""


WIDTH = 80
"""Columns of the help."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises BadModelFile, with a one-line message, on errors."""

    def error(self, message: str) -> NoReturn:
        raise BadModelFile(f"{message} (--help lists the options)")


FORMATS = ("pt", "safetensors", "pt2", "onnx")


def parse(argv: Sequence[str], program: str = COMMAND) -> argparse.Namespace:
    """Parse the command line, and fill in defaults that depend on other options.

    Args:
        argv: the arguments.
        program: what was typed before them.

    Returns:
        The options; ``model``, ``output`` and ``document``, the certificate's, are paths, ``alpha``
        a number or None for the default; ``copy`` says whether a network with nothing to convert is
        written, ``verify`` how ``python -m verify`` is typed, ``typed`` the whole command.

    Raises:
        BadModelFile: the options are wrong.
        SystemExit: after ``--help``.
    """
    options = _parser(program).parse_args(argv)
    options.typed = f"{program} {shlex.join(argv)}"
    options.verify = f"{program} verify".replace(COMMAND, "python -m")
    options.copy = {options.output, options.format} != {None}
    # that of the network that ships goes to the current folder
    place = options.model or Path(demo.PATH.name)
    options.output = options.output or _beside(place, options.format or "pt")
    if options.model is None:
        _take_demo(options)
    for flag, value in (("--within", options.within), ("--input-bound", options.input_bound)):
        if options.no_certify and value is not None:
            raise BadModelFile(
                f"{flag} is for certificates, and --no-certify makes none (give one of them)"
            )
    options.format = _format(options)
    options.document = certificate_beside(options.output)
    return options


def _take_demo(options: argparse.Namespace) -> None:
    """Take the network that ships with the project."""
    if options.arch or options.model_file:
        raise BadModelFile("--arch and --model-file go with a MODEL (give the state dict's file)")
    options.model = demo.PATH
    if options.input_size is None and options.example_inputs is None:
        options.input_size = demo.INPUT_SIZE


def _parser(program: str = COMMAND) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        usage="%(prog)s [MODEL] [options]",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=WIDTH),
        allow_abbrev=False,
    )
    _add_network(parser.add_argument_group("the network"))
    _add_geometry(
        parser.add_argument_group(
            "a state dict alone",
            "convert its kernels without a network; these are taken for every kernel in it",
        )
    )
    _add_attention(parser.add_argument_group("the attention"))
    _add_proof(parser.add_argument_group("what is run, and what is proved"))
    _add_output(parser.add_argument_group("what is written and printed"))
    return parser


def _add_network(group: Any) -> None:
    add = group.add_argument
    add(
        "model",
        metavar="MODEL",
        nargs="?",
        type=_path,
        help="torch.save or safetensors: a module, a state dict or a checkpoint (default: the CNN that ships)",
    )
    code = group.add_mutually_exclusive_group()
    for flag, form, text in (
        ("--arch", "pkg.module:factory", "the network of a state dict; this code is run"),
        ("--model-file", "net.py:Net", "the same, from a file; this code is run"),
    ):
        code.add_argument(flag, type=partial(_network, form), metavar=form.upper(), help=text)
    add(
        "--allow",
        action="append",
        default=[],
        metavar="PACKAGE[.MODULE.CLASS]",
        help="a class that the file may hold beside those of torch.nn, or a package, whose classes it may hold; the package "
        "is imported, and code of these classes may run; repeatable",
    )
    add("--key", metavar="KEY", help="the model of a checkpoint that holds several, as params_ema")
    add(
        "--trust",
        action="store_true",
        help="load a full pickle or .pt2 with whatever code it holds: it is RUN",
    )


def _add_geometry(group: Any) -> None:
    """Add the options of a geometry, which a state dict does not hold."""
    add = group.add_argument
    add(
        "--stride",
        type=_positive,
        nargs="+",
        metavar="N",
        help="required: no stride is ever assumed",
    )
    add(
        "--padding",
        type=_padding,
        nargs="+",
        metavar="N",
        help="numbers, or same, or valid (default: 0)",
    )
    add(
        "--dilation",
        type=_positive,
        nargs="+",
        metavar="N",
        help="distance of the taps (default: 1)",
    )
    add("--groups", type=_positive, metavar="N", help="blocks of channels (default: 1)")
    add(
        "--padding-mode",
        choices=PADDING_MODES,
        help="what stands beyond the border (default: zeros)",
    )


def _add_attention(group: Any) -> None:
    sharpness = group.add_mutually_exclusive_group()
    sharpness.add_argument(
        "--alpha",
        type=_alpha,
        metavar="auto|FLOAT",
        help="the sharpness of every head (default: auto)",
    )
    sharpness.add_argument(
        "--tolerance",
        type=_tolerance,
        metavar="T",
        help="the largest attention leaked per head; sets the sharpness",
    )
    add = group.add_argument
    add(
        "--encoding",
        choices=["quadratic", "parabola"],
        default="quadratic",
        help="of positions (default: quadratic)",
    )
    add(
        "--execution",
        choices=EXECUTION_NAMES,
        default="auto",
        help="how attention is evaluated (default: auto)",
    )


def _add_proof(group: Any) -> None:
    add = group.add_argument
    inputs = group.add_mutually_exclusive_group()
    inputs.add_argument(
        "--input-size",
        metavar="N",
        nargs="+",
        type=_positive,
        help="C S1 ... Sd: channels and sides of an input; the network is run on such inputs (default: every layer "
        "alone, on generated inputs)",
    )
    inputs.add_argument(
        "--example-inputs",
        metavar="FILE",
        type=_path,
        help="instead: an input that torch.save wrote: a tensor, a tuple of arguments, or a dict of keyword arguments",
    )
    add(
        "--samples",
        type=_positive,
        default=2,
        metavar="N",
        help="how many inputs to check on (default: 2)",
    )
    add("--seed", type=_seed, default=0, metavar="S", help="seed of the inputs (default: 0)")
    add(
        "--input-bound",
        type=_bound,
        metavar="B",
        help="certify each layer for inputs |x| <= B (default: the power of two above its samples)",
    )
    add(
        "--within",
        metavar="T",
        type=_bound,
        help="claim that every layer's outputs differ by at most T (default: the same function; where a chosen sharpness leaks, "
        "a difference within the bound that follows, if that is at most 1%% of the layer's largest output)",
    )
    add(
        "--no-certify",
        action="store_true",
        help="only check on samples, and write no certificate (deletes an earlier one)",
    )
    add(
        "--partial",
        action="store_true",
        help="allow convolutions to be left as they are, with exit code 0, and write layers that are UNDECIDED, with exit code 1",
    )


def _add_output(group: Any) -> None:
    add = group.add_argument
    add(
        "-o",
        "--output",
        metavar="OUT",
        type=_path,
        help="where to write (default: MODEL with .mhsa.pt, beside it)",
    )
    add(
        "--format",
        choices=FORMATS,
        help="of the output: pt, a file of torch.save; safetensors, tensors and geometry; pt2 and onnx, programs that run "
        "without this project (default: as OUT ends, else pt)",
    )
    add("--force", action="store_true", help="replace a foreign file at OUT")
    add(
        "--report",
        metavar="PAGE.html",
        type=_path,
        help="also write a page that shows where every head looks",
    )
    add(
        "--explain",
        action="store_true",
        help="print the steps and the assumptions of every certificate",
    )
    add("--json", action="store_true", help="print one JSON document instead of the table")
    add("--debug", action="store_true", help="show where an error comes from")
    add("--version", action="version", version=VERSION, help="print the version")


def _beside(model: Path, ending: str) -> Path:
    """``model.pt`` → ``model.mhsa.pt``, in the same folder."""
    stem = model.name
    if model.suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".safetensors"):
        stem = model.stem
    return model.with_name(f"{stem}.mhsa.{ending}")


def certificate_beside(output: Path) -> Path:
    """``model.mhsa.pt`` → ``model.mhsa.json``; ``model.mhsa.onnx`` → ``model.mhsa.onnx.json``, so
    that no two endings share it.
    """
    if output.suffix == ".pt":
        return output.with_suffix(".json")
    return output.with_name(f"{output.name}.json")


def _format(options: argparse.Namespace) -> str:
    """The output format: ``--format``, or else the suffix of the output.

    Raises:
        BadModelFile: the two contradict each other, or a program lacks the size of its input.
    """
    ending = options.output.suffix[1:].lower()
    name = printable(options.output)
    if ending not in FORMATS:
        ending = None
    chosen = options.format or ending or "pt"
    if ending not in (None, chosen):
        raise BadModelFile(
            f"{name}: its name ends in .{ending}, but --format is {chosen} (make them agree)"
        )
    if chosen in ("pt2", "onnx") and not (options.input_size or options.example_inputs):
        what = f"{name}: a program takes the size of an input, or an example"
        raise BadModelFile(what, option="give --input-size C S1 ... Sd, or --example-inputs FILE")
    return chosen


def _path(text: str) -> Path:
    path = Path(text)
    if not path.name or text.endswith(("/", os.sep)):  # a folder, which Path would make a file of
        raise argparse.ArgumentTypeError(f"{text!r} must be the name of a file")
    return path


def _number(kind: type, valid: Callable[[Any], bool], message: str) -> Callable[[str], Any]:
    """An argparse type: a valid number of this kind, or an error with this message."""

    def parse(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            what = "a number"
            if kind is int:
                what = "a whole number (sizes are written apart, as 3 8 8; MODEL goes before the options)"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
        if not valid(number):
            raise argparse.ArgumentTypeError(f"{text} {message}")
        return number

    return parse


_natural = _number(int, lambda n: n >= 0, "is negative")
_positive = _number(int, lambda n: n >= 1, "is not positive")
_seed = _number(int, lambda n: 0 <= n < 2**63, "is not between 0 and 2**63")
_bound = _number(float, lambda x: 0 < x < math.inf, "is not a positive number")
_tolerance = _number(float, lambda x: 0 < x < 1, "does not lie between 0 and 1")


def _network(form: str, text: str) -> str:
    place, _, name = text.rpartition(":")
    if not (place and name):
        raise argparse.ArgumentTypeError(f"{text}: names no network (write {form})")
    return text


def _padding(text: str) -> int | str:
    if text in ("same", "valid"):
        return text
    return _natural(text)


def _alpha(text: str) -> float | None:
    if text == "auto":
        return None
    return _bound(text)
