"""``python -m verify plot``: its arguments and its run; it imports torch only when it draws a
figure.
"""

import argparse
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from construct.attention import MHSA

PLOTS = {
    "attention": "attention maps, heads × queries, from FILE.mhsa.pt",
    "centres": "centres of attention with circles of 50 % and 90 %, from FILE.mhsa.pt",
    "leakage": "leakage against the sharpness, measured and bounded, for each number format; takes no file",
    "errors": "differences observed beside the bound, layer by layer, from FILE.mhsa.json",
    "cost": "time against tokens, from the JSON of python -m benchmarks.cost, or measured now on a layer of FILE.mhsa.pt",
}
"""A summary of each figure, by name."""
TAKES = {
    "attention": {"layer", "grid", "queries", "alpha"},
    "centres": {"layer", "grid", "queries", "alpha"},
    "leakage": {"dims"},
    "errors": set(),
    "cost": {"layer"},
}
"""The options of each figure."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments to its parser."""
    names = "\n".join(fill(f"{n:10}{s}", 78, subsequent_indent=" " * 10) for n, s in PLOTS.items())
    figure = parser.add_argument_group("the figure", names)
    figure.add_argument("name", metavar="NAME", help="which of these")
    figure.add_argument("file", nargs="?", metavar="FILE", help="what to draw; see above")
    figure.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="where to: OUT.svg or OUT.png"
    )
    figure.add_argument(
        "--force", action="store_true", help="replace a file at OUT that is not a figure of ours"
    )
    drawn = parser.add_argument_group("what is drawn of it")
    drawn.add_argument(
        "--layer", metavar="PATH", help="which layer of the file; needed if it holds several"
    )
    drawn.add_argument(
        "--grid", type=int, nargs="+", metavar="N", help="the spatial size of the input"
    )
    drawn.add_argument("--queries", nargs="+", metavar="I,J", help="positions of the output")
    drawn.add_argument(
        "--alpha", type=float, metavar="A", help="draw it as if its softest head were so sharp"
    )
    drawn.add_argument("--dims", type=int, metavar="D", help="of leakage (default: 2)")


def run(options: argparse.Namespace) -> Path:
    """Draw one figure, write it, and return its path.

    Raises:
        ValueError: there is no such figure, the file does not fit it, or matplotlib is missing.
        OSError: a file cannot be read or written.
    """
    if options.name not in PLOTS:
        raise ValueError(f"no plot {options.name!r}; there are {', '.join(PLOTS)}")
    if (options.file is None) != (options.name == "leakage"):
        raise ValueError(
            f"plot {options.name} takes {'no file' if options.file else 'a file'}: {PLOTS[options.name]}"
        )
    for option in ("layer", "grid", "queries", "alpha", "dims"):
        if getattr(options, option) is not None and option not in TAKES[options.name]:
            raise ValueError(f"plot {options.name} takes no --{option}")
    from verify.plots.drawing import require_matplotlib, require_writable, write_figure
    from verify.recheck.strict_input import opened

    target = require_writable(options.output, options.force)
    if options.file is not None:
        opened(options.file).close()
    try:
        require_matplotlib()
    except ImportError as error:
        raise ValueError(str(error)) from error
    write_figure(_figure(options), target)
    return target


def _figure(options: argparse.Namespace) -> "Figure":
    """Draw the figure that the options name."""
    from verify import plots

    if options.name == "leakage":
        return plots.leakage_figure(2 if options.dims is None else options.dims)
    if options.name == "errors":
        return plots.errors_figure(options.file)
    if options.name == "cost":
        return _cost(options)
    queries = _queries(options)
    grid = None if options.grid is None else tuple(options.grid)
    if options.name == "attention":
        return plots.attention_figure(
            _layer(options), grid=grid, queries=queries, alpha=options.alpha
        )
    if queries is not None and len(queries) > 1:
        raise ValueError("plot centres takes one query")
    query = None if queries is None else queries[0]
    return plots.centres_figure(_layer(options), grid=grid, query=query, alpha=options.alpha)


def _cost(options: argparse.Namespace) -> "Figure":
    from verify.plots.costs import cost_figure, measured, read_costs

    with Path(options.file).open("rb") as file:
        start = file.read(4)
    if not start.startswith(b"PK") and not options.file.endswith(".safetensors"):
        if options.layer is not None:
            raise ValueError(
                "plot cost takes no --layer with a file of times, which names its own series"
            )
        return cost_figure(*read_costs(options.file))
    layer = _layer(options)
    shape = f"{layer.in_channels} → {layer.out_channels}, kernel {' × '.join(map(str, layer.kernel_size))}"
    return cost_figure(
        measured(layer),
        f"{shape}, {layer.heads} heads; measured in this run, the least of five calls",
    )


def _layer(options: argparse.Namespace) -> "MHSA":
    from verify.plots.stored_layer import layer_in

    return layer_in(options.file, options.layer)


def _queries(options: argparse.Namespace) -> list[tuple[int, ...]] | None:
    if options.queries is None:
        return None
    try:
        return [tuple(int(x) for x in text.split(",")) for text in options.queries]
    except ValueError:
        raise ValueError(
            f"queries are whole numbers with commas between, as 0,3, and not {options.queries}"
        ) from None
