"""Random patches of scikit-learn's two photographs, split into a training and a held-out part, or
white noise.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from examples.learned.data import BadInput

DATA = ("images", "noise")
LEARNED = 0.75
"""The share of each photograph's columns to learn from; patches of the rest share no pixel with
them.
"""


@dataclass(frozen=True)
class Patches:
    """The images from which patches are drawn.

    Attributes:
        learn: float32 images (3, rows, columns), each channel with mean 0 and deviation 1; none for
            noise.
        held: the same, held out.
        side: pixels along each axis of a patch.
    """

    learn: tuple[Tensor, ...]
    held: tuple[Tensor, ...]
    side: int

    def draw(self, count: int, generator: torch.Generator, held_out: bool = False) -> Tensor:
        """Draw patches (count, 3, side, side) at random positions."""
        images = self.held if held_out else self.learn
        if not images:
            return torch.randn(count, 3, self.side, self.side, generator=generator)
        which = torch.randint(len(images), (count,), generator=generator).tolist()
        places = torch.rand(count, 2, generator=generator).tolist()
        drawn = []
        for image, at in zip(which, places, strict=True):
            room = [n - self.side + 1 for n in images[image].shape[1:]]
            row, column = (int(share * n) for share, n in zip(at, room, strict=True))
            drawn.append(images[image][:, row : row + self.side, column : column + self.side])
        return torch.stack(drawn)


def patches(data: str, side: int) -> Patches:
    """Patches of photographs, or of white noise, in which no pixel says anything about its
    neighbours.

    Args:
        data: one of ``DATA``.
        side: pixels along each axis of a patch.

    Raises:
        BadInput: the photographs are too small for such a patch.
    """
    if data == "noise":
        return Patches((), (), side)
    from sklearn.datasets import load_sample_images

    pictures = np.stack(load_sample_images().images)  # (2, rows, columns, 3)
    x = torch.from_numpy(pictures).movedim(3, 1).float()
    x = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)
    cut = round(LEARNED * x.shape[3])
    if side > min(x.shape[2], x.shape[3] - cut):
        raise BadInput(
            f"--side is {side}, and a held-out part is {x.shape[2]} × {x.shape[3] - cut} pixels"
        )
    return Patches(tuple(x[..., :cut]), tuple(x[..., cut:]), side)
