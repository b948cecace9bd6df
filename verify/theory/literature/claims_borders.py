"""Claims on padding, stride, dilation and the sign of the shifts."""

from typing import Any

import numpy as np
import torch

from verify.theory.literature import equations
from verify.theory.literature.claims_theorem import certified, reads_the_same
from verify.theory.literature.equations import Setting, Vector
from verify.theory.literature.judgement import Check, Judgement, claim, corrected, proved, refuted
from verify.theory.literature.torch_layers import attention_for, small_convolution
from verify.theory.symbolic import proof_positions

IMAGE = Setting((3, 3), (5, 6), (1, 1))


def every_query(size: Vector, shifts: list[Vector]) -> list[np.ndarray]:
    """Sharp heads with the code's encoding on an unpadded grid, every token a query and a key: (T, T) each."""
    tokens = proof_positions.positions(size)
    return [equations.sharp(proof_positions.quadratic_scores(tokens, tokens, tau)) for tau in shifts]


@claim(
    "same-borders",
    "paper, remark on padding",
    "Applied to an image as it is, the attention layer is the convolution with 'SAME' padding, that is with zeros around.",
)
def same_borders() -> Judgement:
    """A head with its target off the grid attends the nearest key."""
    read = np.array(every_query(IMAGE.size, IMAGE.shifts))
    zeros, replicate = (equations.read_by_taps(IMAGE, mode) for mode in ("zeros", "replicate"))
    weight, x = equations.integers(1, 3, 2, 3, 3), equations.integers(2, 2, *IMAGE.size)
    output = equations.mix(list(read), x.reshape(2, -1).T, equations.tap_matrices(weight)).T.reshape(3, *IMAGE.size)
    convolution = IMAGE.convolution(weight)
    wanted = convolution(x[None])[0]
    error, inside = np.abs(output - wanted).max(axis=0), convolution.interior(IMAGE.size, IMAGE.size)
    interior, border = int(error[inside].max()), int(error[~inside].max())
    largest = int(np.abs(wanted).max())
    return refuted(
        Check(
            f"{int((read != zeros).sum())} of {zeros.size} entries of the attention differ", bool((read != zeros).any())
        ),
        Check(
            f"on random integers: error {interior} in the interior, {border} at the border, of outputs up to {largest}",
            interior == 0 and border > 0,
        ),
        instead=corrected(
            "it is the convolution with *replicate* padding; for zeros, pad with real tokens first",
            Check(
                f"{int((read != replicate).sum())} entries differ from replicate padding",
                bool((read == replicate).all()),
            ),
            reads_the_same(IMAGE),
        ),
    )


@claim(
    "pad-and-crop",
    "paper, remark on padding",
    "Pad the image with ⌊K/2⌋ zeros on each side, apply the attention layer, crop: that is the zero-padded convolution.",
)
def pad_and_crop() -> Judgement:
    """Every token is a query, then the outputs of the border are cropped; K = 3 and 5."""
    checks = []
    for k in (3, 5):
        p = k // 2
        setting = Setting((k, k), (4, 5), (p, p))
        heads = every_query(setting.padded, setting.shifts)
        kept = np.zeros(setting.padded, dtype=bool)
        kept[p:-p, p:-p] = True
        check = reads_the_same(setting, heads=[head[kept.reshape(-1)] for head in heads])
        checks.append(Check(f"K = {k}, cropped: {check.finding}", check.holds))
    conv = small_convolution((2, 3), (3, 3), padding=1)
    valid = Setting((3, 3), (5, 6)).convolution(np.ones((1, 1, 3, 3)))(np.ones((1, 1, 5, 6))).shape[2:]
    return proved(
        *checks,
        Check(f"without padding the convolution shrinks 5×6 to {valid[0]}×{valid[1]}, by K − 1 = 2", valid == (3, 4)),
        certified(conv, attention_for(conv), (5, 6), "the layer on its padded grid"),
    )


@claim(
    "stride",
    "paper, remark on stride",
    "A strided convolution is the layer of stride 1 followed by a fixed choice of every s-th output.",
)
def stride() -> Judgement:
    """Every s-th row of the attention, compared with the oracle of that stride."""
    checks = []
    for step in (2, 3):
        setting = Setting((3, 3), (7, 6), (1, 1), (step, step))
        plain = Setting((3, 3), (7, 6), (1, 1))
        picked = np.zeros(plain.outputs, dtype=bool)
        picked[::step, ::step] = True
        heads = [head[picked.reshape(-1)] for head in equations.hard_heads(plain)]
        checks.append(reads_the_same(setting, heads=heads))
    conv = small_convolution((2, 3), (3, 3), padding=1, stride=2)
    return proved(*checks, certified(conv, attention_for(conv), (7, 6), "stride 2"))


@claim(
    "dilation",
    "paper, remark on dilation",
    "A dilated convolution needs no more heads: the shifts are stretched.",
)
def dilation() -> Judgement:
    """K² heads at dil·δ, compared with the oracle."""
    settings = [
        Setting((3, 3), (7, 6), (2, 1), None, (2, 1)),
        Setting((2, 3), (6, 9), None, None, (3, 4)),
    ]
    conv = small_convolution((2, 3), (3, 3), padding=2, dilation=2)
    layer = attention_for(conv)
    return proved(
        *map(reads_the_same, settings),
        Check(f"{layer.heads} heads", layer.heads == 9),
        certified(conv, layer, (7, 6), "dilation 2"),
    )


@claim(
    "shift-sign",
    "talk, Lemma 1 against Lemma 2",
    "The head that attends the key with q − k = f(h), as in Lemma 1, is the head of Lemma 2 with k − q = τ and τ = f(h).",
)
def shift_sign() -> Judgement:
    """They look in opposite directions."""
    queries, keys = IMAGE.queries, IMAGE.keys
    lemma_1 = [behind(queries, keys, f) for f in IMAGE.shifts]
    lemma_2 = equations.hard_heads(IMAGE)
    opposite = equations.hard_heads(IMAGE, [tuple(-x for x in f) for f in IMAGE.shifts])
    same = sum(bool((a == b).all()) for a, b in zip(lemma_1, lemma_2, strict=True))
    turned = sum(bool((a == b).all()) for a, b in zip(lemma_1, opposite, strict=True))
    weight, x = equations.integers(1, 2, 2, 3, 3), equations.integers(2, 2, *IMAGE.size)
    tokens, taps = IMAGE.tokens(x), equations.tap_matrices(weight)
    flipped = IMAGE.convolution(weight[:, :, ::-1, ::-1])(x[None]).reshape(2, -1).T
    plain = IMAGE.convolution(weight)(x[None]).reshape(2, -1).T
    by_lemma_1 = equations.mix(lemma_1, tokens, taps)
    wrong, right = (int((by_lemma_1 != wanted).sum()) for wanted in (plain, flipped))
    return refuted(
        Check(f"{same} of 9 heads are the same, the one at 0", same == 1),
        Check(f"on random integers {wrong} of {plain.size} outputs differ from the convolution", wrong > 0),
        instead=corrected(
            "τ = −f(h); and the layer is the convolution with the kernel flipped",
            Check(f"with τ = −f(h) {turned} of 9 heads are the same", turned == 9),
            Check(f"{right} outputs differ from the convolution with the flipped kernel", right == 0),
        ),
    )


def behind(queries: np.ndarray, keys: np.ndarray, f: Vector) -> np.ndarray:
    """1 where q − k = f, else 0: (Q, T)."""
    return (queries[:, None] - keys[None] == np.array(f, dtype=object)).all(axis=2).astype(int)


@claim(
    "index-sign",
    "talk, X_{i−δ} where the paper has X_{i+δ}",
    "The convolution of deep learning adds up X_{i−δ} W_δ.",
)
def index_sign() -> Judgement:
    """torch's own convolution, on integers."""
    generator = torch.Generator().manual_seed(4)
    weight, x = (torch.randint(-9, 10, shape, generator=generator).double() for shape in ((2, 2, 3, 3), (1, 2, 5, 6)))
    output = torch.nn.functional.conv2d(x, weight, padding=1)[0].numpy()
    ahead, back = (sum_over_shifts(x[0].numpy(), weight.numpy(), sign) for sign in (1, -1))
    flipped = sum_over_shifts(x[0].numpy(), weight.numpy()[:, :, ::-1, ::-1], -1)
    by_oracle = IMAGE.convolution(weight.numpy())(x.numpy())[0]
    return refuted(
        Check(
            f"{int((output != back).sum())} of {output.size} outputs of torch's conv2d differ from Σ X_(i−δ) W_δ",
            bool((output != back).any()),
        ),
        instead=corrected(
            "it adds up X_{i+δ} W_δ, as in the paper; the same with the flipped kernel is Σ X_{i−δ} W_δ",
            Check(f"{int((output != ahead).sum())} differ from Σ X_(i+δ) W_δ", bool((output == ahead).all())),
            Check(f"{int((output != flipped).sum())} from Σ X_(i−δ) W_(−δ)", bool((output == flipped).all())),
            Check(f"{int((output != by_oracle).sum())} from the oracle", bool((output == by_oracle).all())),
        ),
    )


def sum_over_shifts(x: np.ndarray, weight: np.ndarray, sign: int) -> Any:
    """Σ_δ X_{i + sign·δ} W_δ for a 3×3 kernel and zeros around: (D_in, n, m) → (D_out, n, m)."""
    n, m = x.shape[1:]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    total = np.zeros((len(weight), n, m))
    for a in (-1, 0, 1):
        for b in (-1, 0, 1):
            shifted = padded[:, 1 + sign * a : 1 + sign * a + n, 1 + sign * b : 1 + sign * b + m]
            total += np.einsum("oi,inm->onm", weight[:, :, a + 1, b + 1], shifted)
    return total


CLAIMS = (same_borders, pad_and_crop, stride, dilation, shift_sign, index_sign)
