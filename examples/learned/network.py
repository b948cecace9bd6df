"""The paper's network: an invertible downsampling, layers of attention, each followed by dense
layers, and a classifier.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from construct import MHSA, conv_to_mhsa
from examples.learned.data import BadInput
from examples.learned.quick import quick
from examples.learned.running.group import Dropout
from examples.learned.variants import Shape, Variant, layer_of

FEW_TOKENS = 64
"""Up to this many tokens, one softmax over all heads trains faster than a factor for each head and
axis.
"""


class Downsample(nn.Module):
    """Turn 2 × 2 pixels into four times the channels; no number changes, so it can be undone
    exactly.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, rows, columns) → (B, 4C, rows/2, columns/2).

        Raises:
            BadInput: the number of rows or columns is odd.
        """
        rows, columns = x.shape[2:]
        if rows % 2 or columns % 2:
            raise BadInput(
                f"pictures of {rows} × {columns} cannot be downsampled by 2: both must be even"
            )
        blocks = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # (b, c, r, 2, k, 2)
        return blocks.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)


class AbsolutePositions(nn.Module):
    """Learned absolute positional embedding: X + P.

    Args:
        channels: C.
        grid: the spatial size of the inputs.
    """

    def __init__(self, channels: int, grid: tuple[int, ...]):
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(channels, *grid))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *grid) → the same shape.

        Raises:
            ValueError: the input has another size.
        """
        if x.shape[1:] != self.places.shape:
            raise ValueError(
                f"the positions are those of {tuple(self.places.shape)}, and this input is {tuple(x.shape[1:])}"
            )
        return x + self.places


class Block(nn.Module):
    """Attention, dense, dropout and LayerNorm, and the same again around two dense layers; with a
    residual each, as in BERT.

    Args:
        attention: (B, width, rows, columns) → the same shape; a convolution in the controls.
        shape: the sizes of the network.
        tokens: the number of tokens of an input.
    """

    def __init__(self, attention: MHSA | nn.Conv2d, shape: Shape, tokens: int):
        super().__init__()
        self.attention = attention
        self.quick = None
        if isinstance(attention, MHSA):
            if tokens <= FEW_TOKENS:
                attention.execution = "dense"
            else:
                self.quick = quick(attention)
        self.dense = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.widen, self.narrow = (
            nn.Linear(shape.width, shape.intermediate),
            nn.Linear(shape.intermediate, shape.width),
        )
        self.last_norm = nn.LayerNorm(shape.width)
        self.dropout = Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, rows, columns) → the same shape."""
        tokens = x.movedim(1, -1)
        tokens = self.norm(tokens + self.dropout(self.dense(self.attended(x).movedim(1, -1))))
        more = self.narrow(nn.functional.gelu(self.widen(tokens)))
        return self.last_norm(tokens + self.dropout(more)).movedim(-1, 1)

    def attended(self, x: Tensor) -> Tensor:
        """What the attention alone computes: (B, width, rows, columns) → the same shape."""
        if self.quick is None or not isinstance(self.attention, MHSA):
            return self.attention(x)
        return self.quick(self.attention, x)

    def with_attention(self, attention: nn.Conv2d) -> "Block":
        """The same block with another layer in place of its attention; all else is shared."""
        block = copy.copy(self)
        block._modules = {**self._modules, "attention": attention}
        block.quick = None
        return block


class AttentionNet(nn.Module):
    """Classify pictures by attention alone.

    Args:
        variant: what learns.
        shape: the sizes of the network.
        picture: C, rows, columns of the pictures.
        classes: the number of classes.

    Raises:
        BadInput: heads, width, keys or pictures do not fit together.
    """

    def __init__(self, variant: Variant, shape: Shape, picture: tuple[int, int, int], classes: int):
        super().__init__()
        channels, *size = picture
        if any(n % 2 for n in size):
            raise BadInput(
                f"pictures of {size[0]} × {size[1]} cannot be downsampled by 2: both must be even"
            )
        self.grid = (size[0] // 2, size[1] // 2)
        self.picture = picture
        self.downsample, self.embed = Downsample(), nn.Linear(4 * channels, shape.width)
        self.places = (
            AbsolutePositions(shape.width, self.grid) if variant.absolute else nn.Identity()
        )
        tokens = self.grid[0] * self.grid[1]
        self.blocks = nn.ModuleList(
            Block(layer_of(variant, shape, self.grid), shape, tokens) for _ in range(shape.layers)
        )
        self.classify = nn.Linear(shape.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, rows, columns) → (B, classes).

        Raises:
            BadInput: the pictures have another size.
        """
        return self.classified(self.states(x)[-1])

    def classified(self, state: Tensor) -> Tensor:
        """The logits of a final output: (B, width, rows/2, columns/2) → (B, classes)."""
        return self.classify(state.mean((2, 3)))

    def states(self, x: Tensor) -> list[Tensor]:
        """The input of every attention layer and the final output, each
        (B, width, rows/2, columns/2).
        """
        if tuple(x.shape[1:]) != self.picture:
            size = " × ".join(map(str, x.shape[1:]))
            raise BadInput(
                f"pictures of {size}, where the network takes {' × '.join(map(str, self.picture))}"
            )
        states = [self.places(self.embed(self.downsample(x).movedim(1, -1)).movedim(-1, 1))]
        for block in self.blocks:
            states.append(block(states[-1]))
        return states

    def attentions(self) -> list[MHSA]:
        """The attention layers, in order; a control's convolutions as the attention that computes
        them.
        """
        layers: list[Any] = [block.attention for block in self.blocks]
        return [layer if isinstance(layer, MHSA) else conv_to_mhsa(layer) for layer in layers]
