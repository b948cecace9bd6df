"""The leakage of torch's softmax by sharpness α and dtype, with the bound: the table of
docs/numerics.md.
"""

from dataclasses import dataclass

import torch

from verify.rounding.leakage import leakage_on_lattice

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ALPHAS = (0.5, 1.0, 2.0, 4.0, 6.5, 8.5, 17.5, 46.0, 93.0, 104.0, 746.0, 1024.0)
SIDE = 9


@dataclass(frozen=True)
class SharpnessRow:
    """The row of one α.

    Attributes:
        alpha: the sharpness.
        bound: the largest leakage of a head over the reals, on any grid in ``dims`` dimensions.
        leaked: for each dtype, the sum of all softmax weights but the largest.
        neighbour: for each dtype, the weight of a nearest neighbour; exactly 0 from the dtype's
            threshold on.
    """

    alpha: float
    bound: float
    leaked: dict[torch.dtype, float]
    neighbour: dict[torch.dtype, float]


def other_weights(alpha: float, dtype: torch.dtype, dims: int, side: int = SIDE) -> torch.Tensor:
    """The weights, except the largest, of a query in the middle of a grid of side ``side``,
    computed in ``dtype``, ascending.
    """
    axis = torch.arange(side, dtype=torch.float64) - side // 2
    squares = torch.cartesian_prod(*[axis.square()] * dims).reshape(-1, dims).sum(dim=1)
    scores = (-alpha * squares).clamp(min=torch.finfo(dtype).min / 2)  # float16 ends at −65504
    return torch.softmax(scores.to(dtype), dim=0).double().sort().values[:-1]


def rows(dims: int = 2) -> list[SharpnessRow]:
    """The table for ``dims`` dimensions, one row for each α of ``ALPHAS``."""
    table = []
    for alpha in ALPHAS:
        leaked, neighbour = {}, {}
        for dtype in DTYPES:
            rest = other_weights(alpha, dtype, dims)
            leaked[dtype], neighbour[dtype] = float(rest.sum()), float(rest[-1])
        table.append(SharpnessRow(alpha, leakage_on_lattice(alpha, dims), leaked, neighbour))
    return table


def markdown() -> str:
    """The table for two dimensions, as Markdown."""
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    lines = [
        "| α | bound 1 − ϑ(α)^−2 | " + " | ".join(f"measured, {name}" for name in names) + " |",
        "|---" * (2 + len(names)) + "|",
    ]
    for row in rows():
        measured = " | ".join("0" if row.leaked[d] == 0 else f"{row.leaked[d]:.1e}" for d in DTYPES)
        lines.append(f"| {row.alpha:g} | {row.bound:.1e} | {measured} |")
    return "\n".join(lines)
