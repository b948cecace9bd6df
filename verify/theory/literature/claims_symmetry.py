"""Claims about permutations and translations, the algebra of convolution, and what attention can do
beyond it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import sympy
import torch

from verify.theory.literature import equations
from verify.theory.literature.judgement import (
    Check,
    Judgement,
    by_coq,
    by_steps,
    claim,
    proved,
    refuted,
)
from verify.theory.literature.torch_layers import pointwise_layer
from verify.theory.symbolic import proofs_relative
from verify.theory.symbolic.proof import ProofStep, argued, from_assumptions, gt, identity
from verify.theory.symbolic.proof_algebra import linear
from verify.theory.symbolic.proof_positions import Setting
from verify.theory.symbolic.proofs_scores import indexed, integers, minus, plus, symbols

HEADS = "blog, Multi-Head Self-Attention Layer"


@claim(
    "permutation-equivariance",
    "Without positions, shuffling the tokens shuffles the scores alike.",
    r"$\mathbf{A}$ is *permutation equivariant* – shuffling the order of the tokens (rows) in $\mathbf{X}$ shuffles the "
    r"scores in $\mathbf{A}$.",
    "talk, Self-Attention",
)
def permutation_equivariance() -> Judgement:
    """Proved for any matrix Π in place of a permutation; the outputs are checked for a layer with
    content attention only.
    """
    tokens, d_in, d_k = sympy.symbols("T D_in D_k", integer=True, positive=True)
    x = sympy.MatrixSymbol("X", tokens, d_in)
    turn = sympy.MatrixSymbol("Pi", tokens, tokens)
    shuffled = content_scores(turn * x, d_k)
    scores = turn * content_scores(x, d_k) * turn.T
    moved = _largest_move(pointwise_layer(positions=False))
    return proved(
        Check(
            "A(Π X) = Π A(X) Πᵀ for A(X) = X W_qry W_keyᵀ Xᵀ",
            shuffled.doit() == scores.doit(),
            "sympy",
        ),
        Check(
            f"the outputs of a layer of content alone too: within {moved:.0e} for 20 permutations of 7 tokens",
            moved < 1e-12,
        ),
    )


def content_scores(x: Any, d_k: sympy.Symbol) -> Any:
    """X W_qry W_keyᵀ Xᵀ on matrix symbols: (T, D_in) → (T, T)."""
    w_qry, w_key = (sympy.MatrixSymbol(name, x.shape[1], d_k) for name in ("W_qry", "W_key"))
    return x * w_qry * w_key.T * x.T


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
    layer = pointwise_layer(positions=False)
    order = torch.tensor([3, 1, 6, 0, 5, 2, 4])
    x = torch.randn(1, 2, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        before = layer(x)
        after = layer(x[..., order])
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
    "With relative positions scores are translation, not permutation equivariant (on an unbounded or wrapped grid).",
    r"Attention scores are now *translation equivariant* rather than permutation equivariant.",
    "talk, Self-Attention",
)
def translation_equivariance() -> Judgement:
    """All four terms are unchanged when query, key and image move together."""
    positional = _largest_move(pointwise_layer(positions=True))
    return proved(
        Check(
            "A_{q+s, k+s} of the image moved by s is A_{q, k} with all four terms, for any r_δ and widths",
            all(after == before for after, before in proofs_relative.scores_moved_together()),
            "sympy; d ≤ 3",
        ),
        Check(
            f"with positions a layer does not commute with 20 permutations, by {positional:.2g}",
            positional > 0.01,
        ),
    )


@claim(
    "convolution-equivariance",
    "Convolution commutes with translations (on an unbounded or wrapped grid).",
    r"\text{Conv}(W, \mathcal{T}_\delta X) = \mathcal{T}_\delta \text{Conv}(W, X)",
    "talk, Motivation",
)
def convolution_equivariance() -> Judgement:
    """Proved symbolically."""
    return proved(
        by_steps(
            "output o + t of an image moved by t reads what output o read, for every pair of channels",
            _moved_steps,
            "d ≤ 3",
        )
    )


def _moved_steps() -> list[ProofStep]:
    """X'_i = X_{i−t}, so Y'_{o+t} = Σ_j X_{o+t+j−t} W_j."""
    x = indexed("X")
    w = indexed("W")
    a, b = sympy.symbols("a b", integer=True)
    sums = []
    for dims in (1, 2, 3):
        o, t, j, first, last = (integers(name, dims) for name in ("o", "t", "j", "first", "last"))
        box = list(zip(j, first, last, strict=True))
        moved = x[(*minus(plus(plus(o, t), j), t), a)]
        matrix = w[(*j, a, b)]
        sums.append(
            (sympy.Sum(moved * matrix, *box), sympy.Sum(x[(*plus(o, j), a)] * matrix, *box))
        )
    return [linear("sum_j X'_(o + t + j) W_j = sum_j X_(o + j) W_j", *sums)]


EVERYWHERE = (-sympy.oo, sympy.oo)


@claim(
    "convolution-associative",
    "Convolution with X_(n−i) is associative (on an unbounded or wrapped grid); with Eq. 8's X_(q+δ) it is not.",
    r"\text{Conv}(W', \text{Conv}(W, X)) = \text{Conv}(\text{Conv}(W', W), X)",
    "talk, Motivation",
)
def convolution_associative() -> Judgement:
    """Proved for kernels of finite support, with any number of channels."""
    return proved(
        by_steps(
            "with i + j = m, for kernels of finite support and any channels",
            _associative_steps,
            "d ≤ 3",
        ),
        _by_sign(lambda conv, v, w, x: (conv(v, conv(w, x)), conv(conv(v, w), x))),
    )


def _by_sign(law: Callable[..., tuple[Any, Any]]) -> Check:
    """A law for Conv(W, X)_n = Σ_i W_i X_{n−i}, and for Eq. 8's Σ_i W_i X_{n+i}, on integers on one
    wrapped axis.
    """
    v, w, x = equations.integers(1, 3, 5)

    def differing(sign: int) -> int:
        def conv(kernel: Any, image: Any) -> Any:
            return sum(tap * np.roll(image, -sign * i) for i, tap in enumerate(kernel))

        return int(np.not_equal(*law(conv, v, w, x)).sum())

    without = differing(-1)
    flipped = differing(1)
    finding = (
        f"of 5 wrapped pixels {without} differ with X_(n−i), {flipped} with the X_(q+δ) of Eq. 8"
    )
    return Check(finding, without == 0 and flipped > 0)


def _associative_steps() -> list[ProofStep]:
    """Σ_i W'_i (Σ_j W_j X_{n−i−j}) = Σ_m (Σ_i W'_i W_{m−i}) X_{n−m}: the inner sum moves by i,
    whose sum is outside of both.
    """
    outer = indexed("V")
    inner = indexed("W")
    x = indexed("X")
    a, b, c = sympy.symbols("a b c", integer=True)
    sums = []
    for dims in (1, 2, 3):
        n, i, j = (integers(name, dims) for name in ("n", "i", "j"))
        twice: Any = sympy.Sum(
            outer[(*i, c, b)] * inner[(*j, b, a)] * x[(*minus(minus(n, i), j), a)], *_all(j)
        )
        for at, by in zip(j, i, strict=True):
            twice = twice.change_index(at, at + by)
        once = sympy.Sum(
            outer[(*i, c, b)] * inner[(*minus(j, i), b, a)] * x[(*minus(n, j), a)], *_all(j)
        )
        sums.append((twice, once))
    return [
        linear(
            "Σ_j V_i W_j X_(n−i−j) = Σ_m V_i W_(m−i) X_(n−m), for every i and every pair of channels",
            *sums,
        ),
        argued("sums over finite supports and over channels may be exchanged", sums[0][0]),
    ]


def _all(indices: tuple[Any, ...]) -> list[tuple[Any, Any, Any]]:
    return [(index, *EVERYWHERE) for index in indices]


@claim(
    "convolution-commutative",
    "Convolution with X_(n−i) of one channel is commutative; with several channels, or Eq. 8's X_(q+δ), it is not.",
    r"\text{Conv}(\text{Conv}(W', W), X) = \text{Conv}(\text{Conv}(W, W'), X)",
    "talk, Motivation",
)
def convolution_commutative() -> Judgement:
    """Proved by reading one sum backwards; matrices do not commute, and a kernel of one tap is a
    matrix.
    """
    f, g = (sympy.Matrix(2, 2, symbols(name, 4)) for name in "fg")
    many = sum(entry != 0 for entry in (f * g - g * f).expand())
    return proved(
        by_steps("Σ_i V_i W_(n−i) = Σ_j W_j V_(n−j), with j = n − i", _commutative_steps, "d ≤ 3"),
        Check(f"two kernels of one tap, 2 → 2 channels: {many} of 4 entries differ", many > 0),
        _by_sign(lambda conv, v, w, x: (conv(conv(v, w), x), conv(conv(w, v), x))),
    )


def _commutative_steps() -> list[ProofStep]:
    v = indexed("V")
    w = indexed("W")
    sums = []
    for dims in (1, 2, 3):
        n = integers("n", dims)
        i = integers("i", dims)
        backwards: Any = sympy.Sum(v[i] * w[minus(n, i)], *_all(i))
        for at, end in zip(i, n, strict=True):
            backwards = backwards.change_index(at, end - at)
        sums.append((backwards, sympy.Sum(w[i] * v[minus(n, i)], *_all(i))))
    return [linear("one sum, read backwards", *sums)]


@claim(
    "convolution-fourier",
    "Convolution of a signal on a wrapped grid is diagonal in Fourier space.",
    "Diagonalized by the Fourier Transform",
    "talk, Motivation",
)
def convolution_fourier() -> Judgement:
    """Every wave is an eigenvector of every kernel, on one axis of any length; with zeros around it
    is none.
    """
    setting = Setting((3,), (8,), (1,))
    n = 8
    fourier = np.fft.fft(np.eye(n)) / np.sqrt(n)
    rest = {}
    for mode in ("circular", "zeros"):
        inside = (
            fourier
            @ np.tensordot([3, -1, 2], equations.read_by_taps(setting, mode), axes=1)
            @ fourier.conj().T
        )
        rest[mode] = float(np.abs(inside - np.diag(np.diag(inside))).max())
    finding = f"(3, −1, 2) on 8 pixels: up to {rest['circular']:.0e} off the diagonal, with zeros around {rest['zeros']:.2f}"
    return proved(
        by_steps("a kernel multiplies the wave e^(2πi·mx/n) by a number", _wave_steps, "one axis"),
        Check(finding, rest["circular"] < 1e-12 and rest["zeros"] > 0.1),
    )


def _wave_steps() -> list[ProofStep]:
    m, x, tau, first, last = sympy.symbols("m x tau a b", integer=True)
    n = sympy.Symbol("n", integer=True, positive=True)
    w = indexed("W")

    def wave(at: Any) -> Any:
        return sympy.exp(2 * sympy.pi * sympy.I * m * at / n)

    read = sympy.Sum(w[(tau,)] * sympy.expand(wave(x + tau)), (tau, first, last))
    return [
        identity("a wave is the same n pixels further", (sympy.simplify(wave(x + n)), wave(x))),
        linear(
            "Σ_τ W_τ wave(x + τ) = wave(x) Σ_τ W_τ wave(τ)",
            (read, wave(x) * sympy.Sum(w[(tau,)] * wave(tau), (tau, first, last))),
        ),
        argued(
            "the n waves are a basis: of two different ones the inner product is a geometric sum of value 0",
            wave(x),
        ),
    ]


receptive_field = claim(
    "receptive-field",
    "A head's receptive field is always the full image (over the reals; in floating point sharp heads read one pixel).",
    "the self-attention's receptive field is always the full image.",
    HEADS,
)(lambda: proved(by_steps("a softmax weight is positive, whatever the scores", _positive_steps)))


def _positive_steps() -> list[ProofStep]:
    own = sympy.Symbol("s", real=True)
    others = sympy.Symbol("S", nonnegative=True)
    weight = sympy.exp(own) / (sympy.exp(own) + others)
    return [from_assumptions("e^s/(e^s + S) > 0", gt(weight, 0))]


@claim(
    "generalisation",
    "Self-attention generalises convolution: on padded tokens it expresses any as α → ∞, and more, as an example shows.",
    "The multi-head self-attention is a generalization of convolutional layers.",
    "blog, Figure 1",
)
def generalisation() -> Judgement:
    """Theorem 1, and a head that is not affine in its input, as a convolution with a bias is."""
    never, once, twice = (read_by_content(pixel) for pixel in (0, 1, 2))
    different = never == 0 and bool(sympy.Gt(twice, 2 * once))
    theorem = by_coq("theorem1", "geometry_theorem1")
    finding = f"a head on the pixels 0 and 0 gives {never}, on 0 and 1 {once}, on 0 and 2 {twice}, more than twice that"
    return proved(
        Check(f"{theorem}; {finding}", theorem.holds and different, f"{theorem.by}; exact example")
    )


def read_by_content(pixel: int) -> Any:
    """The exact value that the query at ``pixel`` reads from the pixels 0 and ``pixel`` with the
    score X_q X_k.
    """
    weight = sympy.exp(pixel * pixel)
    return pixel * weight / (weight + 1)


@claim(
    "content",
    "Attention can depend on the values of the pixels.",
    "can even be conditioned on the value of the input pixels",
    "blog, last paragraph but two",
)
def content() -> Judgement:
    """One exact example."""
    shares = [read_by_content(pixel) / pixel for pixel in (1, 2)]
    return proved(
        Check(
            f"of the pixels 0 and x the share of x is {shares[0]} at x = 1 and {shares[1]} at x = 2",
            bool(sympy.Gt(shares[1], shares[0])),
            "exact example",
        ),
    )


@claim(
    "quadratic-cost",
    "The attention weights grow with the square of the image: T² a head.",
    "attention coefficients scale quadratically to image size",
    "talk, Challenger models",
)
def quadratic_cost() -> Judgement:
    """One weight for every query and key; counted in a layer that runs densely."""
    layer = pointwise_layer(positions=True)
    with torch.no_grad():
        counts = {
            t: layer.attention_probabilities(torch.ones(1, 2, t, dtype=torch.float64))[0, 0].numel()
            for t in (4, 8, 16)
        }
    listed = ", ".join(f"{count} for T = {t}" for t, count in counts.items())
    squares = all(count == t * t for t, count in counts.items())
    return proved(Check(f"a weight for every query and key: {listed}", squares, "counted"))
