"""The text that the verified checker reads (CheckText.v says its format), from the raw tensors of both layers.

Every float is an integer times a power of two, so that nothing is rounded here: a tensor is written as one exponent and integers.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

MODES = ("zeros", "reflect", "replicate", "circular")
TENSORS = ("w_qry", "w_key", "w_key_pos", "u", "v", "w_val", "w_out", "b_out")


def text(
    geometries: Sequence[Mapping[str, Any]],
    weight: np.ndarray,
    bias: np.ndarray | None,
    tensors: Mapping[str, np.ndarray],
    within: tuple[float, float] | None = None,
    floats: tuple[int, int, int, int] | None = None,
) -> str:
    """The text of one pair.

    Args:
        geometries: the fields of the convolution and those that the attention layer states, each by torch's names.
        weight: the kernel in torch's order.
        bias: (D_out,) or None.
        tensors: the eight tensors of the attention layer, heads first.
        within: None asks for the same function, (B, T) for a difference of at most T where |X| ≤ B.
        floats: beside ``within``, asks for it in floating point: e_min and p of the format, 0 where values are projected first
            and 1 where tokens are attended first, and the most tokens.

    Raises:
        ValueError: a number is not finite, or a geometry is none.
    """
    heads, _, _, head_dim = tensors["w_val"].shape
    key_dim = tensors["v"].shape[1]
    stored_bias: np.ndarray = np.zeros(geometries[0]["out_channels"]) if bias is None else bias
    asked = "1" if floats is None else f"2 {_line(floats)}"
    lines: list[str] = ["0" if within is None else f"{asked} {_dyadic(within[0])} {_dyadic(within[1])}"]
    lines += [_geometry(geometries[0]), _tensor(weight), _tensor(stored_bias)]
    lines += [_geometry(geometries[1]), f"{heads} {key_dim} {head_dim}"]
    lines += [_tensor(tensors[name]) for name in TENSORS]
    return "\n".join(lines) + "\n"


def _geometry(fields: Mapping[str, Any]) -> str:
    """The fields of a geometry, in the order of the format."""
    kernel, padding = fields["kernel_size"], fields["padding"]
    if fields["padding_mode"] not in MODES or not (isinstance(padding, Sequence)):
        raise ValueError(f"no geometry: {dict(fields)}")
    pads = [("same", "valid").index(padding) + 1] if isinstance(padding, str) else [0, *padding]
    numbers = [
        fields["in_channels"],
        fields["out_channels"],
        len(kernel),
        *kernel,
        *fields["stride"],
        *fields["dilation"],
    ]
    numbers += [*pads, MODES.index(fields["padding_mode"]), fields["groups"], int(fields["transposed"])]
    extra = fields["output_padding"] or [0] * len(kernel)
    return _line([*numbers, *extra])


def _dyadic(x: float) -> str:
    """Mantissa and exponent of one number."""
    exponent, (mantissa,) = _integers(np.array([x]))
    return f"{mantissa} {exponent}"


def _tensor(x: np.ndarray) -> str:
    """The exponent of a tensor, and its entries."""
    exponent, entries = _integers(x)
    return f"{exponent}\n{_line(entries)}"


def _integers(x: np.ndarray) -> tuple[int, list[int]]:
    """The exponent e and integers m with x = m·2^e."""
    x = np.asarray(x, dtype=np.float64).reshape(-1)
    if not np.isfinite(x).all():
        raise ValueError("a number is not finite (the checker takes finite numbers alone)")
    mantissas, exponents = np.frexp(x)
    whole = np.ldexp(mantissas, 53).astype(np.int64)  # exact: below 2^53
    nonzero = whole != 0
    if not nonzero.any():
        return 0, [0] * len(whole)
    trailing = (whole & -whole).astype(np.float64)  # a power of two
    low = exponents - 53 + np.where(nonzero, np.frexp(np.where(nonzero, trailing, 1.0))[1] - 1, 0)
    least = int(low[nonzero].min())
    shifts = np.where(nonzero, exponents - 53 - least, 0)
    return least, [m << s if s >= 0 else m >> -s for m, s in zip(whole.tolist(), shifts.tolist(), strict=True)]


def _line(numbers: Iterable[int]) -> str:
    """Integers, twenty to a line."""
    words = [str(int(n)) for n in numbers]
    return "\n".join(" ".join(words[i : i + 20]) for i in range(0, len(words), 20))
