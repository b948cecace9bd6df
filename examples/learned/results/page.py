"""``python -m examples.learned.results.page RUN``: an HTML page of a trained network's heads, with
a query to move.

Attention is averaged over 100 test pictures.  The page is that of ``verify.write_report`` for given
attention: one file, which loads nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import verify
from examples.learned.command import read
from examples.learned.data import BadInput
from examples.learned.network import AttentionNet
from examples.learned.results.maps import PICTURES, attention_of
from examples.learned.results.stored import stored
from examples.learned.running.console import ended
from examples.learned.variants import VARIANTS

SHOWN = "the run of another variant"


def written(options: argparse.Namespace) -> str:
    """Write the page of a run, and say where.

    Raises:
        BadInput: there is no such run or layer, it is not finished, or the network has no
            attention.
    """
    pictures = read(options.data)
    run = stored(options.run, pictures)
    if not isinstance(run.network, AttentionNet) or VARIANTS[run.settings.variant].kernel:
        raise BadInput(
            f"{options.run}: {run.settings.variant} has no attention to show (give the run of another variant)"
        )
    count = len(run.network.blocks)
    chosen = options.layers or range(1, count + 1)
    for layer in chosen:
        if not 1 <= layer <= count:
            raise BadInput(f"--layers has {layer}, and the network has the layers 1 to {count}")
    if any(any(pair) for layer in run.network.attentions() for pair in layer.geometry.pads):
        raise BadInput(
            f"{options.run}: its heads look at padding tokens too, which this page has no place for (give {SHOWN})"
        )
    maps = attention_of(run.network, pictures.test[:PICTURES])
    grid = run.network.grid
    shown = {f"layer {n}": maps[n - 1].reshape(-1, *grid, *grid) for n in chosen}
    label = VARIANTS[run.settings.variant].label
    verify.write_report(
        options.out, attention=shown, title=f"{label}, seed {run.settings.seed}, after training"
    )
    return f"wrote {options.out}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.learned.results.page", description=__doc__
    )
    parser.add_argument("run", type=Path, help="the folder of a finished run: OUT/VARIANT/seed-N")
    parser.add_argument(
        "--data", type=Path, help="as python -m examples.learned had it (default: the digits)"
    )
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="from 1 (default: all)")
    parser.add_argument(
        "--out", type=Path, default=Path("learned.html"), help="(default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    return ended(lambda _console: written(options), "stopped; nothing is lost")


if __name__ == "__main__":
    sys.exit(main())
