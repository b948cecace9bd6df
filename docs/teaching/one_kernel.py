# %% [markdown]
"""# One kernel

*The second of three lessons, half an hour. Before: `one_head.py`. Next: `one_network.py`.*

One head reads one pixel at a fixed shift. Here nine heads become a 3 × 3 convolution, equal to the last bit on one
image. Padding, stride and dilation decide which tokens there are, and which of them are queries. A certificate covers
*all* images.
"""

# %%
import copy

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle

import construct
import verify


def check(answer, holds, hint):
    """Say whether an answer is right; ``None`` is none yet."""
    assert answer is None or holds(answer), hint
    print("no answer yet" if answer is None else "right")


# %% [markdown]
# ## A bijection between heads and shifts
#
# A convolution (Eq. 8) sums over the shifts of its kernel; multi-head attention (Eq. 3) sums over its heads:
#
# $$\mathrm{Conv}(X)_q = b + \sum_{\Delta \in \boldsymbol{\Delta}_K} X_{q+\Delta} W_\Delta, \qquad
# \mathrm{MHSA}(X)_q = b_{out} + \sum_{h=1}^{N_h} \Big(\sum_k P^h_{q,k} X_k\Big) W^h_{val} W^h_{out}.$$
#
# If head $h$ looks at $q + \Delta$ and nowhere else, its bracket *is* $X_{q+\Delta}$. So give every head its own shift
# (Lemma 1: any bijection will do) and the matrix of that shift. A 3 × 3 kernel takes $N_h = 9$ heads. Small integers do
# not round, so equal means equal.

# %%
conv = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False).requires_grad_(False)
conv.weight.copy_(torch.arange(1.0, 10.0).reshape(1, 1, 3, 3))
image = torch.arange(1.0, 26.0).reshape(1, 1, 5, 5)
layer = construct.conv_to_mhsa(conv).requires_grad_(False)

alpha = -layer.v[:, 0]
shifts = (layer.v[:, 1:] / (2 * alpha[:, None])).int().tolist()  # Δ, read from v = −α(1, −2Δ₁, −2Δ₂)
products = (layer.w_val @ layer.w_out).flatten().tolist()  # W_val W_out: here a number a head
for shift, product in zip(shifts, products, strict=True):
    print(f"the head that looks at {shift!s:>8} multiplies by {product:.0f}")
assert torch.equal(layer(image), conv(image))

# %% [markdown]
# The figure shows the attention of each head, for the query in the middle. The 25 pixels have become 49 tokens: the
# frame is the padding.

# %%
attention = layer.attention_probabilities(image)[0]  # (heads, queries, tokens)
print(f"{attention.shape[0]} heads, {attention.shape[1]} queries, {attention.shape[2]} tokens")
figure, panels = plt.subplots(1, 9, figsize=(12, 1.9), layout="constrained")
for panel, weights, shift in zip(panels, attention[:, 12], shifts, strict=True):
    picture = panel.imshow(weights.reshape(7, 7).numpy(), vmin=0, vmax=1, cmap="viridis")
    panel.add_patch(Rectangle((0.5, 0.5), 5, 5, fill=False, color="white", linestyle=":"))
    panel.plot(3, 3, ".", color="white")
    panel.set(title=f"Δ = ({shift[0]}, {shift[1]})", xticks=[], yticks=[])
figure.colorbar(picture, ax=panels, label="attention")
assert set(attention.flatten().tolist()) == {0.0, 1.0}

# %% [markdown]
# ## Nine heads add up
#
# Add the heads one after the other, and the convolution appears. Nothing rounds, so the last two pictures are equal.

# %%
tokens = torch.nn.functional.pad(image, (1, 1, 1, 1)).flatten().double()
running = torch.zeros(25).double()
figure, panels = plt.subplots(1, 5, figsize=(12, 2.7), layout="constrained")
for heads, (weights, product) in enumerate(zip(attention, products, strict=True), start=1):
    running += product * (weights @ tokens)
    if heads in (1, 3, 6, 9):
        panel = panels[(1, 3, 6, 9).index(heads)]
        panel.imshow(running.reshape(5, 5).numpy(), vmin=0, vmax=float(conv(image).max()), cmap="magma")
        panel.set(title=f"{heads} head{'s'[: heads - 1]}", xticks=[], yticks=[])
picture = panels[4].imshow(conv(image)[0, 0].numpy(), vmin=0, vmax=float(conv(image).max()), cmap="magma")
panels[4].set(title="convolution", xticks=[], yticks=[])
figure.colorbar(picture, ax=panels, label="output")
assert torch.equal(running, conv(image).flatten().double())

# %% [markdown]
# **Exercise 1.** Which shifts do the heads of `torch.nn.Conv1d(1, 1, 5, dilation=2, padding=4)` look at?

# %% tags=["exercise"]
dilated_shifts = None  # a list of whole numbers

# %%


def shifts_1d(conv):
    """The shifts at which the heads of a converted nn.Conv1d look."""
    v = construct.conv_to_mhsa(conv).v
    return sorted((v[:, 1] / (-2 * v[:, 0])).int().tolist())


check(
    dilated_shifts,
    lambda answer: sorted(answer) == shifts_1d(torch.nn.Conv1d(1, 1, 5, dilation=2, padding=4)),
    "five heads, symmetric about 0, and dilation stretches the shifts",
)

# %% [markdown]
# ## Padding, stride and dilation are about tokens
#
# A softmax must attend to *something*: a head that looks over the edge of the image cannot attend to nothing. So
# padding is made of real tokens, zeros here: $(n + 2\,\mathrm{pad})^2$ of them in all. Let torch number the positions
# of the kernel $j = 0, \dots, K-1$ on each axis; then
#
# $$q = \mathrm{stride}\cdot o + a, \qquad \Delta_j = \mathrm{dilation}\cdot j - a, \qquad
# a = \mathrm{dilation}\cdot\lfloor (K-1)/2\rfloor:$$
#
# **stride** keeps every second query, **dilation** stretches the shifts. Dots are the queries $q$ of all outputs $o$;
# for one of them, the tokens that its nine heads attend are marked.

# %%
kinds = {
    "padding=1": torch.nn.Conv2d(1, 1, 3, padding=1),
    "padding=1, stride=2": torch.nn.Conv2d(1, 1, 3, padding=1, stride=2),
    "padding=2, dilation=2": torch.nn.Conv2d(1, 1, 3, padding=2, dilation=2),
}
figure, panels = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for panel, (name, kind) in zip(panels, kinds.items(), strict=True):
    attended = construct.conv_to_mhsa(kind).attention_probabilities(image)[0].argmax(-1)  # (heads, queries)
    pad = int(kind.padding[0])
    side = 5 + 2 * pad
    ground = torch.nn.functional.pad(torch.full((5, 5), 0.35), (pad,) * 4)
    panel.imshow(ground.numpy(), vmin=0, vmax=1, cmap="Blues")
    middle = attended.shape[1] // 2
    row, column = torch.stack((attended[:, middle] // side, attended[:, middle] % side)).tolist()
    panel.plot(column, row, "s", markersize=13, color="tab:orange", label="attended")
    row, column = torch.stack((attended[4] // side, attended[4] % side)).tolist()
    panel.plot(column, row, "o", markersize=4, color="black", label="queries")
    panel.set(title=f"{name}\n{side * side} tokens, {attended.shape[1]} queries", xticks=[], yticks=[])
panels[0].legend(loc="upper left", fontsize=8)
assert attended.shape == (9, 25)

# %% [markdown]
# Without tokens for the padding, a head at the border would attend to the *nearest* pixel, which is
# `padding_mode="replicate"`: right in the interior, wrong at the border, whatever the kernel.
#
# **Exercise 2.** An 8 × 8 image, `Conv2d(1, 1, 3, padding=1, stride=2)`: how many tokens are there, and how many of
# them are queries?

# %% tags=["exercise"]
tokens_and_queries = None  # (?, ?)

# %%
strided = construct.conv_to_mhsa(kinds["padding=1, stride=2"])
queries, tokens = strided.attention_probabilities(torch.ones(1, 1, 8, 8)).shape[2:]
check(
    tokens_and_queries,
    lambda answer: answer == (tokens, queries),
    "tokens: the padded grid; queries: the outputs of the convolution",
)

# %% [markdown]
# ## A certificate, line by line
#
# One image proves nothing about others. `certify` does: it reads the numbers of both layers and argues about **all**
# images.

# %%
certificate = verify.certify(conv, layer, grid=(5, 5), input_bound=25.0)
print(certificate)
assert certificate.verdict.name == "PROVED"

# %% [markdown]
# | line | reads |
# |---|---|
# | `claim` | for every finite image with $\lvert x\rvert \le 25$ of at most 5 × 5 |
# | `bound` | no output differs by more. All of it is rounding: both sum the same nine products, perhaps in another order |
# | `tokens` | both pad, stride and dilate alike |
# | `content` | $W_{qry} = W_{key} = 0$ and $u = 0$: scores depend on $\delta$ alone |
# | `target` | each head has one best shift, and a gap to the next (lesson one) |
# | `leakage` | that gap is so wide that the softmax is exactly one-hot in float32 |
# | `taps` | the heads that look at a shift sum to the kernel's matrix there: Theorem 1 |
# | `rounding` | how far two correct evaluations can lie apart |
# | `runs` | every way of evaluating the layer was run on adversarial inputs, and stayed within the bound. Measured, not proved |
# | `assuming` | what the proof takes for granted |
#
# **Exercise 3.** Which step fails for the same convolution at $\alpha = 4$, and what is the verdict? Guess first.

# %% tags=["exercise"]
step_and_verdict = None  # ("…", "…"), for instance ("tokens", "PROVED")

# %%
soft = verify.certify(conv, construct.conv_to_mhsa(conv, alpha=4.0), grid=(5, 5))
failed = [step.name for step in soft.steps if not step.holds]
check(
    step_and_verdict,
    lambda answer: [answer[0]] == failed and answer[1] == soft.verdict.name,
    "the weights are right, but how sharp are the heads? And has anybody shown an input that differs?",
)

# %% [markdown]
# ## A planted fault
#
# The smallest possible change: one weight, by one unit in the last place.

# %%
faulty = copy.deepcopy(layer)
faulty.w_val[8] += 2**-20  # 9.0 becomes the next number of float32
refuted = verify.certify(conv, faulty, grid=(5, 5), input_bound=25.0)
print(refuted.verdict)
assert refuted.verdict.name == "REFUTED"

# %% [markdown]
# REFUTED comes with an input on which the two differ, in exact arithmetic. And what would a test on our image have
# said?
#
# **Exercise 4.** Choose a number to add to the weight 1 such that the output on `image` stays the same *bit for bit*
# but the certificate is REFUTED.

# %% tags=["exercise"]
hidden_fault = None

# %%


def hides(fault):
    """Whether an image does not show the fault, and the certificate does."""
    layer_with_it = copy.deepcopy(layer)
    layer_with_it.w_val[0] += fault
    verdict = verify.certify(conv, layer_with_it, grid=(5, 5), input_bound=25.0).verdict.name
    return torch.equal(layer_with_it(image), conv(image)) and verdict == "REFUTED"


check(hidden_fault, hides, "too great, and the image shows it; too small, and 1 + fault is 1 again")

# %% [markdown]
# **To think about.** The bijection is arbitrary: why does the order of the heads not matter? And are nine heads needed,
# if the kernel is a blur, with a matrix of rank 1? (`python -m verify claims --why head-count`)
