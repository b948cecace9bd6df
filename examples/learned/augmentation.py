"""Changes of the train pictures: shifts and mirror images, and CutMix."""

import torch
from torch import Tensor, nn

from examples.learned.running import group


def augmented(x: Tensor, whole: int) -> Tensor:
    """Pictures shifted by up to 4 pixels, with zeros around, and half of them mirrored:
    (B, C, n, m) → the same shape.

    Args:
        x: the pictures of this process.
        whole: the number of pictures of all processes together.
    """
    (batch, _, rows, columns), padded = x.shape, nn.functional.pad(x, (4, 4, 4, 4))
    down, right = group.part(torch.randint(0, 9, (whole, 2, 1), device=x.device)).unbind(1)
    row = (torch.arange(rows, device=x.device) + down)[:, None, :, None]
    column = torch.arange(columns, device=x.device).expand(batch, -1)
    mirrored = group.part(torch.rand(whole, 1, device=x.device)) < 0.5
    column = (torch.where(mirrored, columns - 1 - column, column) + right)[:, None, None, :]
    picture = torch.arange(batch, device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return padded[picture, channel, row, column]


def mixed(x: Tensor, pasted: Tensor) -> tuple[Tensor, float]:
    """CutMix: a rectangle of every picture comes from another picture.

    Args:
        x: the pictures, (B, C, n, m).
        pasted: those that the rectangles come from, of the same shape.

    Returns:
        The pictures, and the share of the area that is the picture's own.
    """
    sizes, side = x.shape[2:], float(torch.rand(())) ** 0.5  # the area is uniform
    starts = [int(torch.randint(0, n, ())) - round(side * n) // 2 for n in sizes]
    rows, columns = (
        slice(max(0, start), max(0, start + round(side * n)))
        for start, n in zip(starts, sizes, strict=True)
    )
    x = x.clone()
    x[:, :, rows, columns] = pasted[:, :, rows, columns]
    return x, 1 - x[0, 0, rows, columns].numel() / sizes.numel()
