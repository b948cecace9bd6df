# %% [markdown]
"""# One head

*The first of three lessons, half an hour. Next: `one_kernel.py`.*

A convolution reads pixels at fixed shifts from the output, one for each kernel position. Attention reads *everything*,
with weights that sum to 1. Can an attention head look at only **one** pixel, at a fixed shift from the query?
"""

# %% [markdown]
# We use the symbols of the paper (Cordonnier, Loukas, Jaggi, ICLR 2020): query $q$ and key $k$ are pixels,
# $\delta = k - q$ is the shift from one to the other, and the head is to look at
# $\delta = \Delta = (\Delta_1, \Delta_2)$. (Our code writes τ for Δ.)

# %%
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import PowerNorm

import construct
import verify


def check(answer, holds, hint):
    """Say whether an answer is right; ``None`` is none yet."""
    assert answer is None or holds(answer), hint
    print("no answer yet" if answer is None else "right")


# %% [markdown]
# ## A grid of pixels, and what a head knows about it
#
# Take 7 × 7 pixels and the query in the middle. A *positional* head sees only an encoding of each key's shift. The
# **quadratic encoding** has $D_p = 3$ numbers, and so does the head's own vector:
#
# $$r_\delta = (\lVert\delta\rVert^2,\ \delta_1,\ \delta_2), \qquad v = -\alpha\,(1,\ -2\Delta_1,\ -2\Delta_2).$$

# %%
rows, columns = torch.meshgrid(torch.arange(7.0), torch.arange(7.0), indexing="ij")
delta = torch.stack([rows - 3, columns - 3], dim=-1).double()  # (7, 7, 2): δ = k − q, for the query q = (3, 3)
r = torch.cat([delta.square().sum(-1, keepdim=True), delta], dim=-1)  # (7, 7, 3)


def v(alpha, shift):
    """The vector of the head that looks at a shift."""
    return -alpha * torch.tensor([1, -2 * shift[0], -2 * shift[1]], dtype=torch.float64)


# %% [markdown]
# One of the four terms of the score (Eq. 6) remains, their product. Expand it and complete the square:
#
# $$A_{q,k} = v^\top r_\delta = -\alpha\lVert\delta\rVert^2 + 2\alpha\,\Delta\cdot\delta
# = -\alpha\left(\lVert\delta - \Delta\rVert^2 - \lVert\Delta\rVert^2\right).$$
#
# This is a paraboloid with its maximum at $\delta = \Delta$. The last term is the same for every key, so the softmax
# cancels it.

# %%
target = torch.tensor([-1.0, 2.0]).double()  # Δ: one up, two to the right
score = r @ v(1.0, target)
assert torch.equal(score, -((delta - target).square().sum(-1) - target.square().sum()))
print(score.int())

# %% [markdown]
# ## The softmax sharpens
#
# Attention is the softmax of the scores. The greater $\alpha$, the more of it falls on the pixel at
# $q + \Delta$:

# %%


def attention(alpha, shift):
    """The softmax for the query in the middle: (7, 7), of sum 1."""
    return torch.softmax((r @ v(alpha, shift)).flatten(), dim=0).reshape(7, 7)


figure, panels = plt.subplots(1, 4, figsize=(12, 3.3), layout="constrained")
for panel, alpha in zip(panels, (0.0, 0.25, 1.0, 4.0), strict=True):
    weights = attention(alpha, target)
    picture = panel.imshow(weights.numpy(), norm=PowerNorm(0.5, 0, 1), cmap="viridis")
    panel.text(3, 3, "q", color="white", ha="center", va="center")
    panel.text(5, 2, "q + Δ", color="black" if alpha == 4 else "white", fontsize=7, ha="center", va="center")
    panel.set(title=f"α = {alpha:g}: {weights[2, 5]:.3f} at q + Δ", xlabel="column of the key")
panels[0].set_ylabel("row of the key")
figure.colorbar(picture, ax=panels, label="attention")
assert weights[2, 5] > 0.9

# %% [markdown]
# **Exercise 1.** Write the three numbers of $v$ for $\alpha = 10$ and the head that looks two down and one to the left.

# %% tags=["exercise"]
my_v = None  # [?, ?, ?]

# %%
check(
    my_v,
    lambda numbers: torch.equal(r @ torch.tensor(numbers).double(), r @ v(10.0, (2, -1))),
    "it looks elsewhere, or with another α: down is +, left is −, and v = −α(1, −2Δ₁, −2Δ₂)",
)

# %% [markdown]
# **Exercise 2.** The other way: how sharp is the head $v = (-3,\ 6,\ -12)$, and where does it look?

# %% tags=["exercise"]
alpha_and_shift = None  # (?, (?, ?))

# %%
check(
    alpha_and_shift,
    lambda pair: v(*pair).tolist() == [-3, 6, -12],
    "the first number of v is −α; the others are 2αΔ",
)

# %% [markdown]
# ## What leaks
#
# At any finite $\alpha$ some attention stays on other pixels. How much? The exponential of a sum of squares is a
# product over the axes, and each axis is a sum over the integers, so on a grid of *any* size
#
# $$1 - P_{q,\,q+\Delta}\ \le\ 1 - \vartheta(\alpha)^{-2}, \qquad \vartheta(\alpha) = 1 + 2\sum_{n\ge1} e^{-\alpha n^2}.$$
#
# The simpler bound $(T-1)\,e^{-\alpha}$ for $T$ pixels grows with the image; this one does not.

# %%


def leakage_bound(alpha):
    """1 − ϑ(α)⁻² in two dimensions, without cancellation where it is tiny."""
    excess = 2 * torch.exp(-alpha * torch.arange(1.0, 40).double() ** 2).sum()
    return float(-torch.expm1(-2 * torch.log1p(excess)))


def leaked(alpha, shift=(0, 0), dtype=torch.float64):
    """All attention but the greatest, as it is stored in a format."""
    weights = attention(alpha, shift).flatten().sort().values[:-1]
    return float(weights.to(dtype).double().sum())


sharpness = torch.linspace(0.25, 130, 300).tolist()
bounds, exact = [leakage_bound(a) for a in sharpness], [leaked(a) for a in sharpness]
figure, panel = plt.subplots(figsize=(7.5, 4), layout="constrained")
panel.semilogy(sharpness, bounds, color="lightgrey", linewidth=5, label="bound 1 − ϑ(α)⁻²")
panel.semilogy(sharpness, exact, color="tab:blue", label="leaked, in float64")
stored = [leaked(a, dtype=torch.float32) or float("nan") for a in sharpness]  # 0 has no place on this axis
panel.semilogy(sharpness, stored, "--", color="tab:red", label="leaked, stored in float32")
panel.axvline(104, color="tab:red", linewidth=1)
panel.annotate("0 in float32\nfrom α = 104 on", (105, 1e-25), color="tab:red")
panel.set(xlabel="sharpness α", ylabel="attention on other pixels")
panel.legend()
assert all(x <= bound * (1 + 1e-12) for x, bound in zip(exact, bounds, strict=True))

# %% [markdown]
# **Exercise 3.** From which $\alpha$ on does a head leak at most one millionth, on a grid of any size? (One decimal is
# enough.)

# %% tags=["exercise"]
alpha_for_a_millionth = None

# %%
check(
    alpha_for_a_millionth,
    lambda alpha: leakage_bound(alpha) <= 1e-6 < leakage_bound(alpha - 0.1),
    "try leakage_bound(α): it should be just under 1e-6; about 4 e^−α is a good start",
)

# %% [markdown]
# ## Exactly one-hot
#
# Over the reals the softmax is never one-hot: Theorem 1 is a *limit*. In a computer it is. The smallest positive
# float32 is $2^{-149}$, and what is below half of it is stored as 0. A key whose score is lower by
# $\alpha\cdot\mathrm{gap}$ weighs at most $e^{-\alpha\,\mathrm{gap}}$, so
#
# $$e^{-\alpha\,\mathrm{gap}} < 2^{-150} \iff \alpha \ge 104/\mathrm{gap} \quad\text{(to the next whole number)}.$$
#
# For an integer shift, the gap of $\lVert\delta - \Delta\rVert^2$ between the best key and the second best is 1.

# %%
for alpha in (46, 103, 104, 1024):
    print(f"α = {alpha:4}: {leaked(float(alpha), dtype=torch.float32):.3g} leaks in float32")
assert leaked(103.0, dtype=torch.float32) > 0 == leaked(104.0, dtype=torch.float32)

# %% [markdown]
# (The talk on the paper says 46. Then the neighbour weighs $e^{-46} = 10^{-20}$, far from 0; $10^{-46}$ would be 0.)
#
# **Exercise 4.** A head looks *between* two pixels, at $\Delta = (0.25,\ 0)$. What is its gap, and from which whole
# $\alpha$ on is it one-hot in float32?

# %% tags=["exercise"]
alpha_between = None

# %%
check(
    alpha_between,
    lambda alpha: leaked(alpha, (0.25, 0), torch.float32) == 0 < leaked(alpha - 1, (0.25, 0), torch.float32),
    "the best key is at distance ¼, the second best at ¾: the gap is the difference of the squares",
)

# %% [markdown]
# ## The same in the library
#
# `construct` uses these vectors, by default with $\alpha = 1024$: a power of two, so that products stay exact.

# %%
layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 1, 3, padding=1), alpha=1.0)
shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
assert torch.equal(layer.v.double(), torch.stack([v(1.0, shift) for shift in shifts]))
print(layer.v)

# %% [markdown]
# Lemma 2: for *every* integer shift and every $\alpha > 0$, the scores have their only maximum at $\Delta$, by at least
# $\alpha$. Sympy proves it on the functions that the layer calls (`python -m verify lemmas` prints the proof):

# %%
proof = verify.prove_lemma2(dims=2)
print(f"Lemma 2: {proof.discharged} steps by sympy, {proof.argued} argued in words")
assert proof.discharged > 0 == proof.argued

# %% [markdown]
# **To think about.** At $\Delta = (\tfrac12, 0)$ the gap is 0. What does the head attend to, at $\alpha = 10^6$? Is
# that a useful head? And what does a head attend to that looks over the edge of the image? The next lesson needs that
# answer.
