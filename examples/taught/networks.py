"""The CNN that attention starts from, its baselines of as many parameters, and the converted
network with what is to learn in it.
"""

import copy
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count

import torch
from torch import Tensor, nn

import construct
from construct.attention import MHSA
from examples.learned.command import read
from examples.learned.data import BadInput, Pictures
from verify.samples.sampling import watching

read_once = lru_cache(maxsize=1)(read)
"""The pictures of a folder, from which all seeds learn; digits without one."""
TOKENS = 256
"""The most tokens (16 × 16) of a layer that gets heads: attention over all keys costs O(T²)."""


@dataclass(frozen=True)
class Way:
    """One way to go on from a trained CNN.

    Attributes:
        label: its name in tables.
        attention: whether its convolutions become attention with added heads.
        moving: whether the kernel's own heads are softened too, and may move.
        longer: whether it has more epochs: about as many seconds as attention takes.
        more: where the CNN has as many more parameters as attention has: in all its "channels", or
            in a "hidden" layer behind the whole map.  Such a CNN is trained from scratch first, as
            the CNN was.
    """

    label: str
    attention: bool = False
    moving: bool = False
    longer: bool = False
    more: str = ""


WAYS = {
    "cnn": Way("the CNN itself"),
    "cnn-longer": Way("the CNN itself, longer", longer=True),
    "cnn-wider": Way("a wider CNN", more="channels"),
    "cnn-hidden": Way("a CNN with a hidden layer", more="hidden"),
    "cnn-hidden-longer": Way("a CNN with a hidden layer, longer", longer=True, more="hidden"),
    "heads": Way("attention, added heads", attention=True),
    "moving": Way("attention, added heads, the kernel's move", attention=True, moving=True),
}


@dataclass(frozen=True)
class Heads:
    """What ``construct.learn`` adds to every layer.

    Attributes:
        heads: how many heads.
        key_dim: D_k.
        alpha: the sharpness of the kernel's own heads where they move.
    """

    heads: int
    key_dim: int
    alpha: float


def cnn_for(
    channels: int, size: tuple[int, int], classes: int, width: int, hidden: int = 0
) -> nn.Sequential:
    """The untrained CNN, (B, C, rows, columns) → (B, classes): 3 × 3 kernels, even ones with a
    stride, one of its input's size, and behind it a layer of ``hidden`` channels if there are any.

    Raises:
        BadInput: the pictures' sides are not divisible by four.
    """
    from examples.train_digits_cnn import block

    if any(n % 4 for n in size):
        raise BadInput(f"pictures of {size[0]} × {size[1]} cannot be halved twice")
    rows, columns = (n // 4 for n in size)
    layers: dict[str, nn.Module] = {
        "stem": block(nn.Conv2d(channels, width, 3, padding=1, bias=False)),
        "shrink": block(nn.Conv2d(width, 2 * width, 2, stride=2, bias=False)),
        "context": block(nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)),
        "shrink_again": block(nn.Conv2d(2 * width, 4 * width, 2, stride=2, bias=False)),
        "mix": block(nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4, bias=False)),
    }
    if hidden:
        layers["hidden"] = block(nn.Conv2d(4 * width, hidden, (rows, columns), bias=False))
        layers["head"] = nn.Conv2d(hidden, classes, 1)
    else:
        layers["head"] = nn.Conv2d(4 * width, classes, (rows, columns))
    return nn.Sequential(OrderedDict({**layers, "flatten": nn.Flatten()}))


def cnn_of(pictures: Pictures, width: int, hidden: int = 0) -> nn.Sequential:
    """The untrained CNN for these pictures.

    Raises:
        BadInput: see :func:`cnn_for`.
    """
    channels, rows, columns = pictures.train.shape[1:]
    return cnn_for(channels, (rows, columns), pictures.classes, width, hidden)


def trained_on(
    pictures: Pictures, seed: int, epochs: int, width: int, hidden: int = 0
) -> nn.Sequential:
    """The CNN trained on all train pictures, in eval mode."""
    from examples import train_digits_cnn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cnn = cnn_of(pictures, width, hidden)
        train_digits_cnn.train(cnn, pictures.train, pictures.train_labels, epochs)
    return cnn.eval()


def attentions(network: nn.Module) -> dict[str, MHSA]:
    """The attention layers by name, in order."""
    return {name: module for name, module in network.named_modules() if isinstance(module, MHSA)}


@torch.no_grad()
def softened(network: nn.Module, alpha: float) -> nn.Module:
    """A copy whose heads all have this α and look where they looked before; nothing of it learns."""
    network = copy.deepcopy(network)
    for layer in attentions(network).values():
        layer.v.mul_(alpha / layer.centres()[0][:, None].to(layer.v.dtype))
    return network


@torch.no_grad()
def inputs_of(network: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The input of every attention layer when the network runs on x."""
    inputs: dict[str, Tensor] = {}
    with watching(attentions(network), inputs.__setitem__):
        network(x)
    return inputs


def as_attention(cnn: nn.Sequential, way: Way, heads: Heads, seed: int, x: Tensor) -> nn.Module:
    """The CNN as attention, with heads that learn in the layers of at most ``TOKENS`` tokens.

    Args:
        cnn: the trained CNN; not changed.
        way: how to go on.
        heads: what is added.
        seed: the seed of W_qry, W_key and W_val.
        x: pictures, for the sizes of the layers' inputs.
    """
    network = construct.convert(cnn)
    small = [name for name, y in inputs_of(network, x[:1]).items() if y[0, 0].numel() <= TOKENS]
    alpha = heads.alpha if way.moving else None
    generator = torch.Generator().manual_seed(seed)
    construct.learn(network, small, heads.heads, heads.key_dim, alpha=alpha, generator=generator)
    return network.eval()


def parameters_of(network: nn.Module) -> int:
    """How many numbers learn."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def enlarged(pictures: Pictures, width: int, more: str, heads: Heads) -> dict[str, int]:
    """The least width, or the least hidden layer, with which the CNN has at least as many
    parameters as attention with added heads.

    Returns:
        Arguments of :func:`cnn_of`.
    """
    cnn = cnn_of(pictures, width)
    wanted = parameters_of(as_attention(cnn, WAYS["heads"], heads, 0, pictures.train))
    with torch.device("meta"):
        if more == "hidden":
            sizes = ({"width": width, "hidden": n} for n in count(1))
        else:
            sizes = ({"width": n, "hidden": 0} for n in count(width))
        many = partial(cnn_of, pictures)
        return next(size for size in sizes if parameters_of(many(**size)) >= wanted)
