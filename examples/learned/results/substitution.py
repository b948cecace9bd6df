"""What a convolution in the place of an attention layer does: on the layer's real inputs, and to
the network's accuracy.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from examples.learned.network import AttentionNet, Block
from examples.learned.results.maps import maps_of
from examples.learned.results.ruler import SIZES, margin, matrices_of, middle
from examples.learned.results.shifts import Shifts

KERNELS = [size for size in SIZES if size]
BATCH = 50
"""Pictures that are classified at once: few, so that what attention computes of them stays in the
processor's cache.
"""


@torch.no_grad()
def explained_variance(network: AttentionNet, x: Tensor) -> list[list[float]]:
    """R² of the best k × k convolution from a layer's real inputs to its outputs, on pictures that
    it was not fitted to.

    Least squares over the outputs in the middle of the grid of the first half of the pictures; R²
    is that of the second half.

    Args:
        network: the network, in any mode.
        x: pictures, (B, C, rows, columns), B even.

    Returns:
        For each layer a number for each of ``KERNELS``: 1 if a convolution does on these inputs
        what the layer does.
    """
    network.eval()
    rows = []
    inside = torch.from_numpy(middle(network.grid))
    largest = max(KERNELS)
    for block, state in zip(network.blocks, network.states(x), strict=False):
        assert isinstance(block, Block)
        # (B, queries, D)
        outputs = block.attended(state).flatten(2)[:, :, inside].movedim(1, 2).double()
        windows = unfold(_around_the_middle(state, largest // 2), largest).movedim(1, 2).double()
        (fit, test), (fit_y, test_y) = (
            [half.flatten(0, 1) for half in t.chunk(2)] for t in (windows, outputs)
        )
        centre, mean = fit.mean(0), fit_y.mean(0)
        a = fit - centre
        gram, cross = _gram(a), a.mT @ (fit_y - mean)
        about, total = test - centre, (test_y - test_y.mean(0)).square().sum()
        scores = []
        for size in KERNELS:
            # the smaller windows are parts of the largest
            taps = _taps_within(size, largest, state.shape[1])
            part = gram[taps][:, taps]
            # neighbouring tokens may be nearly dependent
            part.diagonal().add_(1e-9 * part.diagonal().mean())
            left = (
                test_y
                - mean
                - about[:, taps] @ torch.cholesky_solve(cross[taps], torch.linalg.cholesky(part))
            )
            scores.append(1 - float(left.square().sum() / total))
        rows.append(scores)
    return rows


def _around_the_middle(state: Tensor, reach: int) -> Tensor:
    """What outputs in the middle of the grid read of their inputs within a reach, with zeros beyond
    the border.
    """
    edge = margin((state.shape[2], state.shape[3]))
    rows, columns = (slice(edge, n - edge + 2 * reach) for n in state.shape[2:])
    return pad(state, [reach] * 4)[..., rows, columns]


def _gram(a: Tensor) -> Tensor:
    """AᵀA of (rows, columns): of a matrix and its own transpose numpy multiplies half of the
    entries alone.
    """
    entries = a.cpu().numpy()
    return torch.from_numpy(entries.T @ entries).to(a.device)


def _taps_within(size: int, largest: int, channels: int) -> Tensor:
    """Where the entries of a centred window are among those of a larger one, as :func:`unfold`
    orders them.
    """
    edge = (largest - size) // 2
    inner = torch.zeros(channels, largest, largest, dtype=torch.bool)
    inner[:, edge : edge + size, edge : edge + size] = True
    return inner.flatten().nonzero()[:, 0]


@torch.no_grad()
def accuracy_after(
    network: AttentionNet, x: Tensor, labels: Tensor, pictures: Tensor
) -> list[list[float]]:
    """Accuracy after one layer is replaced by its nearest k × k convolution, everything else
    untouched.

    Args:
        network: the network, in any mode.
        x: the pictures to classify, (B, C, rows, columns).
        labels: their classes, (B,).
        pictures: pictures over which attention is averaged.

    Returns:
        For each layer a number for each of ``KERNELS``.
    """
    network.eval()
    blocks = []
    for layer, p, block in zip(
        network.attentions(), maps_of(network, pictures), network.blocks, strict=True
    ):
        assert isinstance(block, Block)
        w = matrices_of(layer)
        shifts = Shifts(p.mean(0), w, network.grid)
        blocks.append(
            [
                block.with_attention(_convolution(shifts.kernel(size, w), layer.b_out))
                for size in KERNELS
            ]
        )
    right = torch.zeros(len(blocks), len(KERNELS), dtype=torch.int64)
    for part, answers in zip(x.split(BATCH), labels.split(BATCH), strict=True):
        states = network.states(part)  # those before the block stay as they are
        for number, of_layer in enumerate(blocks):
            for place, block in enumerate(of_layer):
                state = block(states[number])
                for later in network.blocks[number + 1 :]:
                    state = later(state)
                right[number, place] += (network.classified(state).argmax(1) == answers).sum().cpu()
    return (right.double() / len(x)).tolist()


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, labels: Tensor) -> float:
    """The fraction of pictures whose largest logit is that of the right class."""
    right = [
        int((network(part).argmax(1) == answers).sum())
        for part, answers in zip(x.split(BATCH), labels.split(BATCH), strict=True)
    ]
    return sum(right) / len(x)


def _convolution(kernel: np.ndarray, bias: Tensor) -> nn.Conv2d:
    width, channels, size, _ = kernel.shape
    conv = nn.Conv2d(channels, width, size, padding=size // 2)
    conv.weight.copy_(torch.from_numpy(kernel))
    assert conv.bias is not None
    conv.bias.copy_(bias)
    return conv
