"""Writes the verified checker's input text (CheckText.v defines the format) from the raw numbers of
both layers.

Every float is an integer times a power of two, so nothing is rounded here: a tensor becomes one
exponent and integers.  Grids, shifts, taps and bounds are all derived inside Coq; this module only
writes down the contents of the weight files.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy import ndarray

from verify.recheck.grids import MODES
from verify.recheck.stored_layers import TENSORS

AT_ONCE = 1 << 16
FOUR_DIGITS = np.array([f"{number:04}" for number in range(10_000)], dtype="S4")

SAME = "0"
"""The question whether the two layers are the same function in the limit α → ∞."""


def within(bound: float, most: float) -> str:
    """The question whether they differ by at most ``most`` over the reals, for |X| ≤ ``bound``."""
    return f"1 {_dyadic(bound)} {_dyadic(most)}"


def floats(emin: int, precision: int, bound: float, most: float, kind: int = 2) -> str:
    """The question whether they are the same function and differ by at most ``most`` in this
    format, for |X| ≤ ``bound``: in every order of the products, or of kind 5, where heads shift
    tokens and W_val W_out is formed first, as by default.
    """
    return f"{kind} {emin} {precision} {_dyadic(bound)} {_dyadic(most)}"


def soft(emin: int, precision: int, bound: float, most: float, grid: Sequence[int]) -> str:
    """The question whether they differ by at most ``most`` in this format, for |X| ≤ ``bound`` on
    inputs up to ``grid``, at any sharpness.
    """
    numbers = [floats(emin, precision, bound, most, 6), len(grid), *grid]
    return " ".join(map(str, numbers))


def sharp(emin: int, precision: int) -> str:
    """The question whether every head is one-hot in this format: floats m·2^e with
    |m| < 2^precision and e ≥ emin.
    """
    return f"3 {emin} {precision}"


def refuted(
    grid: Sequence[int], output: Sequence[int], pixels: Mapping[tuple[int, ...], Fraction]
) -> str:
    """The question whether, in the limit, an output differs on the input with the given pixels.

    Args:
        grid: the input's sizes.
        output: (channel, *position).
        pixels: values by (channel, *position); all others are zero.

    Raises:
        ValueError: a pixel is not an integer times a power of two.
    """
    exponent = -max((x.denominator.bit_length() - 1 for x in pixels.values()), default=0)
    scaled = {index: x * 2**-exponent for index, x in pixels.items()}
    if any(x.denominator != 1 for x in scaled.values()):
        raise ValueError(
            "every number must be an integer times a power of two (the checker takes no other)"
        )
    entries = [number for index, x in scaled.items() for number in (*index, x)]
    numbers = [4, len(grid), *grid, *output[1:], output[0], exponent, len(scaled), *entries]
    return " ".join(map(str, numbers))


def text(
    digests: Sequence[str],
    questions: Sequence[str],
    geometries: Sequence[Mapping[str, Any]],
    weight: ndarray,
    bias: ndarray,
    tensors: Mapping[str, ndarray],
    largest: Sequence[int],
) -> Iterator[str]:
    """The text for one pair of layers, in pieces.

    Args:
        digests: SHA-256 of both weight files, in hexadecimal; the checker repeats them as numbers.
        questions: the questions to ask.
        geometries: the fields of the convolution and those that the attention layer states, under
            torch's names.
        weight: the kernel in torch's layout.
        bias: (D_out,); zeros if there is none.
        tensors: the eight tensors of the attention layer, heads first.
        largest: the sizes up to which a layer with a radix is judged.

    Raises:
        ValueError: a number is not finite, or a geometry is invalid.
    """
    heads, _, _, head_dim = tensors["w_val"].shape
    numbers = [int(digest, 16) for digest in digests]
    yield "\n".join(map(str, [*numbers, len(questions), *questions]))
    yield from (_geometry(geometries[0]), *_tensor(weight), *_tensor(bias))
    radix = geometries[1].get("radix")
    encoding = [0] if radix is None else [1, *map(int, radix), *largest]
    sizes = [*encoding, heads, tensors["v"].shape[1], head_dim]
    yield from (_geometry(geometries[1]), "\n" + " ".join(map(str, sizes)))
    for name in TENSORS:
        yield from _tensor(tensors[name])
    yield "\n"


def _geometry(fields: Mapping[str, Any]) -> str:
    """The fields of a geometry, in the format's order."""
    kernel = fields["kernel_size"]
    padding = fields["padding"]
    pads = [("same", "valid").index(padding) + 1] if isinstance(padding, str) else [0, *padding]
    numbers = [fields["in_channels"], fields["out_channels"], len(kernel)]
    numbers += [*kernel, *fields["stride"], *fields["dilation"]]
    numbers += [*pads, MODES.index(fields["padding_mode"]), fields["groups"], fields["transposed"]]
    numbers += fields["output_padding"]
    return "\n" + " ".join(str(int(n)) for n in numbers)


def _dyadic(x: float) -> str:
    """Mantissa and exponent of one number."""
    exponent, (mantissa,) = _integers(x)
    return f"{mantissa} {exponent}"


def _tensor(x: ndarray) -> Iterator[str]:
    """The exponent of a tensor, and its entries."""
    exponent, entries = _integers(x)
    yield f"\n{exponent}"
    for part in np.split(entries, range(AT_ONCE, len(entries), AT_ONCE)):
        yield "\n" + (" ".join(map(str, part)) if part.dtype == object else _decimals(part))


def _decimals(entries: ndarray) -> str:
    """Integers in decimal, with leading zeros so that all have as many digits: numpy writes them
    together in a fifth of the time that ``str`` takes.
    """
    magnitudes = np.abs(entries)
    width = len(str(magnitudes.max(initial=0)))
    fours = np.empty((len(entries), -(-width // 4)), dtype="S4")
    for column in reversed(fours.T):
        column[:] = FOUR_DIGITS[magnitudes % 10_000]
        magnitudes //= 10_000
    text = np.full((len(entries), width + 2), b" ")
    text[entries < 0, 1] = b"-"
    text[:, 2:] = fours.view("S1")[:, -width:]
    return text.tobytes().decode("ascii")


def _integers(x: ndarray | float) -> tuple[int, ndarray]:
    """The exponent e and integers m with x = m·2^e."""
    x = np.ravel(x).astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError("a number is not finite (the checker takes finite numbers alone)")
    mantissas, exponents = np.frexp(x)  # ½ ≤ |mantissa| < 1
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    last_bits = exponents - 54 + np.frexp(whole & -whole)[1]
    least = last_bits.min(initial=0, where=x != 0)
    if exponents.max(initial=0) - least <= 62:
        return least, np.ldexp(x, -least).astype(np.int64)
    shifts = exponents - 53 - least  # left shifts; negative ones drop trailing zero bits
    return least, whole.astype(object) << np.maximum(shifts, 0) >> np.maximum(-shifts, 0)
