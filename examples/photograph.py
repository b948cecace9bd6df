# %% [markdown]
"""A photograph through a network of convolutions, and through the attention network that was built
from it.

The photograph comes with scikit-learn; nothing is downloaded.  The network is made by hand: grey,
blur, edges in two directions, and a strided average of their strength.
"""

# %%
import torch
from sklearn.datasets import load_sample_image
from torch import nn

import construct
from verify.samples.sampling import check_on_activations

photo = (
    torch.tensor(load_sample_image("china.jpg"), dtype=torch.float32)[::4, ::4].permute(2, 0, 1)[
        None
    ]
    / 255
)
print(f"a photograph of {photo.shape[-1]} × {photo.shape[-2]} pixels: a temple in China")

# %%
grey, blur = (
    nn.Conv2d(3, 1, 1, bias=False),
    nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect", bias=False),
)
edges = nn.Conv2d(1, 2, 3, padding=1, padding_mode="replicate", bias=False)
average = nn.Conv2d(2, 1, 9, stride=9, bias=False)
with torch.no_grad():
    grey.weight.copy_(torch.tensor([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1))
    blur.weight.copy_(
        torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([1.0, 2, 1]))[None, None] / 16
    )
    sobel = torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([-1.0, 0, 1]))
    edges.weight.copy_(torch.stack([sobel, sobel.T])[:, None])
    average.weight.fill_(1 / 81)
model = nn.Sequential(grey, blur, edges, nn.ReLU(), average).eval()
net = construct.convert(model)

# %%
pairs = {
    name: (conv, net.get_submodule(name)) for name, conv in model.named_children() if name != "3"
}
checks = check_on_activations(model, pairs, [photo], "a photograph")
for name, check in checks.items():
    heads, difference = pairs[name][1].heads, check.discrepancy.max_abs
    print(
        f"layer {name}: {heads:2} heads, difference {difference:.1e}, rounding allows {check.bound:.1e}: {check.verdict.name}"
    )

# %% [markdown]
# The edges that the attention detects, light to dark; the roof is in the middle.

# %%
with torch.no_grad():
    before, after = model(photo)[0, 0], net(photo)[0, 0]
shades = " .:-=+*#%@"
levels = (after / after.max() * (len(shades) - 1)).round().int().tolist()
print("\n".join("".join(2 * shades[v] for v in row) for row in levels))
difference = float((after - before).abs().max())
print(f"the two networks differ by {difference:.1e}, of values up to {float(before.max()):.2f}")
assert all(check.verdict.name == "CHECKED" for check in checks.values())
assert len(checks) == 4
assert difference < 1e-5
