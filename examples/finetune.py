# %% [markdown]
"""Fine-tune a converted network: it starts as the CNN that it was, and learns something that the CNN did not know.

The CNN that ships with the project reads handwritten digits.  Here they are mirrored at the diagonal, and it reads them badly.
It becomes an attention network; the heads of one layer are softened so that they can move, content attention is enabled there,
and the network is trained for some seconds on mirrored digits.
"""

# %%
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import construct
from construct.command.demo import PATH

torch.manual_seed(0)
data: Any = load_digits()
upright = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
mirrored, labels = upright.transpose(2, 3), torch.tensor(data.target)
test, learn = slice(-300, None), slice(0, 600)


def accuracy(net: nn.Module, images: torch.Tensor) -> float:
    """The share of the test images that are read correctly."""
    with torch.no_grad():
        return (net(images[test]).argmax(1) == labels[test]).double().mean().item()


# %% [markdown]
# Day one.  Sharp heads: the same function, and the attention's gradients are exactly zero.

# %%
cnn = construct.load(PATH).eval()
sharp = construct.convert(cnn)
with torch.no_grad():
    apart = float((sharp(mirrored[test]) - cnn(mirrored[test])).abs().max())
print(f"the CNN reads {accuracy(cnn, upright):.1%} upright, {accuracy(cnn, mirrored):.1%} mirrored")
print(f"the attention network's logits differ by at most {apart:.0e}")
assert apart < 1e-4

# %% [markdown]
# Day two.  In one layer the heads are softened: they leak a little, and have gradients.  Content attention is enabled there too.

# %%
net = construct.convert(cnn)
layer = net.get_submodule("context.conv")
assert isinstance(layer, construct.MHSA)
layer.execution = "dense"  # the picture is small
with torch.no_grad():
    layer.v.mul_(4.0 / layer.centres()[0].max())
print(f"with one layer softened to α = 4 it reads {accuracy(net, upright):.1%} upright")
for parameter in (layer.w_qry, layer.w_key, layer.u, layer.v):
    parameter.requires_grad_()
nn.init.normal_(layer.w_key, std=0.01)  # 0 · 0 has no gradient: one factor has to start elsewhere
before = layer.centres()[1].clone()
optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)
for _ in range(2):
    for chosen in torch.randperm(600).split(30):
        loss = nn.functional.cross_entropy(net(mirrored[learn][chosen]), labels[learn][chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# %%
moved = float((layer.centres()[1] - before).detach().norm(dim=1).max())
content = float(layer.w_qry.detach().abs().max())
print(f"after 2 epochs it reads {accuracy(net, mirrored):.1%} mirrored")
print(f"a head moved by {moved:.2f} tokens; content weights grew from 0 to {content:.2f}")
assert moved > 0.001
assert content > 0.001
assert accuracy(net, mirrored) > 0.6 > 0.3 > accuracy(cnn, mirrored)
