"""Our additions: our own results, each with the source's sentence that it extends but does not
refute.
"""

from fractions import Fraction

import sympy
import torch

from verify.theory.literature import equations
from verify.theory.literature.claims_theorem import YIELDS
from verify.theory.literature.judgement import (
    Check,
    Judgement,
    added,
    by_coq,
    by_proof,
    by_steps,
    checked,
    proved,
)
from verify.theory.literature.shared_checks import certified
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import lemmas, proof_positions
from verify.theory.symbolic.proof import ProofStep, identity


@added(
    "finite-never-exact",
    "At finite α, with a token that is no tap, Theorem 1's layer meets no kernel but 0; where all tokens are taps, some.",
    YIELDS,
    "talk, Lemma 2",
)
def finite_never_exact() -> Judgement:
    """Proved in Coq for any encoding; ``exact_by_accident`` says that the token that is no tap is
    needed.
    """
    return proved(by_coq("never_exact", "exact_by_accident"))


finite_error = added(
    "finite-error",
    "At finite α the layer is off by at most 2·leak·max|X|·Σ|W|; leak ≤ 1 − ϑ(α)^−d ≤ 2d·e^−α on a grid of any size.",
    r"Although the proof requires $\alpha \rightarrow \infty$ to satisfy the assumption (9) of Lemma 1",
    "talk, Lemma 2: Summary",
)(lambda: proved(by_coq("theorem1_finite", "leak_theta", "leak_closed")))


patches = added(
    "patches",
    "Over patches of P^d pixels 3^d heads are enough for every odd kernel up to 2P + 1 that keeps the size.",
)(lambda: proved(by_coq("patches_conv", "patches_fit", "three_taps")))


null_token = added(
    "null-token",
    "Without padding tokens one null token, of value 0 and scored α/2 below the target, is zero padding as α → ∞.",
)(lambda: proved(by_coq("null_token", "null_token_count", "null_token_limit")))


sparse_attention = added(
    "sparsemax",
    "With sparsemax for softmax the layer is the convolution over the reals from α = 1 on.",
    r"Although the proof requires $\alpha \rightarrow \infty$ to satisfy the assumption (9) of Lemma 1",
    "talk, Lemma 2: Summary",
)(lambda: proved(by_coq("sparsemax_one_hot", "lemma1")))


encodings_in_use = added(
    "encodings-in-use",
    "Sharp RoPE has any 1-D kernel on images within its slowest wave, tables any in the window; ALiBi none of 2 taps.",
)(
    lambda: proved(
        by_coq("cosine_score", "rotary_product", "rotary_finite", "gap_finite"),
        by_coq("table_gap", "table_same", "alibi_one_tap", "causal_targets"),
    )
)


@added(
    "rounding-alone",
    "In floating point, where exp returns 0 at minus the scores' gap, layer and convolution differ by rounding alone.",
    r"finite precision arithmetic performs hard attention with sufficiently large enough $\alpha$",
    "talk, Lemma 2: Summary",
)
def rounding_alone() -> Judgement:
    """Proved in Coq; and the actual layer has a certificate in every format."""
    kinds = {
        torch.float16: {"padding": 1},
        torch.bfloat16: {"stride": 2, "padding": 1, "padding_mode": "replicate"},
        torch.float32: {"dilation": 2, "padding": 2, "padding_mode": "circular"},
        torch.float64: {},
    }
    convs = (
        small_convolution((2, 3), (3, 3), dtype=dtype, **options)
        for dtype, options in kinds.items()
    )
    return proved(
        by_coq("sharp_layer_rounding", "weights_first_sharp", "one_sum_rounding"),
        *(
            certified(conv, attention_for(conv), (10**6, 10**6), str(conv.weight.dtype))
            for conv in convs
        ),
    )


soft_in_floats = added(
    "soft-in-floats",
    "Soft heads in floats (e/S or e·fl(1/S), no overflow) leave leakage, taps, a derived rounding, if exp errs by ≤ ε.",
)(lambda: proved(by_coq("soft_within", "soft_runs", "check_soft_sound", "rows_rounding")))


@added(
    "torch-exponential",
    "torch's exp is 0 from −1024 down, and 1 at 0, in every format: what one-hot heads rest on.",
)
def torch_exponential() -> Judgement:
    """Samples what the Coq theorems assume about exp."""
    inputs = torch.cat([torch.zeros(1), -1024 * torch.logspace(0, 1.5, 1000)])
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    wrong = sum(int((inputs.to(dtype).exp() != (inputs == 0)).sum()) for dtype in dtypes)
    samples = f"{len(inputs)} inputs in each of {len(dtypes)} formats"
    return checked(
        samples, Check(f"{wrong} of {len(dtypes) * len(inputs)} values are wrong", wrong == 0)
    )


borders_replicate = added(
    "borders-replicate",
    "At the border of an image as it is (9) asks for pixels that are not there; the layer tends to replicate padding.",
    "Applying the assumption from Equation (9) … each of the softmax weights pick out a single pixel $k = q - f(h)$:",
    "talk, Lemma 1",
)(lambda: proved(by_coq("border_replicates", "border_not_zeros")))


@added(
    "torch-fields",
    "Padding by tokens, every s-th query, stretched shifts: with torch's fields it is the same theorem, for even K too.",
    "Convolutions with strides? Hard to say.",
    "talk, Do Self-Attention Layers Actually Learn Convolutions?, Quadratic encoding",
)
def torch_fields() -> Judgement:
    """Proved in Coq; and a layer is certified."""
    conv = small_convolution((2, 3), (3, 3), padding=2, dilation=2, stride=2)
    return proved(
        by_coq("geometry_theorem1", "conv_targets", "conv_shifts", "paper_shifts"),
        certified(conv, attention_for(conv), (7, 6), "padding, stride and dilation 2"),
    )


@added(
    "two-components",
    "D_p = 2 is enough in every dimension, on a grid of known size; D_p = 1 is not, for heads that each attend one key.",
    r"a relative positional encoding of dimension $D_p \geq 3$ can express any 2D convolutional layer",
    "talk, Main Theorem",
)
def two_components() -> Judgement:
    """Proved in Coq; the code's parabola by sympy; and a layer with D_p = 2 is certified."""
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv, radix=proof_positions.radix_for((8, 8)))
    return proved(
        by_coq("theorem1_parabola", "tokens_distinct", "no_one_component_attention"),
        by_proof(lambda: lemmas.prove_parabola(2)),
        Check(f"a layer with D_p = {layer.w_key_pos.shape[2]}", layer.w_key_pos.shape[2] == 2),
        certified(conv, layer, (6, 5), "it computes a 3×3 convolution"),
    )


@added(
    "one-component-spread",
    "Nine heads that spread their attention over nine taps make every kernel with D_p = 1, in the limit.",
    r"a relative positional encoding of dimension $D_p \geq 3$ can express any 2D convolutional layer",
    "talk, Main Theorem",
)
def one_component_spread() -> Judgement:
    """r is the tap's number on the kernel and −β elsewhere; head h has v_h = ln x_h > 0.

    For β → ∞ head h gives tap j the weight x_h^j/Σ_i x_h^i and other keys none: a scaled
    Vandermonde matrix, which can be solved for every kernel's taps.
    """
    nodes = range(2, 11)
    rank = equations.rank(
        [[Fraction(x**j, sum(x**i for i in range(9))) for j in range(9)] for x in nodes]
    )
    finding = f"the limits of the weights of 9 heads on 9 taps have rank {rank}"
    return proved(
        Check(finding, rank == 9, "exact rank: 9 heads on 9 taps"),
        by_steps("these are the limits for score −β v at the other tokens, v > 0", _spread_limit),
    )


def _spread_limit() -> list[ProofStep]:
    """A tap's share x of S among taps, beside n other tokens."""
    x, taps, n, v, beta = sympy.symbols("x S n v beta", positive=True)
    limit = sympy.limit(x / (taps + n * sympy.exp(-beta * v)), beta, sympy.oo)
    return [identity("x/(S + n e^(−βv)) tends to x/S", (limit, x / taps))]


@added(
    "key-width",
    "D_k = 1 is enough if every head has a Ŵ_key of its own.",
)
def key_width() -> Judgement:
    """The head's vector moves into its key matrix: proved in Coq for any factors, and a layer with
    D_k = 1 is certified.
    """
    conv = small_convolution((2, 2), (3, 3), padding=1)
    layer = attention_for(conv, key_dim=1)
    key_dim, pos_dim = layer.w_key_pos.shape[1:]
    return proved(
        by_coq("read_back_leak", "layer_same"),
        Check(f"a layer with D_k = {key_dim} and D_p = {pos_dim}", (key_dim, pos_dim) == (1, 3)),
        certified(conv, layer, (6, 5), "it computes a 3×3 convolution"),
    )


axis_factorisation = added(
    "axis-factorisation",
    "On a rectangular grid a head's attention is a product of one an axis, so that no T × T weights are needed.",
    "full attention cannot be applied to bigger images due to large memory consumption.",
    "review, 2.1. Classification Accuracy",
)(lambda: proved(by_coq("factorisation_attention")))
