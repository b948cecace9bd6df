"""The CNNs that attention starts from: the demo network for digits, and a larger one for CIFAR-10
and Fashion-MNIST.
"""

from collections import OrderedDict
from functools import lru_cache

import torch
from torch import Tensor, nn

from examples.learned.command import read
from examples.learned.data import BadInput, Pictures

read_once = lru_cache(maxsize=1)(read)
"""The pictures of a folder, from which all seeds learn."""


def trained_cnn(seed: int, epochs: int) -> tuple[nn.Sequential, list[Tensor]]:
    """The demo network, trained as in ``examples/train_digits_cnn.py``, and its data: train and
    test pictures and labels.
    """
    # imports scikit-learn, which processes that teach on noise do not need
    from examples import train_digits_cnn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = train_digits_cnn.digits(seed)
        cnn = train_digits_cnn.digits_cnn()
        train_digits_cnn.train(cnn, parts[0], parts[2], epochs)
    return cnn.eval(), parts


def cnn_for(channels: int, size: tuple[int, int], classes: int, width: int) -> nn.Sequential:
    """The untrained CNN, (B, C, rows, columns) → (B, classes): 3 × 3 kernels, even ones with a
    stride, one of its input's size.

    Raises:
        BadInput: the pictures' sides are not divisible by four.
    """
    from examples.train_digits_cnn import block

    if any(n % 4 for n in size):
        raise BadInput(f"pictures of {size[0]} × {size[1]} cannot be halved twice")
    rows, columns = (n // 4 for n in size)
    layers = {
        "stem": block(nn.Conv2d(channels, width, 3, padding=1, bias=False)),
        "shrink": block(nn.Conv2d(width, 2 * width, 2, stride=2, bias=False)),
        "context": block(nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)),
        "shrink_again": block(nn.Conv2d(2 * width, 4 * width, 2, stride=2, bias=False)),
        "mix": block(nn.Conv2d(4 * width, 4 * width, 3, padding=1, groups=4, bias=False)),
        "head": nn.Conv2d(4 * width, classes, (rows, columns)),
        "flatten": nn.Flatten(),
    }
    return nn.Sequential(OrderedDict(layers))


def cnn_of(pictures: Pictures, width: int) -> nn.Sequential:
    """The untrained CNN for these pictures.

    Raises:
        BadInput: see :func:`cnn_for`.
    """
    channels, rows, columns = pictures.train.shape[1:]
    return cnn_for(channels, (rows, columns), pictures.classes, width)


def trained_on(pictures: Pictures, seed: int, epochs: int, width: int) -> nn.Sequential:
    """The CNN trained on all train pictures, in eval mode."""
    from examples import train_digits_cnn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        cnn = cnn_of(pictures, width)
        train_digits_cnn.train(cnn, pictures.train, pictures.train_labels, epochs)
    return cnn.eval()
