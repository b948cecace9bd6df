"""Claims about permutations and translations, the algebra of convolution, and what attention can do beyond it."""

from itertools import permutations
from typing import Any

import numpy as np
import sympy
import torch

from verify.oracle import Convolution
from verify.theory.literature import equations
from verify.theory.literature.judgement import Check, Judgement, by_coq, by_steps, claim, proved, refuted
from verify.theory.literature.shared_checks import every_query
from verify.theory.literature.torch_layers import pointwise_layer, random_layer
from verify.theory.symbolic import proof_positions, proofs_relative
from verify.theory.symbolic.proof import ProofStep, from_assumptions, gt
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proof_positions import Setting, Vector
from verify.theory.symbolic.proofs_scores import indexed, integers, minus, plus

RING = (4, 5)
HEADS = "blog, Multi-Head Self-Attention Layer"


@claim(
    "permutation-equivariance",
    "Without positions, shuffling the tokens shuffles the scores, and so the outputs, alike.",
    r"$\mathbf{A}$ is *permutation equivariant* – shuffling the order of the tokens (rows) in $\mathbf{X}$ shuffles the "
    r"scores in $\mathbf{A}$.",
    "talk, Self-Attention",
)
def permutation_equivariance() -> Judgement:
    """Proved for three symbolic tokens; and checked for the layer with content attention only."""
    tokens = np.array(sympy.symbols("x0:3_0:2")).reshape(3, 2)
    output = content_attention(tokens)
    orders = list(permutations(range(3)))
    wrong = sum(bool((content_attention(tokens[list(order)]) != output[list(order)]).any()) for order in orders)
    moved, positional = (_largest_move(pointwise_layer(positions)) for positions in (False, True))
    return proved(
        Check(
            f"3 tokens of symbols: {wrong} of {len(orders)} permutations do not commute with Eq. 3",
            wrong == 0,
            "exhaustive: one head, 3 tokens of symbols",
        ),
        Check(
            f"a layer with content attention only: within {moved:.0e} for 20 permutations of 7 tokens", moved < 1e-12
        ),
        Check(f"with positions it does not commute, by {positional:.2g}", positional > 0.01),
    )


def content_attention(x: np.ndarray) -> np.ndarray:
    """Eq. 3 for one head with score X_q M X_kᵀ + X_k·u, on symbols: (T, 2) → (T, 2)."""
    m, u, w = (np.array(sympy.symbols(f"{name}0:{n}")).reshape(-1, 2) for name, n in (("m", 4), ("u", 2), ("w", 4)))
    scores = x @ m @ x.T + (x @ u.T).T
    weights: Any = np.frompyfunc(lambda score: sympy.exp(sympy.expand(score)), 1, 1)(scores)
    return (weights / weights.sum(axis=1, keepdims=True)) @ x @ w


def _largest_move(layer: Any) -> float:
    """The largest failure to commute with 20 permutations of 7 tokens."""
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
    "Without positions, the layer gives the same output however the pixels are shuffled.",
    "it is equivariant to reordering, that is, it gives the same output independently of how the input pixels are shuffled.",
    "blog, Relative Positional Encoding",
)
def permutation_invariance() -> Judgement:
    """The output is permuted as well: equivariance, not invariance."""
    layer, order = pointwise_layer(positions=False), torch.tensor([3, 1, 6, 0, 5, 2, 4])
    x = torch.randn(1, 2, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        before, after = layer(x), layer(x[..., order])
    change = float((after - before).abs().max())
    back = float((after - before[..., order]).abs().max())
    return refuted(
        Check(f"shuffling 7 tokens moves the output by up to {change:.2g}", change > 0.01),
        Check(f"shuffled back, the outputs are within {back:.0e}", back < 1e-12),
        stands="the word “equivariant” of the same sentence: the outputs are shuffled as the pixels are "
        "(permutation-equivariance)",
    )


@claim(
    "translation-equivariance",
    "With a relative encoding the scores are translation equivariant (on an unbounded or wrapped grid).",
    r"Attention scores are now *translation equivariant* rather than permutation equivariant.",
    "talk, Self-Attention",
)
def translation_equivariance() -> Judgement:
    """All four terms are unchanged when query, key and image move together; a sharp head is checked on a bounded grid."""
    tau, moved = (1, -1), translations()
    scores = np.array([proof_positions.wrapped_scores(q, RING, tau) for q in proof_positions.positions(RING)])
    wrong = sum(int((scores[to][:, to] != scores).sum()) for to in moved)
    inside, outside = _bounded(tau)
    return proved(
        by_steps(
            "A_{q+s, k+s} of the image moved by s is A_{q, k} with all four terms",
            proofs_relative.translation_steps,
            "D_in = D_k = 2, d ≤ 3",
        ),
        Check(f"on a wrapped 4×5 grid {wrong} of {len(moved) * scores.size} moved scores differ", wrong == 0),
        Check(
            f"on a bounded image as it is a sharp head commutes inside (error {inside}), not beyond ({outside})",
            inside == 0 and outside > 0,
        ),
    )


def translations() -> list[np.ndarray]:
    """Each translation of the wrapped grid, as the new indices of its tokens."""
    positions = proof_positions.positions(RING)
    return [np.ravel_multi_index(((positions + t) % RING).T.astype(int), RING) for t in positions]


def _bounded(tau: Vector) -> tuple[int, int]:
    """For a sharp head on a bounded grid and an image moved by one row: the error where both stay on the grid, and elsewhere."""
    (head,), x = every_query(RING, [tau]), equations.integers(3, *RING)
    before, after = ((head @ image.reshape(-1)).reshape(RING) for image in (x, np.roll(x, 1, axis=0)))
    error = np.abs(after - np.roll(before, 1, axis=0))
    stays = np.zeros(RING, dtype=bool)
    stays[1:-1, 1:] = True  # τ = (1, −1): the last row and the first column look off the grid; row 0 has wrapped around
    return int(error[stays].max()), int(error[~stays].max())


@claim(
    "convolution-equivariance",
    "Convolution commutes with translations (on an unbounded or wrapped grid).",
    r"\text{Conv}(W, \mathcal{T}_\delta X) = \mathcal{T}_\delta \text{Conv}(W, X)",
    "talk, Motivation",
)
def convolution_equivariance() -> Judgement:
    """Proved symbolically on one axis; and checked on impulses for every tap and translation of a wrapped grid."""
    setting = Setting((3, 3), RING, (1, 1))
    read, moved = equations.read_by_taps(setting, "circular"), translations()
    wrong = sum(int((read[:, to][:, :, to] != read).sum()) for to in moved)
    return proved(
        by_steps("output o + t of an image moved by t reads what output o read", _moved_steps, "d ≤ 3"),
        Check(f"{wrong} of {len(moved) * read.size} entries change when input and output move together", wrong == 0),
    )


def _moved_steps() -> list[ProofStep]:
    """X'_i = X_{i−t}, so Y'_{o+t} = Σ_j X_{o+t+j−t} W_j."""
    x, w = indexed("X"), indexed("W")
    sums = []
    for dims in (1, 2, 3):
        o, t, j, first, last = (integers(name, dims) for name in ("o", "t", "j", "a", "b"))
        box = list(zip(j, first, last, strict=True))
        moved = x[minus(plus(plus(o, t), j), t)]
        sums.append((sympy.Sum(moved * w[j], *box), sympy.Sum(x[plus(o, j)] * w[j], *box)))
    return [linear("sum_j X'_(o + t + j) W_j = sum_j X_(o + j) W_j", *sums)]


def composed(second: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The kernel of two composed convolutions, Σ_i second_i first_{n−i}: (C, B, k), (B, A, l) → (C, A, k + l − 1)."""
    weight = second[:, :, ::-1]
    convolve = Convolution(weight, None, (1,), (second.shape[2] - 1,), (1,), 1)
    return convolve(first.transpose(1, 0, 2)).transpose(1, 0, 2)


def kernel_of_symbols(name: str, outputs: int, inputs: int, width: int) -> np.ndarray:
    """A kernel (outputs, inputs, width) of symbols."""
    return np.array(sympy.symbols(f"{name}0:{outputs * inputs * width}")).reshape(outputs, inputs, width)


def _differing(left: np.ndarray, right: np.ndarray) -> int:
    """The number of entries that differ as polynomials."""
    return sum(sympy.expand(a - b) != 0 for a, b in zip(left.reshape(-1), right.reshape(-1), strict=True))


@claim(
    "convolution-associative",
    "Convolution is associative.",
    r"\text{Conv}(W', \text{Conv}(W, X)) = \text{Conv}(\text{Conv}(W', W), X)",
    "talk, Motivation",
)
def convolution_associative() -> Judgement:
    """Proved for three symbolic kernels, with one channel and with several."""
    counts, sizes = [], []
    for a, b, c, d in ((1, 1, 1, 1), (2, 1, 2, 2)):
        f, g, h = (kernel_of_symbols(*of) for of in (("f", b, a, 2), ("g", c, b, 3), ("h", d, c, 2)))
        left, right = composed(composed(h, g), f), composed(h, composed(g, f))
        counts.append(_differing(left, right))
        sizes.append(left.size)
    finding = f"1 → 1 → 1 → 1 and 2 → 1 → 2 → 2 channels: {counts} of {sizes} polynomials differ"
    return proved(Check(finding, not any(counts), "sympy; 1-D kernels of widths 2, 3, 2"))


@claim(
    "convolution-commutative",
    "Convolution of signals (one channel) is commutative.",
    r"\text{Conv}(\text{Conv}(W', W), X) = \text{Conv}(\text{Conv}(W, W'), X)",
    "talk, Motivation",
)
def convolution_commutative() -> Judgement:
    """Polynomials commute; matrices do not, so kernels with several channels do not either."""
    one, other = kernel_of_symbols("f", 1, 1, 3), kernel_of_symbols("g", 1, 1, 4)
    single = _differing(composed(one, other), composed(other, one))
    f, g = (kernel_of_symbols(name, 2, 2, 2) for name in "fg")
    many, count = _differing(composed(f, g), composed(g, f)), composed(f, g).size
    return proved(
        Check(
            f"{single} of {composed(one, other).size} polynomials differ",
            single == 0,
            "sympy; 1-D kernels of widths 3, 4",
        ),
        Check(f"with 2 → 2 channels it is not: {many} of {count} differ", many > 0),
    )


@claim(
    "convolution-fourier",
    "Convolution of a signal on a wrapped grid is diagonal in Fourier space.",
    "Diagonalized by the Fourier Transform",
    "talk, Motivation",
)
def convolution_fourier() -> Judgement:
    """Exactly the maps that commute with the cyclic shift are diagonal in the Fourier basis: its eigenvalues are distinct."""
    setting, n = Setting((3,), (8,), (1,)), 8
    taps = {mode: equations.read_by_taps(setting, mode) for mode in ("zeros", "circular")}
    shift = np.roll(np.eye(n, dtype=int), 1, axis=0)
    apart = {mode: int((read @ shift != shift @ read).sum()) for mode, read in taps.items()}
    fourier = np.fft.fft(np.eye(n)) / np.sqrt(n)
    inside = fourier @ np.tensordot([3, -1, 2], taps["circular"], axes=1) @ fourier.conj().T
    rest = float(np.abs(inside - np.diag(np.diag(inside))).max())
    return proved(
        Check(
            f"{apart['circular']} entries of the 3 taps do not commute with the cyclic shift",
            apart["circular"] == 0,
            "exhaustive: 3 taps on 8 tokens",
        ),
        Check(f"the kernel (3, −1, 2) has entries up to {rest:.0e} off the diagonal", rest < 1e-12),
        Check(f"with zeros around, {apart['zeros']} entries do not commute", apart["zeros"] > 0),
    )


@claim(
    "receptive-field",
    "A head's receptive field is always the full image (over the reals; in floating point sharp heads read one pixel).",
    "the self-attention's receptive field is always the full image.",
    HEADS,
)
def receptive_field() -> Judgement:
    """Every weight of a softmax is positive."""
    p = random_layer().attention_probabilities(torch.ones(1, 2, 6, dtype=torch.float64))
    return proved(
        by_steps("a softmax weight is positive, whatever the scores", _positive_steps),
        Check(f"the least of {p.numel()} weights of a random layer is {float(p.min()):.2g}", bool((p > 0).all())),
    )


def _positive_steps() -> list[ProofStep]:
    own, others = sympy.Symbol("s", real=True), sympy.Symbol("S", nonnegative=True)
    weight = sympy.exp(own) / (sympy.exp(own) + others)
    return [from_assumptions("e^s/(e^s + S) > 0", gt(weight, 0))]


@claim(
    "generalisation",
    "Multi-head self-attention generalises convolution: it expresses any as α → ∞, and more, as an example shows.",
    "The multi-head self-attention is a generalization of convolutional layers.",
    "blog, Figure 1",
)
def generalisation() -> Judgement:
    """Theorem 1, and a head that is not linear in its input."""
    once, twice = read_by_content(1), read_by_content(2)
    different = bool(sympy.Gt(twice, 2 * once))
    return proved(
        by_coq("theorem1"),
        Check(f"a head on the pixels 0 and 1 gives {once}, on 0 and 2 {twice}, more than twice that", different),
    )


def read_by_content(pixel: int) -> Any:
    """The exact value that the query at ``pixel`` reads from the pixels 0 and ``pixel`` with the score X_q X_k."""
    weight = sympy.exp(pixel * pixel)
    return pixel * weight / (weight + 1)


@claim(
    "content",
    "Attention can depend on the values of the pixels.",
    "can even be conditioned on the value of the input pixels",
    "blog, last paragraph but two",
)
def content() -> Judgement:
    """One exact example, and the layer on two inputs."""
    shares = [read_by_content(pixel) / pixel for pixel in (1, 2)]
    layer, x = random_layer(), torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        moved = float((layer.attention_probabilities(x) - layer.attention_probabilities(-x)).abs().max())
    return proved(
        Check(f"of the pixels 0 and x the share of x is {shares[0]} at x = 1 and {shares[1]} at x = 2",
              bool(sympy.Gt(shares[1], shares[0])), "exact example"),
        Check(f"a random layer: another input moves the attention by {moved:.2g}", moved > 0.01),
    )  # fmt: skip


@claim(
    "quadratic-cost",
    "The attention weights grow with the square of the image: T² a head.",
    "attention coefficients scale quadratically to image size",
    "talk, Challenger models",
)
def quadratic_cost() -> Judgement:
    """Decided by counting."""
    layer = pointwise_layer(positions=True)
    with torch.no_grad():
        counts = {
            t: layer.attention_probabilities(torch.ones(1, 2, t, dtype=torch.float64))[0, 0].numel() for t in (4, 8, 16)
        }
    listed = ", ".join(f"{count} for T = {t}" for t, count in counts.items())
    squares = all(count == t * t for t, count in counts.items())
    return proved(Check(f"a weight for every query and key: {listed}", squares, "counted"))
