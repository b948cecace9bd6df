"""Theorem 1 as three distinct statements (in the limit, at finite α, in floating point), its lemmas, and other dimensions."""

from itertools import product
from typing import Any

import numpy as np
import sympy
import torch

from verify.argument.certification import certify
from verify.rounding.leakage import leakage_on_lattice
from verify.samples.comparison import compare
from verify.theory.literature import equations
from verify.theory.literature.equations import Setting, Vector
from verify.theory.literature.judgement import Check, Judgement, by_proof, by_steps, claim, corrected, proved, refuted
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import lemmas, proof_positions, proofs_lemma2
from verify.theory.symbolic.proof import ProofStep, from_assumptions, identity
from verify.theory.symbolic.proofs_scores import alpha as symbolic_alpha
from verify.theory.symbolic.proofs_scores import symbols
from verify.verdict import from_above

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def reads_the_same(setting: Setting, mode: str = "zeros", heads: list[np.ndarray] | None = None) -> Check:
    """One sharp head a tap reads what that tap reads, so both agree for every input and kernel on this grid."""
    read = equations.read_by_heads(setting, equations.hard_heads(setting) if heads is None else heads)
    wanted = equations.read_by_taps(setting, mode)
    same = read.shape == wanted.shape and bool(np.equal(read, wanted).all())
    return Check(
        f"{len(read)} sharp heads read what the {len(wanted)} taps read ({setting}; {wanted.size} entries)", same
    )


def certified(conv: torch.nn.Module, layer: torch.nn.Module, grid: Vector, what: str) -> Check:
    """The certificate for all inputs says PROVED."""
    certificate = certify(conv, layer, grid=grid)
    bound = f"difference ≤ {float(certificate.bound.max()):.2g} for every |x| ≤ 1"
    return Check(f"{what}: certificate {certificate.verdict.name}, {bound}", certificate.verdict.name == "PROVED")


@claim(
    "theorem-limit",
    "paper, Theorem 1",
    "In the limit of infinite sharpness, K² heads with the quadratic relative encoding compute any K×K convolution.",
)
def theorem_limit() -> Judgement:
    """Symbolically, and exactly on grids against the oracle."""
    return proved(
        by_proof(lambda: lemmas.prove_theorem(2)),
        reads_the_same(Setting((3, 3), (3, 4), (1, 1))),
        reads_the_same(Setting((5, 5), (4, 4), (2, 2))),
    )


@claim(
    "theorem-finite",
    "paper, Theorem 1, read over the real numbers at a finite sharpness",
    "At some finite sharpness the layer of the construction equals the convolution exactly.",
)
def theorem_finite() -> Judgement:
    """A neighbour's weight is positive at every α; the difference is at most the leakage."""
    setting, identity, alpha = Setting((3, 3), (3, 3), (1, 1)), np.zeros((1, 1, 3, 3), dtype=int), 1024
    identity[0, 0, 1, 1] = 1
    beside = np.zeros((1, 3, 3), dtype=int)
    beside[0, 1, 2] = 1
    middle, token = 4, setting.tokens(beside)[:, 0].argmax()
    scores = proof_positions.quadratic_scores(setting.queries, setting.keys, (0, 0), alpha)
    leaked = equations.enclosed_softmax(scores[middle])[token]
    convolved = int(setting.convolution(identity)(beside[None]).reshape(-1)[middle])
    positive = bool(leaked.a > 0)
    least = f"10^{float((equations.iv.log(leaked) / equations.iv.log(10)).a):.1f}" if positive else "0"
    return refuted(
        by_steps("a softmax weight is positive at every α", _positive_steps),
        Check(
            f"the identity kernel at α = {alpha}, next to a pixel of 1: the layer gives {least}, the convolution {convolved}",
            positive and convolved == 0,
        ),
        instead=corrected(
            "the difference is at most 2·leakage·max|X|·Σ|W|, with leakage ≤ 1 − ϑ(α)^−d on a grid of any size",
            by_steps("a head that leaks ε moves by at most 2εM where |X| ≤ M", _moving_steps),
            *(_within_bound(alpha) for alpha in (1, 2, 4)),
        ),
    )


def _positive_steps() -> list[ProofStep]:
    gap, others = sympy.Symbol("n", integer=True, positive=True), sympy.Symbol("S", nonnegative=True)
    weight = sympy.exp(-symbolic_alpha * gap) / (1 + sympy.exp(-symbolic_alpha * gap) + others)
    return [from_assumptions("e^(-alpha n)/(1 + e^(-alpha n) + S) > 0", sympy.Gt(weight, 0, evaluate=False))]


def _moving_steps() -> list[ProofStep]:
    """Of 3 keys beside the target, with X_k = −M + l_k and X_target = M − h, the case that moves the head down."""
    p, low = symbols("p", 3, nonnegative=True), symbols("l", 3, nonnegative=True)
    bound, high = sympy.symbols("M h", nonnegative=True)
    target, others = bound - high, [x - bound for x in low]
    read = (1 - sum(p)) * target + sum(a * x for a, x in zip(p, others, strict=True))
    moved = sum(a * (target - x) for a, x in zip(p, others, strict=True))
    return [
        identity("the head moves by sum_k p_k (X_target - X_k)", (target - read, moved)),
        from_assumptions("at most 2 M sum_k p_k", sympy.Le(moved, 2 * bound * sum(p), evaluate=False)),
    ]


def _within_bound(alpha: int) -> Check:
    """The worst input for one head, and random signs for nine, beside the bound."""
    setting = Setting((3, 3), (7, 7), (1, 1))
    heads = [
        equations.softmax(proof_positions.quadratic_scores(setting.queries, setting.keys, tau, alpha).astype(float))
        for tau in setting.shifts
    ]
    bound = 2 * leakage_on_lattice(alpha, 2)
    worst = 1.0 - 2.0 * (setting.queries[24] == setting.keys).all(axis=1)  # −1 at the target, 1 elsewhere
    one = abs(equations.mix([heads[4]], worst[:, None], [np.eye(1)])[24, 0] + 1)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((2, 3, 3, 3))
    x = rng.choice([-1.0, 1.0], (3, 7, 7))
    soft = equations.mix(heads, setting.tokens(x), equations.tap_matrices(weight))
    exact = setting.convolution(weight)(x[None]).reshape(2, -1).T
    many = (np.abs(soft - exact).max(axis=0) / np.abs(weight).sum(axis=(1, 2, 3))).max()
    slack = 1 + 1e-9  # far above float64's rounding here, far below the bound's own slack
    finding = f"α = {alpha}: {one:.3g} on the worst input of a head, {many:.3g}·Σ|W| on random signs, bound {bound:.3g}"
    return Check(finding, one > bound / 2 and one <= bound * slack and many <= bound * slack)


def _certified_in_every_format() -> Check:
    """Certificates of random kernels in every format, dimension and kind of geometry."""
    kinds: tuple[dict[str, Any], ...] = (
        {"padding": 1},
        {"stride": 2, "padding": 1, "padding_mode": "replicate"},
        {"dilation": 2, "padding": 2, "padding_mode": "circular"},
    )
    failed, relative = [], {}
    kernels = ((3,), (3, 3), (2, 2, 2))
    for (row, dtype), (column, kernel) in product(
        enumerate(DTYPES), enumerate(kernels)
    ):  # all pairs of two of the three
        conv = small_convolution((2, 3), kernel, dtype=dtype, **kinds[(row + column) % len(kinds)])
        certificate = certify(conv, attention_for(conv), grid=(5, 4, 3)[: len(kernel)])
        failed += [certificate] if certificate.verdict.name != "PROVED" else []
        largest = conv.weight.detach().double().abs().flatten(1).sum(1).numpy()
        name = str(dtype).removeprefix("torch.")
        relative[name] = max(relative.get(name, 0.0), float((certificate.bound / largest).max()))
    count = len(DTYPES) * len(kernels)
    listed = ", ".join(f"{from_above(most)} in {name}" for name, most in relative.items())
    return Check(
        f"{count - len(failed)} of {count} certificates of random kernels (3, 3×3, 2×2×2; padded, strided, dilated; "
        f"2 to 3 channels; every |x| ≤ 1 on grids up to 5, 5×4, 5×4×3) are PROVED, with differences of at most Σ|W| times {listed}",
        not failed,
    )


@claim(
    "theorem-ieee",
    "paper, remark on finite precision after Theorem 1's proof",
    "In floating-point arithmetic a constant sharpness is enough: the layer is the convolution, up to the order of summation.",
)
def theorem_ieee() -> Judgement:
    """Certificates for some layers, weights exactly 0 or 1, and integers bit for bit, all on the layer that runs.

    Each certificate is a theorem about one kernel; the certifier repeats its six steps for any other.
    """
    conv = small_convolution((2, 3), (3, 3), padding=1)
    layer = attention_for(conv)
    x = torch.randn((2, 2, 6, 5), generator=torch.Generator().manual_seed(1))
    p = layer.attention_probabilities(x)
    hard = float(((p == 0) | (p == 1)).double().mean())
    spread = [float(torch.softmax(torch.tensor([0, -1024], dtype=dtype), 0)[1]) for dtype in DTYPES]
    whole = small_convolution((2, 3), (3, 3), padding=1)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.round_()
    exact = compare(whole, attention_for(whole), x.mul(4).round())
    return proved(
        _certified_in_every_format(),
        certified(conv, layer, (10**6, 10**6), "on grids up to a million a side, float32"),
        Check(f"{hard:.0%} of its {p.numel()} weights are exactly 0 or 1", hard == 1),
        Check(f"a neighbour at α = 1024 weighs {max(spread):g} in all four formats", not any(spread)),
        Check(f"on integers the difference is {exact.max_abs:g}", exact.max_abs == 0),
    )


@claim(
    "lemma-1",
    "paper, Lemma 1",
    """If every head attends exactly one shift, by a bijection of the heads onto the kernel's shifts, then for any kernel there
    are value and output matrices with which the layer is the convolution.""",
)
def lemma_1() -> Judgement:
    """Symbolically; and three bijections on random integers, the attention taken as given."""
    setting, differing = Setting((3, 3), (5, 4), (1, 1)), 0
    weight, bias, x = equations.integers(1, 3, 2, 3, 3), equations.integers(2, 3), equations.integers(3, 2, 5, 4)
    wanted = setting.convolution(weight, bias)(x[None]).reshape(3, -1).T
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(9)
        heads = equations.given_heads(setting, [setting.shifts[j] for j in order])
        taps = equations.tap_matrices(weight)
        output = equations.mix(heads, setting.tokens(x), [taps[j] for j in order], bias)
        differing += int(np.not_equal(output, wanted).sum())
    return proved(
        by_proof(lambda: lemmas.prove_lemma1(2)),
        reads_the_same(setting, heads=equations.given_heads(setting, setting.shifts)),
        Check(f"3 bijections on random integers: {differing} of {3 * wanted.size} outputs differ", differing == 0),
    )


@claim(
    "lemma-2",
    "paper, Lemma 2",
    """For the quadratic encoding, every shift and every query, the softmax tends to 1 on the key at that shift and to 0 on all
    others as the sharpness grows.""",
)
def lemma_2() -> Judgement:
    """Symbolically; and the exact limit on a grid, for every shift that stays on it."""
    setting = Setting((1, 1), (4, 4))
    keys, wrong, count = setting.keys, 0, 0
    for target in keys:
        for query in keys:
            limit = equations.sharp(proof_positions.quadratic_scores(query[None], keys, tuple(target - query)))
            wrong += int((limit[0] != (keys == target).all(axis=1)).sum())
            count += len(keys)
    return proved(
        by_proof(lemmas.prove_lemma2_any_length),
        Check(f"{wrong} of {count} limits on a 4×4 grid are not one-hot at query + τ", wrong == 0),
    )


@claim(
    "any-dimension",
    "talk, the extension to K dimensions",
    "The construction works in any number d of spatial dimensions, with an encoding of d + 1 components.",
)
def any_dimension() -> Judgement:
    """Symbolically for vectors of any length; and by the oracle in one to four dimensions."""
    settings = (
        Setting((3,), (5,), (1,)),
        Setting((3, 2), (3, 4), (1, 0)),
        Setting((2, 3, 2), (3, 3, 2), (0, 1, 1)),
        Setting((2, 2, 3, 2), (3, 2, 3, 2), (0, 0, 1, 1)),
    )
    lengths = [proof_positions.code_length(setting.dims) for setting in settings]
    return proved(
        by_proof(lemmas.prove_lemma2_any_length),
        Check(f"D_p is {lengths} for d = 1, 2, 3, 4", lengths == [2, 3, 4, 5]),
        *map(reads_the_same, settings),
    )


@claim(
    "one-dimension",
    "paper, remark on the one-dimensional case",
    "For sequences such as text, K heads and an encoding of only two components compute any convolution of width K.",
)
def one_dimension() -> Judgement:
    """The same theorem with d = 1."""
    conv = small_convolution((3, 2), (5,), padding=2)
    layer = attention_for(conv)
    return proved(
        by_steps("Lemma 2 with d = 1", lambda: [*proofs_lemma2.score_steps(1), *proofs_lemma2.gap_steps(1)]),
        Check(
            f"D_p = {layer.w_key_pos.shape[2]}, {layer.heads} heads", layer.w_key_pos.shape[2] == 2 and layer.heads == 5
        ),
        reads_the_same(Setting((5,), (7,), (2,))),
        certified(conv, layer, (12,), "width 5"),
    )


CLAIMS = (
    theorem_limit,
    theorem_finite,
    theorem_ieee,
    lemma_1,
    lemma_2,
    any_dimension,
    one_dimension,
)
