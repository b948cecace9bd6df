"""Claims on permutations, translations and the algebra of convolution."""

from itertools import permutations
from typing import Any

import numpy as np
import sympy
import torch

from verify.oracle import Convolution
from verify.theory.literature import equations
from verify.theory.literature.claims_encoding import unmoved_steps
from verify.theory.literature.equations import Setting, Vector
from verify.theory.literature.judgement import Check, Judgement, by_steps, claim, corrected, proved, refuted
from verify.theory.literature.torch_layers import pointwise_layer
from verify.theory.symbolic import proof_positions
from verify.theory.symbolic.proof import ProofStep
from verify.theory.symbolic.proof_algebra import linear

RING = (4, 5)


@claim(
    "permutation-equivariance",
    "paper, Section 2; talk",
    "Without positions, self-attention commutes with every permutation of the tokens.",
)
def permutation_equivariance() -> Judgement:
    """Symbolically for three tokens of two channels; and the layer, with content attention only."""
    tokens = np.array(sympy.symbols("x0:3_0:2")).reshape(3, 2)
    output = content_attention(tokens)
    orders = list(permutations(range(3)))
    wrong = sum(bool((content_attention(tokens[list(order)]) != output[list(order)]).any()) for order in orders)
    moved, positional = (_largest_move(pointwise_layer(positions)) for positions in (False, True))
    return proved(
        Check(f"3 tokens of symbols: {wrong} of {len(orders)} permutations do not commute with Eq. 3", wrong == 0),
        Check(
            f"the layer with content attention only: within {moved:.0e} for 20 permutations of 7 tokens", moved < 1e-12
        ),
        Check(f"with positions it does not commute, by {positional:.2g}", positional > 0.01),
    )


def content_attention(x: np.ndarray) -> np.ndarray:
    """Eq. 3 with the score X_q M X_kᵀ + X_k·u of one head, on symbols: (T, 2) → (T, 2)."""
    m, u, w = (np.array(sympy.symbols(f"{name}0:{n}")).reshape(-1, 2) for name, n in (("m", 4), ("u", 2), ("w", 4)))
    scores = x @ m @ x.T + (x @ u.T).T
    weights: Any = np.frompyfunc(lambda score: sympy.exp(sympy.expand(score)), 1, 1)(scores)
    return (weights / weights.sum(axis=1, keepdims=True)) @ x @ w


def _largest_move(layer: Any) -> float:
    """The greatest failure to commute with 20 permutations of 7 tokens."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 2, 7, generator=generator, dtype=torch.float64)
    worst = 0.0
    with torch.no_grad():
        for _ in range(20):
            order = torch.randperm(7, generator=generator)
            worst = max(worst, float((layer(x[..., order]) - layer(x)[..., order]).abs().max()))
    return worst


@claim(
    "permutation-invariance",
    "paper, Section 2, where equivariance is explained",
    "Without positions, self-attention gives the same output however the tokens are shuffled.",
)
def permutation_invariance() -> Judgement:
    """The output is permuted too: equivariance, not invariance."""
    layer, order = pointwise_layer(positions=False), torch.tensor([3, 1, 6, 0, 5, 2, 4])
    x = torch.randn(1, 2, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        before, after = layer(x), layer(x[..., order])
    change = float((after - before).abs().max())
    back = float((after - before[..., order]).abs().max())
    return refuted(
        Check(f"shuffling 7 tokens moves the output by up to {change:.2g}", change > 0.01),
        instead=corrected(
            "each token keeps its own output: the outputs are shuffled as the tokens are",
            Check(f"shuffled back, the outputs are within {back:.0e}", back < 1e-12),
        ),
    )


@claim(
    "translation-equivariance",
    "talk",
    "With a relative encoding, self-attention on an unbounded (or wrapped) grid commutes with translations.",
)
def translation_equivariance() -> Judgement:
    """The score is unchanged when query and key move together, so the attention is too, at every α."""
    tau, positions = (1, -1), proof_positions.positions(RING)
    scores = np.array([proof_positions.wrapped_scores(q, RING, tau) for q in positions])
    moved = [np.ravel_multi_index(((positions + t) % RING).T.astype(int), RING) for t in positions]
    wrong = sum(int((scores[to][:, to] != scores).sum()) for to in moved)
    count = len(moved) * scores.size
    attention, x = equations.softmax(scores.astype(float)), equations.integers(3, 2, *RING).reshape(2, -1).T
    worst = max(float(np.abs(attention @ x[to] - (attention @ x)[to]).max()) for to in moved)
    inside, outside = _bounded(tau)
    return proved(
        by_steps("the score does not change when query and key move together", unmoved_steps),
        Check(f"on a wrapped 4×5 grid {wrong} of {count} moved scores differ, so it holds for every α", wrong == 0),
        Check(f"the outputs of a soft head commute within {worst:.0e}", worst < 1e-12),
        Check(
            f"on a bounded image as it is a sharp head commutes inside (error {inside}), not beyond ({outside})",
            inside == 0 and outside > 0,
        ),
    )


def _bounded(tau: Vector) -> tuple[int, int]:
    """A sharp head on a bounded grid, the image moved by one row: error where head and image stay on the grid, and elsewhere."""
    tokens, x = proof_positions.positions(RING), equations.integers(3, *RING)
    head = equations.sharp(proof_positions.quadratic_scores(tokens, tokens, tau))
    before, after = ((head @ image.reshape(-1)).reshape(RING) for image in (x, np.roll(x, 1, axis=0)))
    error = np.abs(after - np.roll(before, 1, axis=0))
    stays = np.zeros(RING, dtype=bool)
    stays[1:-1, 1:] = True  # τ = (1, −1): the last row and the first column look beyond; row 0 has come round
    return int(error[stays].max()), int(error[~stays].max())


@claim(
    "convolution-equivariance",
    "talk",
    "Convolution on an unbounded (or wrapped) grid commutes with translations.",
)
def convolution_equivariance() -> Judgement:
    """For every tap and every translation of a wrapped grid, on impulses: so for every kernel and every input."""
    setting = Setting((3, 3), RING, (1, 1))
    read, positions = equations.read_by_taps(setting, "circular"), proof_positions.positions(RING)
    moved = [np.ravel_multi_index(((positions + t) % RING).T.astype(int), RING) for t in positions]
    wrong = sum(int((read[:, to][:, :, to] != read).sum()) for to in moved)
    return proved(
        by_steps("output o + t of an image moved by t reads what output o read", _moved_steps),
        Check(f"{wrong} of {len(moved) * read.size} entries change when input and output move together", wrong == 0),
    )


def _moved_steps() -> list[ProofStep]:
    """X'_i = X_{i−t}, so Y'_{o+t} = Σ_j X_{o+t+j−t} W_j."""
    o, t, j = sympy.symbols("o t j", integer=True)
    first, last = sympy.symbols("a b", integer=True)
    x: Any = sympy.IndexedBase("X")
    w: Any = sympy.IndexedBase("W")
    moved = sympy.Sum(x[(o + t) + j - t] * w[j], (j, first, last))
    return [
        linear("sum_j X'_(o + t + j) W_j = sum_j X_(o + j) W_j", (moved, sympy.Sum(x[o + j] * w[j], (j, first, last))))
    ]


def composed(second: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The kernel of one convolution after another, Σ_i second_i first_{n−i}: (C, B, k), (B, A, l) → (C, A, k + l − 1)."""
    weight = second[:, :, ::-1]
    convolve = Convolution(weight, None, (1,), (second.shape[2] - 1,), (1,), 1)
    return convolve(first.transpose(1, 0, 2)).transpose(1, 0, 2)


def kernel_of_symbols(name: str, outputs: int, inputs: int, width: int) -> np.ndarray:
    """A kernel (outputs, inputs, width) of symbols."""
    return np.array(sympy.symbols(f"{name}0:{outputs * inputs * width}")).reshape(outputs, inputs, width)


def _differing(left: np.ndarray, right: np.ndarray) -> int:
    """The number of polynomials that differ."""
    return sum(sympy.expand(a - b) != 0 for a, b in zip(left.reshape(-1), right.reshape(-1), strict=True))


@claim(
    "convolution-associative",
    "talk",
    "Convolution is associative.",
)
def convolution_associative() -> Judgement:
    """Three kernels of symbols, one channel and several."""
    checks = []
    for a, b, c, d in ((1, 1, 1, 1), (2, 1, 2, 2)):
        f, g, h = (kernel_of_symbols(*of) for of in (("f", b, a, 2), ("g", c, b, 3), ("h", d, c, 2)))
        left, right = composed(composed(h, g), f), composed(h, composed(g, f))
        finding = f"{a} → {b} → {c} → {d} channels: {_differing(left, right)} of {left.size} polynomials differ"
        checks.append(Check(finding, _differing(left, right) == 0))
    return proved(*checks)


@claim(
    "convolution-commutative",
    "talk",
    "Convolution is commutative.",
)
def convolution_commutative() -> Judgement:
    """Matrices do not commute, so kernels of several channels do not either."""
    f, g = (kernel_of_symbols(name, 2, 2, 2) for name in "fg")
    many = _differing(composed(f, g), composed(g, f))
    a, b = equations.integers(1, 2, 2, 2), equations.integers(2, 2, 2, 2)
    example = int(np.abs(composed(a, b) - composed(b, a)).max())
    one, other = kernel_of_symbols("f", 1, 1, 3), kernel_of_symbols("g", 1, 1, 4)
    single = _differing(composed(one, other), composed(other, one))
    return refuted(
        Check(f"2 → 2 channels: {many} of {composed(f, g).size} polynomials differ", many > 0),
        Check(f"for two integer kernels by up to {example}", example > 0),
        instead=corrected(
            "with a single channel it is",
            Check(f"1 channel: {single} of {composed(one, other).size} polynomials differ", single == 0),
        ),
    )


@claim(
    "convolution-fourier",
    "talk",
    "Convolution is diagonal in Fourier space.",
)
def convolution_fourier() -> Judgement:
    """Exactly the maps that commute with the cyclic shift are diagonal there: its eigenvalues are distinct."""
    setting, n = Setting((3,), (8,), (1,)), 8
    taps = {mode: equations.read_by_taps(setting, mode) for mode in ("zeros", "circular")}
    shift = np.roll(np.eye(n, dtype=int), 1, axis=0)
    apart = {mode: int((read @ shift != shift @ read).sum()) for mode, read in taps.items()}
    fourier = np.fft.fft(np.eye(n)) / np.sqrt(n)
    rest = {mode: _off_diagonal(fourier, np.tensordot([3, -1, 2], read, axes=1)) for mode, read in taps.items()}
    return refuted(
        Check(
            f"with zeros around, {apart['zeros']} entries of the taps do not commute with the cyclic shift",
            apart["zeros"] > 0,
        ),
        Check(f"off the diagonal the kernel (3, −1, 2) has entries up to {rest['zeros']:.2g}", rest["zeros"] > 0.1),
        instead=corrected(
            "with circular padding, and one channel, it is; several channels leave one D_in × D_out matrix a frequency",
            Check(
                f"circular: {apart['circular']} entries do not commute with the cyclic shift", apart["circular"] == 0
            ),
            Check(f"off the diagonal there are entries up to {rest['circular']:.0e}", rest["circular"] < 1e-12),
        ),
    )


def _off_diagonal(fourier: np.ndarray, matrix: np.ndarray) -> float:
    """The greatest |entry| of F M F⁻¹ off the diagonal."""
    inside = fourier @ matrix @ fourier.conj().T
    return float(np.abs(inside - np.diag(np.diag(inside))).max())


CLAIMS = (
    permutation_equivariance,
    permutation_invariance,
    translation_equivariance,
    convolution_equivariance,
    convolution_associative,
    convolution_commutative,
    convolution_fourier,
)
