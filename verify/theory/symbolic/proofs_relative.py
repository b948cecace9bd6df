"""Proof steps from absolute to relative encodings (Eq. 4 → 5 → 6), which separate identities from
new parametrisations.

As in Transformer-XL, Ŵ_key r_δ replaces the key's position W_keyᵀ P_kᵀ, and uᵀ and vᵀ replace the
query's position P_q W_qry in the third and the fourth term.  These replacements are not identities,
and a step says so.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import sympy

from construct.encoding import quadratic
from verify.theory.symbolic.proof import ProofStep, identity
from verify.theory.symbolic.proof_algebra import ranks, substitution
from verify.theory.symbolic.proofs_scores import alpha, integers, minus, norm2, plus, score, symbols

_DIMS = (1, 2, 3)
D_IN, D_K, D_P = sympy.symbols("D_in D_k D_p", integer=True, positive=True)


def relative_steps() -> list[ProofStep]:
    """Eq. 4 → 5 → 6, then Eq. 6 in the construction."""
    return [*_expansion_steps(), *_no_identity_steps(), *construction_steps()]


def _expansion_steps() -> list[ProofStep]:
    """The expansion, with D_in = D_k = 2 and D_p = 3."""
    x_q, p_q, x_k, p_k, u, v, at_q, third, fourth = (
        sympy.Matrix([symbols(name, 2)]) for name in ("x", "p", "y", "s", "u", "v", "a", "c", "e")
    )
    w_qry, w_key = (sympy.Matrix(2, 2, symbols(name, 4)) for name in ("Q", "K"))
    w_pos = sympy.Matrix(2, 3, symbols("W", 6))
    r = sympy.Matrix(symbols("r", 3))
    at_k = sympy.Matrix(symbols("b", 2))

    def put(*pairs: tuple[Any, Any]) -> list[tuple[Any, Any]]:
        return [
            entries for old, new in pairs for entries in zip(old.flat(), new.flat(), strict=True)
        ]

    def four(position_3: sympy.Matrix, position_4: sympy.Matrix, key: sympy.Matrix) -> list[Any]:
        query = x_q * w_qry
        content = w_key.T * x_k.T
        return [
            (query * content)[0],
            (query * key)[0],
            (position_3 * content)[0],
            (position_4 * key)[0],
        ]

    eq4 = ((x_q + p_q) * w_qry * w_key.T * (x_k + p_k).T)[0]
    eq5 = [
        (left * w_qry * w_key.T * right.T)[0]
        for left, right in ((x_q, x_k), (x_q, p_k), (p_q, x_k), (p_q, p_k))
    ]
    named, apart, eq6 = (
        sympy.Add(*four(*parts))
        for parts in ((at_q, at_q, at_k), (third, fourth, at_k), (u, v, w_pos * r))
    )
    return [
        identity(
            "(X_q + P_q) W_qry W_key^T (X_k + P_k)^T is Eq. 5, here D_in = D_k = 2", (eq4, sum(eq5))
        ),
        identity(
            "of all P Eq. 5 has only a = P_q W_qry (terms 3, 4) and b = W_key^T P_k^T",
            (sum(eq5), named.subs(put((at_q, p_q * w_qry), (at_k, w_key.T * p_k.T)))),
            (named, apart.subs(put((third, at_q), (fourth, at_q)))),
        ),
        substitution(
            "not an identity but new parameters: b := Ŵ_key r_δ, a := u^T, v^T; Eq. 6",
            apart,
            put((at_k, w_pos * r), (third, u), (fourth, v)),
            eq6,
        ),
    ]


def _no_identity_steps() -> list[ProofStep]:
    """Eq. 6 is more general than Eq. 5; the quadratic encoding has both forms, the latter with d +
    2 features.
    """
    rows = []
    features = []
    for dims in _DIMS:
        keys = list(product(range(3), repeat=dims))
        tau = integers("tau", dims)
        one = sympy.Integer(1)
        table = sympy.Matrix([[score(minus(k, q), tau) for k in keys] for q in keys]).subs(
            dict.fromkeys(tau, 1)
        )
        rows.append((table.subs(alpha, 1), dims + 2))
        q = integers("q", dims)
        k = integers("k", dims)
        p_q, p_k = (sympy.Matrix([(norm2(x), *x, one)]) for x in (q, k))
        features.append((score(minus(k, q), tau), (p_q * _bilinear(tau) * p_k.T)[0]))
    return [
        ranks(
            "on a 3^d grid, τ = (1, …, 1), v·r_δ has rank d + 2: no P_q M P_k^T if D_in < d + 2",
            *rows,
        ),
        identity(
            "but v·r_δ = P_q M P_k^T, M = W_qry W_key^T, for all q, k, τ if P_p = (‖p‖², p, 1)",
            *features,
        ),
    ]


def construction_steps() -> list[ProofStep]:
    """Theorem 1's parameters in Eq. 6, with one more key channel than D_p requires."""
    reduced = []
    for dims in _DIMS:
        delta = integers("delta", dims)
        tau = integers("tau", dims)
        r = sympy.Matrix(quadratic.r(delta))
        d_p = dims + 1
        w_pos = sympy.Matrix.vstack(sympy.eye(d_p), sympy.zeros(1, d_p))
        x_q = sympy.Matrix([symbols("x", 2)])
        x_k = sympy.Matrix([symbols("y", 2)])
        nothing = sympy.zeros(2, d_p + 1)
        u = sympy.zeros(1, d_p + 1)
        v = sympy.Matrix([[*quadratic.v(tau, alpha), 0]])
        eq6 = (
            x_q * nothing * nothing.T * x_k.T
            + x_q * nothing * w_pos * r
            + u * nothing.T * x_k.T
            + v * w_pos * r
        )
        reduced.append((eq6[0], -alpha * (norm2(minus(delta, tau)) - norm2(tau))))
    return [
        identity(
            "W_qry = W_key = 0, u = 0, Ŵ_key = [I; 0]: Eq. 6 is −α(‖δ − τ‖² − ‖τ‖²) for all δ, τ",
            *reduced,
        ),
        identity("which for all q, k and s is the same at q + s and k + s", *moved_together()),
    ]


def moved_together(numbers: Callable[[str, int], Any] = integers) -> list[tuple[Any, Any]]:
    """The scores before and after query and key move by s, with ``numbers`` for τ, in one, two and
    three dimensions.
    """
    pairs = []
    for dims in _DIMS:
        tau, (q, k, s) = numbers("tau", dims), (integers(name, dims) for name in ("q", "k", "s"))
        pairs.append((score(minus(plus(k, s), plus(q, s)), tau), score(minus(k, q), tau)))
    return pairs


def scores_moved_together() -> list[tuple[Any, Any]]:
    """A_{q+s, k+s} of the moved image X'_p = X_{p−s}, and A_{q, k} of X, with all four terms, for
    d = 1, 2, 3.
    """
    pairs = []
    for dims in _DIMS:
        q, k, s = (integers(name, dims) for name in ("q", "k", "s"))
        moved = eq_6(plus(q, s), plus(k, s), lambda p, s=s: image_token(minus(p, s)))
        pairs.append((moved, eq_6(q, k, image_token)))
    return pairs


def eq_6(
    query: Sequence[Any], key: Sequence[Any], token: Callable[[Sequence[Any]], sympy.MatrixExpr]
) -> Any:
    """All four terms of Eq. 6 on matrix symbols of any width, for any function r_δ; ``token`` gives
    the row X_p of a position.
    """
    r = sympy.MatrixSymbol(f"r_{minus(key, query)}", D_P, 1)
    w_qry, w_key = (sympy.MatrixSymbol(name, D_IN, D_K) for name in ("W_qry", "W_key"))
    u, v = (sympy.MatrixSymbol(name, 1, D_K) for name in "uv")
    q = token(query) * w_qry
    k = w_key.T * token(key).T
    position = sympy.MatrixSymbol("W_pos", D_K, D_P) * r
    return q * k + q * position + u * k + v * position


def image_token(p: Sequence[Any]) -> sympy.MatrixSymbol:
    """X_p, named by the coordinates of p."""
    return sympy.MatrixSymbol(f"X_{tuple(p)}", 1, D_IN)


def _bilinear(tau: Sequence[Any]) -> sympy.Matrix:
    """M of −α‖k − q‖² + 2α τ·(k − q) = P_q M P_kᵀ with P_p = (‖p‖², p, 1)."""
    dims = len(tau)
    m = sympy.zeros(dims + 2)
    m[0, dims + 1] = m[dims + 1, 0] = -alpha
    for i, t in enumerate(tau, 1):
        m[i, i] = 2 * alpha
        m[i, dims + 1], m[dims + 1, i] = -2 * alpha * t, 2 * alpha * t
    return m
