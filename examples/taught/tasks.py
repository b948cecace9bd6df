"""What networks go on to learn: the same pictures, shifted ones, or whether two objects that may be
far apart are the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from examples.learned.data import Pictures

TASKS = {
    "same": "the pictures that the CNN learned from",
    "shifted": "the same pictures, shifted",
    "apart": "two coloured squares on noise: are they of the same colour?",
}
VALIDATED = 10
"""One train picture in so many is held out to choose rates on."""
SIDE, NOISE = 8, 0.25
"""The side of a coloured square, and the deviation of the noise."""
COLOURS = ((2, 2, 2), (-2, -2, -2), (2, -2, 0), (-2, 2, 0), (0, 2, -2), (0, -2, 2))
"""Red, green and blue."""
BESIDE, FAR = 2, 10
"""Two objects are beside each other up to the one gap, far apart from the other on, in pixels.  A
unit before the CNN's classifier sees 18 pixels along an axis: it can see both of two objects of 8
pixels with a gap of 2, and never the whole of both if the gap is 10 or more.
"""

Batch = tuple[Tensor, Tensor]
"""Pictures (B, C, rows, columns) and labels (B,)."""


@dataclass(frozen=True)
class Task:
    """A task's pictures.

    Attributes:
        size: how many pictures an epoch has.
        draw: the pictures with these numbers, which may be changed or drawn by the generator.
        tests: pictures to measure on, by name; the first are the task's own.
    """

    size: int
    draw: Callable[[Tensor, torch.Generator], Batch]
    tests: dict[str, Batch]


def reach_of(x: Tensor) -> int:
    """The most pixels by which pictures are shifted: an eighth of the side, and at least 2."""
    return max(2, min(x.shape[2:]) // 8)


def shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures shifted by up to ``reach_of`` pixels along each axis, with zeros coming in:
    (B, C, rows, columns) → the same shape.
    """
    reach, (rows, columns) = reach_of(x), x.shape[2:]
    padded = nn.functional.pad(x, (reach,) * 4)
    places = torch.randint(0, 2 * reach + 1, (len(x), 2), generator=generator).tolist()
    moved = [
        one[:, r : r + rows, c : c + columns] for one, (r, c) in zip(padded, places, strict=True)
    ]
    return torch.stack(moved)


def occluded(x: Tensor, generator: torch.Generator) -> Tensor:
    """Pictures with a square of half the side covered by zeros, the mean of the data, somewhere:
    (B, C, rows, columns) → the same shape.
    """
    x = x.clone()
    side = min(x.shape[2:]) // 2
    for one in x:
        row, column = (
            int(torch.randint(0, n - side + 1, (), generator=generator)) for n in x.shape[2:]
        )
        one[:, row : row + side, column : column + side] = 0
    return x


def pairs(like: Tensor, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw pictures of noise with two squares that do not overlap: in half of them of the same
    colour, in the others of two colours.

    Args:
        like: pictures of the wanted size, (…, 3, rows, columns).
        number: how many.
        generator: the random number generator.

    Returns:
        Pictures (number, 3, rows, columns); labels, 1 where the two are the same; the gap between
        the two in pixels, along the axis where it is the larger.
    """
    rows, columns = like.shape[-2:]
    room = torch.tensor([rows - SIDE + 1, columns - SIDE + 1])
    places = torch.zeros(number, 2, 2, dtype=torch.long)
    apart = torch.zeros(number, dtype=torch.long)
    while (overlap := apart < SIDE).any():
        drawn = torch.rand(int(overlap.sum()), 2, 2, generator=generator)
        places[overlap] = (drawn * room).long()
        apart = (places[:, 0] - places[:, 1]).abs().amax(1)
    labels = torch.randint(0, 2, (number,), generator=generator)
    first = torch.randint(0, len(COLOURS), (number,), generator=generator)
    further = torch.randint(1, len(COLOURS), (number,), generator=generator)
    second = (first + further * (1 - labels)) % len(COLOURS)
    pictures = NOISE * torch.randn(number, 3, rows, columns, generator=generator)
    for picture, corners, kinds in zip(
        pictures, places.tolist(), torch.stack([first, second], 1).tolist(), strict=True
    ):
        for (row, column), kind in zip(corners, kinds, strict=True):
            square = picture[:, row : row + SIDE, column : column + SIDE]
            square += torch.tensor(COLOURS[kind])[:, None, None]
    return pictures, labels, apart - SIDE


def validation_of(pictures: Pictures, train: int) -> tuple[Pictures, int]:
    """The train pictures alone: of the first ``train`` a tenth is there to measure on, and is left
    out of all training, the CNN's own too.

    Returns:
        The pictures, and how many of the first are left to train on.
    """
    cut = train - max(1, train // VALIDATED)
    x, y = pictures.train, pictures.train_labels
    left = torch.cat([x[:cut], x[train:]]), torch.cat([y[:cut], y[train:]])
    held = x[cut:train], y[cut:train]
    names = ("train", "train_labels", "test", "test_labels")
    return replace(pictures, **dict(zip(names, (*left, *held), strict=True))), cut


def task_of(name: str, pictures: Pictures, train: int, test: int | None, seed: int) -> Task:
    """The pictures of a task.

    Args:
        name: a key of ``TASKS``.
        pictures: those that the CNN learned from.
        train: how many pictures an epoch has, from the first train picture on.
        test: how many test pictures are measured on; all of them without it.
        seed: of what is drawn for the test pictures.
    """
    x, y = pictures.train[:train], pictures.train_labels[:train]
    held, labels = pictures.test[:test], pictures.test_labels[:test]
    if name == "apart":
        return _apart(x, len(held), seed)
    moved = shifted(held, torch.Generator().manual_seed(seed))
    covered = occluded(held, torch.Generator().manual_seed(seed))
    if name == "shifted":
        return Task(len(x), lambda n, g: (shifted(x[n], g), y[n]), {"shifted": (moved, labels)})
    tests = {"plain": (held, labels), "shifted": (moved, labels), "occluded": (covered, labels)}
    return Task(len(x), lambda n, _: (x[n], y[n]), tests)


def _apart(like: Tensor, number: int, seed: int) -> Task:
    """The task of two squares, drawn anew for every batch; those of the test from ``seed`` for all
    runs.  A run of that seed draws other squares all the same, as it draws its order first.
    """

    def draw(chosen: Tensor, generator: torch.Generator) -> Batch:
        return pairs(like, len(chosen), generator)[:2]

    x, y, gap = pairs(like, number, torch.Generator().manual_seed(seed))
    parts = {
        "apart": gap >= 0,
        "beside": gap <= BESIDE,
        "between": (gap > BESIDE) & (gap < FAR),
        "far": gap >= FAR,
    }
    return Task(len(like), draw, {name: (x[part], y[part]) for name, part in parts.items()})
