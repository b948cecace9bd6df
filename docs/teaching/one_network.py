# %% [markdown]
"""# One network

*The last of three lessons, half an hour. Before: `one_kernel.py`.*

A trained CNN becomes an attention network that computes the same function. What exactly is proved about it, what is only
measured, who checks the proof, and what does it cost?
"""

# %%
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import construct
import verify


def check(answer, holds, hint):
    """Say whether an answer is right; ``None`` is none yet."""
    assert answer is None or holds(answer), hint
    print("no answer yet" if answer is None else "right")


# %% [markdown]
# ## Six convolutions that read digits
#
# The project ships a small CNN, trained on handwritten digits of 8 × 8 pixels. `construct.convert` copies it and
# replaces every convolution; all else (normalisation, ReLU, shapes) stays.

# %%
model_file = Path(construct.__file__).parent / "command/demo/digits_cnn.pt"
cnn = construct.load(model_file)
net = construct.convert(cnn)
for path, module in net.named_modules():
    if isinstance(module, construct.MHSA):
        print(f"{path:13} {module.in_channels:2} → {module.out_channels} channels, {module.heads:2} heads")

# %% [markdown]
# A zero, from the test set of E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998, CC BY 4.0):

# %%
zero = """
    0  0  5 13  9  1  0  0
    0  0 13 15 10 15  5  0
    0  3 15  2  0 11  8  0
    0  4 12  0  0  8  8  0
    0  5  8  0  0  9  8  0
    0  4 11  0  1 12  7  0
    0  2 14  5 10 12  0  0
    0  0  6 13 10  0  0  0"""
digit = torch.tensor([float(pixel) / 16 for pixel in zero.split()]).reshape(1, 1, 8, 8)
with torch.no_grad():
    logits, logits_again = cnn(digit)[0], net(digit)[0]

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3), layout="constrained", width_ratios=(1, 2, 2))
left.imshow(digit[0, 0].numpy(), cmap="gray_r")
left.set(title="the image", xticks=[], yticks=[])
middle.bar(torch.arange(10) - 0.2, logits.numpy(), width=0.4, label="CNN")
middle.bar(torch.arange(10) + 0.2, logits_again.numpy(), width=0.4, label="attention")
middle.set(title="both read a zero", xlabel="digit", ylabel="logit", xticks=range(10))
middle.legend()
right.bar(range(10), (logits_again - logits).numpy(), color="black")
right.set(title="their difference: rounding", xlabel="digit", ylabel="logit", xticks=range(10))
assert int(logits.argmax()) == int(logits_again.argmax()) == 0
assert (logits - logits_again).abs().max() < 1e-4

# %% [markdown]
# Is there a convolution left? Ask torch which of its functions are called:

# %%


class Convolutions(torch.overrides.TorchFunctionMode):
    """Counts the calls of torch's convolutions."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += "conv" in getattr(func, "__name__", "")
        return func(*args, **(kwargs or {}))


with Convolutions() as by_cnn, torch.no_grad():
    cnn(digit)
with Convolutions() as by_net, torch.no_grad():
    net(digit)
print(f"convolutions called: {by_cnn.count} by the CNN, {by_net.count} by the attention")
assert (by_cnn.count, by_net.count) == (6, 0)

# %% [markdown]
# ## The verdicts
#
# The command converts, proves every layer, runs both networks side by side, and writes two files: the attention network
# and its certificate.

# %%
folder = Path(tempfile.mkdtemp())


def command(*words):
    """Run a module of Python in the folder, and print what it says."""
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    environment |= {"PYTHONIOENCODING": "utf-8", "COLUMNS": "120"}
    line = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    print(done.stdout + done.stderr)
    return done.returncode


assert command("construct.from_conv", "--samples", "1") == 0

# %% [markdown]
# `interior` and `border` are differences that were *observed*; `bound` is proved, for all finite inputs with
# $\lvert x\rvert$ up to the given figure. Four verdicts are possible, and none of them is "verified":
#
# | verdict | means |
# |---|---|
# | PROVED | for all finite inputs up to that size and that $\lvert x\rvert$, the two layers differ by no more than the bound |
# | CHECKED | on the samples named, they differ by no more than rounding explains |
# | REFUTED | here is an input on which they differ by more |
# | UNDECIDED | a step of the argument failed, and the verdict names it |
#
# And the *network*? Its layers are proved one by one; its calls were compared and its outputs measured, on these
# inputs. A network is Python code and may branch on its numbers, so nothing is claimed about it for all inputs.
#
# **Exercise 1.** The certificate of `stem.conv` is PROVED for $\lvert x\rvert \le 4$ on 8 × 8. True or false?
#
# 1. On every 8 × 8 image with pixels from 0 to 1, the two stems differ by at most the bound.
# 2. The logits of the two networks differ by at most the sum of the six bounds.
# 3. It also holds for an image with one infinite pixel.
# 4. It also holds for images of 6 × 6.
# 5. It also holds under autocast, with matrix products in TF32.

# %% tags=["exercise"]
true_or_false = None  # [True, False, …], five of them

# %%
check(
    true_or_false,
    lambda answers: len(answers) == 5 and sum(2**i for i, answer in enumerate(answers) if answer) == 9,
    "read `claim` and `assuming` in lesson two; and what does the next layer do to a small difference?",
)

# %% [markdown]
# ## Do not trust us
#
# The certificate is a file of plain numbers. A second program reads it and both weight files, and recomputes everything
# with exact fractions, without the builder and without the argument of the program that wrote it. What a file holds is
# what torch's own loader returns; from safetensors it needs no torch.

# %%
files = folder / "digits_cnn.mhsa.json", model_file, folder / "digits_cnn.mhsa.pt"
assert command("verify", "check", files[0], "--conv", files[1], "--mhsa", files[2]) == 0

# %% [markdown]
# It names what it does not repeat: the runs, which need torch. The certificate lists what it rests on: finite inputs,
# IEEE sums, torch's documented definition of a convolution. (`docs/certificates.md`, `docs/limits.md`; with
# `--verified` a checker extracted from Coq judges too.)
#
# **Exercise 2.** Be a forger. Write a function that changes the certificate, given as nested dictionaries and lists, so
# that it claims *more* than is proved. (We seal it with a fresh digest, as you would.) The checker must reject it.

# %%
document = json.loads(files[0].read_text(encoding="utf-8"))
for key in ("name", "verdict", "grid", "input_bound", "bound"):
    print(f"{key:11} {str(document['layers'][0][key])[:80]}")

# %% tags=["exercise"]
forge = None  # def forge(document): …

# %%


def accepted(document):
    """Whether the checker accepts a document, sealed with a fresh digest as a forger would."""
    rest = {key: value for key, value in document.items() if key != "record_sha256"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    sealed = json.dumps({**rest, "record_sha256": hashlib.sha256(canonical).hexdigest()})
    (folder / "forged.json").write_text(sealed, encoding="utf-8")
    try:
        return verify.check(folder / "forged.json", *files[1:]).verdict.name == "PROVED"
    except ValueError as error:
        print(error)
        return False


def rejected(forge):
    """Whether a forgery claims more of some layer, and is rejected."""
    forged = json.loads(json.dumps(document))
    forge(forged)
    claims_more = any(
        float.fromhex(new["bound"][0]) < float.fromhex(old["bound"][0])
        or float.fromhex(new["input_bound"]) > float.fromhex(old["input_bound"])
        for old, new in zip(document["layers"], forged["layers"], strict=True)
    )
    return claims_more and not accepted(forged)


assert accepted(document)
check(forge, rejected, "lower bound[0] of a layer, or raise its input_bound; float.hex(0.5) writes a number")

# %% [markdown]
# ## What it costs
#
# Written out as in Eq. 3, the attention of one head is a matrix of queries × tokens: on an $n \times n$ image both are
# about $n^2$, so time and memory grow as $n^4$. But the score is a sum over the axes, so $P^h = P^h_1 \otimes P^h_2$,
# and one-hot rows merely select: evaluated that way (`axial`, the default here) it costs the nine matrix products of
# the convolution and a fixed cost per call, which shows on images as small as these.

# %%


def milliseconds(module, x):
    """The best of four runs."""
    best = math.inf
    with torch.no_grad():
        for _ in range(4):
            begin = time.perf_counter()
            module(x)
            best = min(best, time.perf_counter() - begin)
    return 1000 * best


conv = torch.nn.Conv2d(8, 8, 3, padding=1)
sides = (4, 8, 16, 32)
modules = {
    "convolution": conv,
    "attention, axial": construct.conv_to_mhsa(conv, execution="axial"),
    "attention, as Eq. 3 stands": construct.conv_to_mhsa(conv, execution="dense"),
}
figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
for name, module in modules.items():
    panel.loglog(sides, [milliseconds(module, torch.randn(1, 8, n, n)) for n in sides], "o-", label=name)
panel.loglog(sides[2:], [1e-4 * n**4 for n in sides[2:]], ":", color="grey", label="∝ n⁴")
panel.set(xlabel="side n of the image in pixels", ylabel="one image in milliseconds", xticks=sides, xticklabels=sides)
panel.legend()
panel.minorticks_off()

# %% [markdown]
# **Exercise 3.** How many numbers are in the attention of a 3 × 3 kernel with `padding=1` on an $n \times n$ image,
# written out for all heads?

# %% tags=["exercise"]
numbers = None  # lambda n: …

# %%


def written_out(n):
    """How many numbers the attention of all heads has."""
    return construct.conv_to_mhsa(conv).attention_probabilities(torch.ones(1, 8, n, n)).numel()


check(
    numbers,
    lambda count: count(4) == written_out(4) and count(7) == written_out(7),
    "heads × queries × tokens; and the padding is made of tokens",
)

# %% [markdown]
# ## Heads that learn
#
# One-hot heads have no gradients: moving a head a little moves no attention. So `construct.learn` adds heads of full
# softmax attention beside them, whose $W_{out}$ is zero. The sum of Eq. 3 is what it was. Then one step of training:
# in the first, only $W_{out}$ of the added heads can have a gradient. (Why? Everything else of theirs is multiplied by it.)

# %%
layer = construct.conv_to_mhsa(conv)
x = torch.randn(1, 8, 8, 8)
before = layer(x)
construct.learn(layer, heads=2)
print("the same function, bit for bit:", torch.equal(layer(x), before))
print(layer.explain(x.shape).split("; ")[-1])
optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], lr=0.01)
for step in (1, 2):
    optimizer.zero_grad()
    layer(x).square().sum().backward()
    moving = [name for name, p in layer.named_parameters() if p.grad is not None and bool(p.grad.any())]
    print(f"step {step}: gradients of {', '.join(name.removeprefix('parametrizations.') for name in moving)}")
    optimizer.step()

# %% [markdown]
# **To think about.** What could such a network learn now that a CNN cannot? (`docs/finetune.md`) And what would it
# take to prove a bound for the *whole* network?
