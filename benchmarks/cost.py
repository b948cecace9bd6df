"""Time against tokens, into a file that ``python -m verify plot cost`` draws.

    python -m benchmarks.cost COST.json

The convolution 64 → 64, 3 × 3, and its attention: by default, and densely as in the equations.  One
thread, processor time.
"""

import json
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

import construct
from benchmarks.timing import medians
from verify.plots.costs import FORMAT, VERSION, Series

SIDES = (14, 20, 28, 40, 56, 80, 112, 160, 224)
MOST_DENSE = 40
"""The largest side that is computed densely: memory grows with the square of the tokens."""


def series(name: str, call: Callable[[torch.Tensor], object], sides: tuple[int, ...]) -> Series:
    """Times of one call on images of every side."""
    seconds = []
    for side in sides:
        x = torch.randn(1, 64, side, side).contiguous(memory_format=torch.channels_last)
        seconds += medians(partial(call, x), rounds=5)
        print(f"  {name}, side {side}: {1e3 * seconds[-1]:.3f} ms")
    return Series(name, tuple((side + 2) ** 2 for side in sides), tuple(seconds))


def write_costs(path: str | Path, series: Sequence[Series], what: str) -> None:
    """Write times for ``read_costs``; ``what`` says what was measured and where."""
    rows = [{"name": s.name, "tokens": list(s.tokens), "seconds": list(s.seconds)} for s in series]
    document = {"format": FORMAT, "version": VERSION, "what": what, "series": rows}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


@torch.no_grad()
def main() -> None:
    """Measure and write."""
    (path,) = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3, padding=1)
    conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layer, dense = construct.conv_to_mhsa(conv), construct.conv_to_mhsa(conv, execution="dense")
    all_series = [
        series("convolution", conv, SIDES),
        series("attention, by default", layer, SIDES),
        series("attention, dense", dense, tuple(side for side in SIDES if side <= MOST_DENSE)),
    ]
    where = f"torch {torch.__version__}, {platform.machine()}, one thread, processor time, the median of five"
    write_costs(path, all_series, f"64 → 64 channels, 3 × 3; {where}")


if __name__ == "__main__":
    main()
