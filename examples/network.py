# %% [markdown]
"""A whole CNN converted: each layer compared with its rounding bound, and no convolution left to
call.
"""

# %%
import torch
from torch import nn

import construct
from verify.samples.network import runs
from verify.samples.sampling import check_on_activations

# %%
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, padding_mode="reflect"),
    nn.Conv2d(8, 12, 1),
    nn.ReLU(),
    nn.ConvTranspose2d(12, 4, 4, stride=2, padding=1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(4, 10),
).eval()
net = construct.convert(model)  # a deep copy; the model is unchanged
image = torch.randn(1, 3, 20, 16)

# %%
pairs = {
    name: (conv, net.get_submodule(name))
    for name, conv in model.named_children()
    if "Conv" in type(conv).__name__
}
checks = check_on_activations(model, pairs, [image], "one random image")
for name, check in checks.items():
    conv, layer = pairs[name]
    print(f"{name}: {conv}\n   → {layer}")
    print(
        f"   difference {check.discrepancy.max_abs:.1e} where rounding allows {check.bound:.1e}: {check.verdict}"
    )

# %%
with torch.no_grad():
    before, after = (runs(network, [image], {})[0].convolutions for network in (model, net))
    difference = float((net(image) - model(image)).abs().max())
print(
    f"convolutions executed: {before} before, {after} after; the logits differ by {difference:.1e}"
)
assert len(checks) == before == 4
assert all(check.verdict.name == "CHECKED" for check in checks.values())
assert not after, "the converted network makes no convolution call"
assert difference < 1e-6
