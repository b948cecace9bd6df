# %% [markdown]
"""Fine-tune a converted network, beside the CNN that it was: do added heads of attention learn a
new task better?

The CNN that ships with the project reads handwritten digits.  Here they are mirrored at the
diagonal, and it reads them badly. It becomes an attention network, and one layer gets four more
heads of full softmax attention: the same function, bit for bit, but with gradients. That network
and the CNN itself, the baseline, are trained on the same 600 mirrored digits in the same order, and
read the 360 digits on which the shipped CNN was not trained (the split of `train_digits_cnn.py`).
"""

# %%
import copy
import time

import torch
from torch import nn
from train_digits_cnn import digits

import construct
from construct.command.demo import PATH

pictures, upright, labels, test_labels = digits(seed=0)
learn, mirrored = pictures[:600].transpose(2, 3), upright.transpose(2, 3)


def accuracy(net: nn.Module, images: torch.Tensor) -> float:
    """The share of the test images that are read correctly."""
    with torch.no_grad():
        return (net(images).argmax(1) == test_labels).double().mean().item()


def train(net: nn.Module, seed: int) -> float:
    """Train in place for two epochs; return the seconds that it took."""
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    start = time.perf_counter()
    for chosen in [*torch.randperm(600).split(30), *torch.randperm(600).split(30)]:
        loss = nn.functional.cross_entropy(net(learn[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


# %% [markdown]
# Day one.  The attention network computes what the CNN does, and added heads change no bit of it.

# %%
cnn = construct.load(PATH).eval()
net = construct.convert(cnn)
with torch.no_grad():
    before = net(mirrored)
    apart = float((before - cnn(mirrored)).abs().max())
    construct.learn(net, layers=["context.conv"])
    same = torch.equal(net(mirrored), before)
print(f"the CNN reads {accuracy(cnn, upright):.1%} upright, {accuracy(cnn, mirrored):.1%} mirrored")
print(f"the attention network's logits differ by at most {apart:.0e}; with added heads: {same=}")
assert same
assert apart < 1e-4

# %% [markdown]
# Day two.  Everything learns: the kernels as they would in the CNN, and the added heads.

# %%
reads = []
for seed in range(3):
    net, baseline = construct.convert(cnn), copy.deepcopy(cnn)
    generator = torch.Generator().manual_seed(seed)
    layer = construct.learn(net, layers=["context.conv"], generator=generator)["context.conv"]
    seconds = train(net, seed), train(baseline, seed)
    reads.append((accuracy(net, mirrored), accuracy(baseline, mirrored)))
    share = float((layer.w_out[-4:].norm() / layer.w_out.norm()).detach())
    print(f"seed {seed}: mirrored, attention {reads[-1][0]:.1%}, the CNN {reads[-1][1]:.1%}")
    print(f"  the added heads have {share:.1%} of W_out's norm", end="; ")
    print("seconds of training: {:.1f}, {:.1f}".format(*seconds))
    assert layer.w_out[-4:].any()
    assert bool((layer.centres()[0][:-4] == 1024).all())  # the kernel's heads are where they were
assert min(map(min, reads)) > 0.6 > 0.3 > accuracy(cnn, mirrored)
