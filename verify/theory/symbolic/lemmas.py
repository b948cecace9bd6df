"""``verify.prove_lemma1``, ``prove_lemma2``, ``prove_theorem`` and more proofs by sympy.

The encoding is the code that runs: sympy calls the functions of ``construct.encoding.quadratic`` on
symbols, at call time, and reasons about the results.  Break a sign there and the proofs that rest
on it raise `ProofFailed`.  Shifts, taps and Eq. 3 are restated here; tests and certificates compare
them with the code.

Each step is discharged by sympy, cited from ``verify/coq`` (what a headline theorem there states is
not repeated) or *argued*; a proof counts all three.  The steps are in ``proofs_*.py``.  Every
function here raises `ProofFailed` if a step does not hold, and ValueError if ``dims``, the number
of spatial dimensions, is not an integer from 1 to ``MOST_DIMS``.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import index

from verify.theory.symbolic.proof import Proof
from verify.theory.symbolic.proofs_encodings import absolute_steps, parabola_steps
from verify.theory.symbolic.proofs_leakage import off_lattice_steps, on_lattice_steps
from verify.theory.symbolic.proofs_lemma1 import lemma1_steps
from verify.theory.symbolic.proofs_lemma2 import (
    gap_steps,
    score_steps,
)
from verify.theory.symbolic.proofs_relative import relative_steps
from verify.theory.symbolic.proofs_theorem import theorem_steps

MOST_DIMS = 62
"""The most dimensions of a convolution that exists: its kernel has d + 2 axes, numpy's arrays have
64.
"""


def prove_lemma1(dims: int) -> Proof:
    """Prove Lemma 1: hard attention given by any bijection from heads to shifts equals the
    convolution.

    One-hot attention is the hypothesis.  Kernel, bias and every token of the padded grid are
    symbols; with W_val^h W_out^h the tap of head h, b + Σ_h P^h X W_val^h W_out^h is compared with
    the definition entry by entry on small grids; for all grids and heads the step cites Coq.

    Args:
        dims: the number d of spatial dimensions, from 1 to 62.

    Returns:
        The proof, its steps, how each was discharged, and the expressions.

    Raises:
        ValueError: dims is not an integer from 1 to 62.
        ProofFailed: a step does not hold.

    >>> import verify
    >>> print(str(verify.prove_lemma1(dims=1)).splitlines()[-1])
    6 steps by sympy, 1 by Coq, 0 argued
    """
    dims = _checked(dims)
    claim = (
        f"Lemma 1 (d = {dims}): for all kernels W_j, biases and inputs, strides and dilations, heads that each attend "
        "the one key at query + τ_j, in any order, compute the convolution."
    )
    return Proof(claim, tuple(lemma1_steps(dims)))


def prove_lemma2(dims: int) -> Proof:
    """Prove Lemma 2 for the code's encoding in d = dims dimensions, for every integer shift τ and
    every α > 0.

    Lemma 2: v·r_δ = −α(‖δ−τ‖² − ‖τ‖²), so among integer shifts the score has its only maximum at
    δ = τ, with a gap of exactly α, and as α → ∞ the softmax over the keys puts weight 1 on the key
    at q + τ.

    Args:
        dims: the number d of spatial dimensions, from 1 to 62.

    Returns:
        The proof, its steps, how each was discharged, and the expressions.

    Raises:
        ValueError: dims is not an integer from 1 to 62.
        ProofFailed: a step does not hold for the encoding as it is coded.

    >>> import verify
    >>> print(verify.prove_lemma2(dims=1).steps[0])
    [identity] v·r_δ = −α(‖δ − τ‖² − ‖τ‖²) for all δ and τ
        -alpha*delta_1**2 + 2*alpha*delta_1*tau_1 = -alpha*(-tau_1**2 + (delta_1 - tau_1)**2)
    """
    dims = _checked(dims)
    claim = (
        f"Lemma 2 (d = {dims}): for all integer shifts τ, on all grids, attention with the code's r and v tends to "
        "one-hot on the key at query + τ as α grows."
    )
    return Proof(claim, (*score_steps(dims), *gap_steps(dims)))


def prove_theorem(dims: int) -> Proof:
    """Prove Theorem 1 by composition: Lemma 2's steps, then Lemma 1 with the attention that they
    yield.

    On a small grid, sympy computes the limits of the softmax of the code's scores, and these are
    the P^h of the layer compared with the convolution.  The error at finite α, at most
    2ε·max|X|·Σ|W| where heads leak ε, is cited from Coq.

    Args:
        dims: the number d of spatial dimensions, from 1 to 62.

    Raises:
        ValueError: dims is not an integer from 1 to 62.
        ProofFailed: a step does not hold for the encoding as it is coded.

    >>> import verify
    >>> proof = verify.prove_theorem(dims=1)
    >>> proof.discharged, proof.argued
    (7, 0)
    """
    dims = _checked(dims)
    claim = (
        f"Theorem 1 (d = {dims}): for all kernels, biases and inputs, multi-head self-attention with the code's r and v "
        "and one head a tap tends to the convolution as α grows."
    )
    attended = Proof(
        "for all grids and heads j, attention tends to one-hot on query + τ_j as α grows",
        prove_lemma2(dims).steps,
        name="Lemma 2",
    )
    return Proof(claim, (attended, *theorem_steps(dims)))


def prove_leakage_on_lattice() -> Proof:
    """Prove the leakage of a head that looks at an integer shift: at most 1 − ϑ(α)^{−d}, on any
    grid (d = 1, 2, 3).

    This includes the tail bound of ``verify.rounding.leakage`` and the tolerance by which
    ``construct.encoding.sharpness`` sets α.
    """
    claim = (
        "Leakage on the lattice: for all grids and integer shifts τ, at most 1 − ϑ^(−d) of the weight leaks past the key at "
        "query + τ, ϑ = 1 + 2Σ_{n≥1} e^(−αn²)."
    )
    return Proof(claim, tuple(on_lattice_steps()))


def prove_leakage_off_lattice() -> Proof:
    """Prove the leakage of a head at offset f = τ − round(τ) from its nearest key, on any grid with
    that key (d = 1, 2, 3).

    The gap is α(1 − 2 max|f_i|), the leakage at most 1 − Π_i 1/(1 + s(α, f_i)); at f = ½ it stays ½
    for every α, if both nearest keys are on the grid.
    """
    claim = (
        "Leakage off the lattice: for all real τ = t + f, t the nearest key, at most 1 − Π_i 1/(1 + s(f_i)) leaks past it, "
        "s(f) = Σ_{n≥1} (e^(−α(n² − 2nf)) + e^(−α(n² + 2nf))); where |f| = 1/2 and both nearest keys are on the grid, "
        "at least half does."
    )
    return Proof(claim, tuple(off_lattice_steps()))


def prove_relative_from_absolute() -> Proof:
    """Derive the relative encoding from the absolute one, Eq. 4 → Eq. 5 → Eq. 6, and say which
    steps are identities.
    """
    claim = (
        "From absolute to relative (Eq. 4, 5, 6): four terms by an identity, relative positions by substitution, and what the "
        "construction keeps of Eq. 6 is Lemma 2's score; matrices for d = 1, 2, 3."
    )
    return Proof(claim, tuple(relative_steps()))


def prove_absolute_encoding(dims: int) -> Proof:
    """Prove that a dot product of d + 1 positional features of query and key has the softmax of
    Lemma 2.
    """
    dims = _checked(dims)
    claim = (
        f"Absolute encoding (d = {dims}): for all q and τ, α(2(q + τ)·k − ‖k‖²), a dot product of d + 1 features, has "
        "the softmax over the keys k of −α‖k − q − τ‖²."
    )
    return Proof(claim, tuple(absolute_steps(dims)))


def prove_parabola(dims: int) -> Proof:
    """Prove that D_p = 2 suffices: a mixed radix numbers the shifts of a bounded box, and Lemma 2
    in 1-D applies to the numbers.
    """
    dims = _checked(dims)
    claim = (
        f"The parabola (d = {dims}): for all shifts of a box of sides m_i, numbered by the code's n(δ), D_p = 2 is "
        "enough: r = (n², n), v = −α(1, −2n(τ))."
    )
    return Proof(claim, tuple(parabola_steps(dims)))


def all_proofs(dims: Sequence[int] = (1, 2, 3)) -> Iterator[Proof]:
    """Every proof in the order of the argument, computed lazily; those that take a dimension, for
    each of ``dims``.
    """
    if not dims:
        raise ValueError("dims must hold at least one number of dimensions")
    numbers = [_checked(number) for number in dims]

    def each(prove: Callable[[int], Proof]) -> list[Callable[[], Proof]]:
        return [partial(prove, d) for d in numbers]

    proofs = [
        *each(prove_lemma1),
        *each(prove_lemma2),
        *each(prove_theorem),
        prove_leakage_on_lattice,
        prove_leakage_off_lattice,
        prove_relative_from_absolute,
        *each(prove_absolute_encoding),
        *each(prove_parabola),
    ]
    return (prove() for prove in proofs)


def _checked(dims: int) -> int:
    if isinstance(dims, bool) or not hasattr(dims, "__index__") or index(dims) < 1:
        raise ValueError(f"dims must be an integer of at least 1, got {dims!r}")
    if index(dims) > MOST_DIMS:
        raise ValueError(
            f"dims must be at most {MOST_DIMS}, as an array has at most 64 axes, got {dims}"
        )
    return index(dims)
