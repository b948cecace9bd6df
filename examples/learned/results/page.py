"""``python -m examples.learned.results.page RUN``: an HTML page of a trained network's heads, with
a query to move.

Attention is averaged over 100 test pictures.  The page is that of ``verify.write_report`` for given
attention: one file, which loads nothing.  Without a run it is that of the committed CIFAR-10 runs,
whose α and τ say where every head looks from any query:

    python -m examples.learned.results.page --out docs/learned.html
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import verify
from construct import MHSA
from construct.encoding import quadratic
from examples.learned.command import read
from examples.learned.data import BadInput
from examples.learned.network import AttentionNet
from examples.learned.results.maps import PICTURES, attention_of
from examples.learned.results.published import DRAWN
from examples.learned.results.stored import stored
from examples.learned.running.console import ended
from examples.learned.starting import attention_to_learn
from examples.learned.variants import VARIANTS
from verify.argument.documents import replace_file
from verify.report.layer import ReportLayer
from verify.report.page import Facts, page

STARTS = {"quadratic": "the paper’s start", "local": "the local start"}
"""The committed variants on the page."""
LEDE = (
    "Where the heads of two trained networks look: the paper’s six layers of nine heads, trained on CIFAR-10 from centres at "
    "random (the paper’s start) and from one head on each tap of a 3 × 3 kernel (the local start), seed 0. A head attends from "
    "the query to the key at shift δ by the softmax of −α‖δ − τ‖²; α and τ are learned, here to four decimals. It sees no "
    "content, so this is its attention for every picture. Whether it is a convolution: docs/learned.md."
)
SHOWN = "the run of another variant"


def learned_layers() -> Iterator[tuple[str, MHSA]]:
    """Name and layer, of one channel, of the committed CIFAR-10 runs: heads with the α and τ that were
    learned.
    """
    variants = json.loads(DRAWN.read_text(encoding="utf-8"))["variants"]
    for variant, start in STARTS.items():
        for number, layer in enumerate(variants[variant]["looks"]["layers"], 1):
            alpha, tau = torch.tensor(layer["alpha"]), torch.tensor(layer["tau"])
            mhsa = attention_to_learn(1, 1, len(alpha), generator=torch.Generator())
            with torch.no_grad():
                mhsa.v = torch.stack(quadratic.v(tau.unbind(1), alpha), dim=1)
            yield f"layer {number}, {start}", mhsa


def committed() -> bytes:
    """The page of the committed CIFAR-10 runs."""
    layers = [ReportLayer(name, mhsa=mhsa) for name, mhsa in learned_layers()]
    return page(layers, Facts("Where trained heads look", LEDE))


def written(options: argparse.Namespace) -> str:
    """Write the page of a run, or of the committed ones, and say where.

    Raises:
        BadInput: there is no such run or layer, it is not finished, or the network has no
            attention.
    """
    if options.run is None:
        replace_file(options.out, committed())
        return f"wrote {options.out}\n"
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
    parser.add_argument(
        "run",
        type=Path,
        nargs="?",
        help="the folder of a finished run: OUT/VARIANT/seed-N (default: the committed runs)",
    )
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
