"""``python -m verify sweep``: its arguments and its run, kept separate so that ``--help`` loads
neither torch nor Dask.
"""

import argparse
import glob
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verify.experiment.sweep.models import Network

Parse = Callable[[Sequence[str]], argparse.Namespace]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments to its parser."""
    what = parser.add_argument_group("what is certified")
    what.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        help="a file, a glob, or a .txt file with a command line of construct.from_conv in each line: MODEL [options]",
    )
    what.add_argument(
        "--arch",
        action="append",
        default=[],
        metavar="MODULE:NET",
        help="a network that this code makes; repeatable",
    )
    what.add_argument(
        "--input-size", nargs="+", metavar="N", help="C S1 ... Sd, of every MODEL and factory"
    )
    what.add_argument(
        "--random",
        type=int,
        metavar="N",
        help="instead: N random layers, most of them also with a fault",
    )
    what.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of the first random layer (default: 0)"
    )
    results = parser.add_argument_group("the results")
    results.add_argument(
        "--output",
        type=Path,
        metavar="DB",
        help="SQLite file; the same command goes on where it was",
    )
    results.add_argument(
        "--report", type=Path, metavar="DB", help="print a summary of such a file, and draw it"
    )
    results.add_argument(
        "--figure", type=Path, metavar="OUT", help="OUT.svg or OUT.png (default: DB.svg)"
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes of a local cluster (default: one a core)",
    )
    where.add_argument(
        "--scheduler", metavar="ADDRESS", help="instead: of an existing cluster of Dask"
    )
    where.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS", help="for a task (default: 600)"
    )
    where.add_argument(
        "--dashboard", action="store_true", help="serve Dask's dashboard, on the loopback"
    )


def run(options: argparse.Namespace, parse: Parse) -> tuple[str, int]:
    """Run a sweep, or report on one; return its conclusion and the exit code.

    ``parse`` parses a command line of ``construct.from_conv``.

    Raises:
        ValueError: an argument is wrong, Dask is missing, or the scheduler has gone.
        OSError: a file cannot be read or written.
    """
    from verify.experiment.sweep.results import Results

    _check(options)
    if options.report is not None:
        from verify.experiment.sweep.summary import report

        return report(options.report, options.figure or options.report.with_suffix(".svg")), 0
    try:
        from verify.experiment.sweep.sweeping import Sweep
    except ModuleNotFoundError as error:
        raise ValueError(
            'a sweep runs on Dask (pip install ".[cluster]" in the project\'s folder)'
        ) from error

    seeds = range(options.seed, options.seed + (options.random or 0))
    networks = list(_networks(options, parse))
    results = Results(options.output)
    try:
        return Sweep(seeds, networks, results).run(
            options.workers, options.scheduler, options.timeout, options.dashboard
        )
    finally:
        results.close()


def _check(options: argparse.Namespace) -> None:
    """Refuse arguments that have no effect or contradict each other."""
    sweeps = (
        options.output is not None or options.random is not None or options.models or options.arch
    )
    if options.report is not None:
        if sweeps:
            raise ValueError("--report runs no sweep (give it alone, after the sweep)")
        return
    random = options.random
    networks = bool(options.models or options.arch)
    refusals = (
        (options.figure is not None, "--figure goes with --report"),
        (
            options.output is None,
            "a sweep writes its results to a file (give --output results.sqlite)",
        ),
        ((random is None) != networks, "give networks, or --random N"),
        (
            random is not None and (random < 1 or options.seed < 0),
            "--random takes a number from 1, and --seed one from 0",
        ),
        (
            random is not None and options.input_size,
            "--input-size goes with networks, not with --random",
        ),
        (
            options.workers is not None and options.workers < 1,
            f"--workers takes a number from 1, not {options.workers}",
        ),
        (
            options.workers and options.scheduler,
            "--workers is of a local cluster (leave it out with --scheduler)",
        ),
        (not options.timeout > 0, f"--timeout takes a positive number, not {options.timeout:g}"),
    )
    for holds, what in refusals:
        if holds:
            raise ValueError(what)


def _networks(options: argparse.Namespace, parse: Parse) -> Iterator["Network"]:
    """The networks of the command line, each with its options checked."""
    if not (options.models or options.arch):
        return
    from verify.experiment.sweep.models import Network

    size: tuple[str, ...] = ()
    if options.input_size:
        size = ("--input-size", *options.input_size)
    for line, shown in _lines(options.models):
        try:
            pattern, *words = shlex.split(line)
            own = size
            if {"--input-size", "--example-inputs"} & set(words):
                own = ()
            for file in _files(pattern):
                whole = (file, *words, *own)
                yield Network(whole, parse(whole))
        except SystemExit:
            raise ValueError(f"{shown}: certifies nothing") from None
        except ValueError as error:
            raise ValueError(f"{shown}: {error}") from error
    for spec in options.arch:
        yield Network((spec, *size), parse((spec, *size)), factory=True)


def _lines(models: list[str]) -> list[tuple[str, str]]:
    """A command line for each name, and for each line of a .txt file, with what an error calls it."""
    from verify.recheck.strict_input import opened

    lines = [(shlex.quote(model), model) for model in models if not model.endswith(".txt")]
    for name in models:
        if name.endswith(".txt"):
            with opened(name) as file:
                text = file.read().decode(errors="replace")
            named = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
            if not named:  # nothing certified is not a success
                raise ValueError(f"{name}: names no network (write MODEL [options] in each line)")
            lines += [(line, f"{name}: {line}") for line in named]
    return lines


def _files(pattern: str) -> list[str]:
    """The files that a pattern names, on the whole file system."""
    if Path(pattern).exists():
        return [pattern]
    files = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not files:
        raise ValueError("no such file")
    return files
