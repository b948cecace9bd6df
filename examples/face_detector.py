# %% [markdown]
"""A trained face detector without a convolution: the three networks of MTCNN, converted, on a
photograph.

    pip install -c constraints.txt ".[demo]" && pip install -c constraints.txt --no-deps
    facenet-pytorch python examples/face_detector.py [--write [PICTURE.png]]

Networks and cascade follow the paper (Zhang, Zhang, Li and Qiao, *Joint Face Detection and
Alignment using Multi-task Cascaded Convolutional Networks*, 2016).  The trained weights are files
of the package facenet-pytorch, which is never imported; the photograph, of the astronaut Eileen
Collins (NASA, public domain), comes with scikit-image.  Nothing else is downloaded.
"""

# %%
import argparse
import math
import sys
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor, nn

import construct
from verify.argument.verdicts import certify_layer
from verify.plots.drawing import BLUE, FAINT, ORANGE, new_figure, style, write_figure
from verify.samples.network import runs
from verify.samples.sampling import check_on_activations

PICTURE = Path("docs/figures/face_detector.png")
parser = argparse.ArgumentParser(description="Find a face without a convolution.")
parser.add_argument(
    "--write", type=Path, nargs="?", const=PICTURE, help="write the picture (to %(const)s)"
)
write = parser.parse_known_args()[0].write  # a notebook has its own arguments
package = find_spec("facenet_pytorch")  # where its files are; this does not import it
if package is None or package.origin is None or find_spec("skimage") is None:
    install = 'pip install ".[demo]" && pip install --no-deps facenet-pytorch'
    sys.exit(
        f"the weights of facenet-pytorch or the photograph of scikit-image are missing ({install})"
    )
weights = Path(package.origin).parent / "data"

# %% [markdown] The three networks of the paper's Figure 2.  Each says how likely a square is a
# face, and how far off its sides are; the last also says where eyes, nose and mouth are.  The first
# has no dense layer, so it judges all squares of 12 × 12 pixels at once.


# %%
class Stage(nn.Sequential):
    """One network: layers in sequence, then its outputs (the names with an underscore), which all
    read the same features.
    """

    def forward(self, input: Tensor) -> list[Tensor]:
        """(N, 3, side, side) → no face and face (N, 2, …), corrections (N, 4, …) and, in the last
        network, landmarks (N, 10).
        """
        answers = []
        for name, layer in self.named_children():
            if "_" in name:
                answers.append(layer(input))
            else:
                input = layer(input)
        return answers


class ColumnsFirst(nn.Module):
    """(N, C, H, W) → (N, W·H·C), the order in which these weights were trained."""

    def forward(self, x: Tensor) -> Tensor:
        """Flatten."""
        return x.permute(0, 3, 2, 1).flatten(1)


def conv(number: int, inputs: int, outputs: int, size: int, pool: int = 0) -> dict[str, nn.Module]:
    """Convolution, PReLU, and max pooling by 2 if a window is given."""
    layers: dict[str, nn.Module] = {
        f"conv{number}": nn.Conv2d(inputs, outputs, size),
        f"prelu{number}": nn.PReLU(outputs),
    }
    return layers | (
        {f"pool{number}": nn.MaxPool2d(pool, stride=2, ceil_mode=True)} if pool else {}
    )


def dense(number: int, inputs: int, outputs: int) -> dict[str, nn.Module]:
    """A dense layer over all features, and PReLU."""
    layers: dict[str, nn.Module] = {
        f"dense{number}": nn.Linear(inputs, outputs),
        f"prelu{number}": nn.PReLU(outputs),
    }
    return {"flatten": ColumnsFirst()} | layers


def networks() -> dict[str, dict[str, nn.Module]]:
    """The layers of the three networks, by their names in the weight files."""
    p = conv(1, 3, 10, 3, pool=2) | conv(2, 10, 16, 3) | conv(3, 16, 32, 3)
    p |= {"conv4_1": nn.Conv2d(32, 2, 1), "conv4_2": nn.Conv2d(32, 4, 1)}
    r = (
        conv(1, 3, 28, 3, pool=3)
        | conv(2, 28, 48, 3, pool=3)
        | conv(3, 48, 64, 2)
        | dense(4, 576, 128)
    )
    r |= {"dense5_1": nn.Linear(128, 2), "dense5_2": nn.Linear(128, 4)}
    o = (
        conv(1, 3, 32, 3, pool=3)
        | conv(2, 32, 64, 3, pool=3)
        | conv(3, 64, 64, 3, pool=2)
        | conv(4, 64, 128, 2)
    )
    o |= dense(5, 1152, 256) | {
        f"dense6_{k}": nn.Linear(256, outputs) for k, outputs in ((1, 2), (2, 4), (3, 10))
    }
    return {"pnet": p, "rnet": r, "onet": o}


# %% [markdown] The cascade.  A box is (left, top, right, bottom) in pixels.  A score is the logit
# of "face", which keeps its order where the probability rounds to 1.  Boxes are cropped by their
# exact area: no rounded coordinate can jump to the next pixel.


# %%
def crop(image: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Boxes (N, 4) of an image (3, H, W) as averages over side × side equal cells,
    (N, 3, side, side); 0 outside the image.
    """

    def shares(
        low: Tensor, high: Tensor, pixels: int
    ) -> Tensor:  # of each pixel in each cell, (N, side, pixels)
        edges = low[:, None] + (high - low)[:, None] * torch.arange(side + 1) / side
        start, stop, pixel = edges[:, :-1, None], edges[:, 1:, None], torch.arange(pixels)
        return (torch.minimum(stop, pixel + 1) - torch.maximum(start, pixel)).clamp(min=0) / (
            stop - start
        )

    (left, top, right, bottom), (_, height, width) = boxes.T, image.shape
    return torch.einsum(
        "nyh,chw,nxw->ncyx", shares(top, bottom, height), image, shares(left, right, width)
    )


def suppress(boxes: Tensor, scores: Tensor, most: float, of_smaller: bool = False) -> Tensor:
    """Non-maximum suppression: indices of the boxes whose overlap with every better box that is
    kept is at most ``most``.
    """
    order = scores.argsort(descending=True)
    low, high = boxes[order, :2], boxes[order, 2:]
    area = (high - low).prod(1)
    shared = (
        (torch.minimum(high[:, None], high) - torch.maximum(low[:, None], low)).clamp(min=0).prod(2)
    )
    whole = torch.minimum(area[:, None], area) if of_smaller else area[:, None] + area - shared
    kept: list[int] = []
    for place in range(len(order)):
        if not (shared[place, kept] > most * whole[place, kept]).any():
            kept.append(place)
    return order[kept]


def moved(boxes: Tensor, corrections: Tensor) -> Tensor:
    """Move the sides of boxes by these fractions of width and height."""
    return boxes + corrections * (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)


def square(boxes: Tensor) -> Tensor:
    """The squares with the same centres, as large as the longer side."""
    centre, half = (
        (boxes[:, :2] + boxes[:, 2:]) / 2,
        (boxes[:, 2:] - boxes[:, :2]).amax(1, keepdim=True) / 2,
    )
    return torch.cat([centre - half, centre + half], 1)


class Faces(NamedTuple):
    """Boxes (N, 4), logits of "face" (N,), landmarks (N, 5, 2), and the boxes that each network
    passed on.
    """

    boxes: Tensor
    logits: Tensor
    landmarks: Tensor
    passed: dict[str, Tensor]


class Detector(nn.Module):
    """The cascade: each network judges what the previous one passed on."""

    pnet: Stage
    rnet: Stage
    onet: Stage

    def __init__(self) -> None:
        super().__init__()
        for name, layers in networks().items():
            stage = Stage(OrderedDict(layers))
            stage.load_state_dict(torch.load(weights / f"{name}.pt", weights_only=True))
            self.add_module(name, stage)

    def proposals(
        self, image: Tensor, smallest: float = 20.0, shrink: float = 0.709
    ) -> tuple[Tensor, Tensor]:
        """Boxes and logits that the first network passes on, for faces of all sizes: the image
        shrinks, the squares stay.
        """
        boxes, logits, scale = [], [], 12 / smallest
        sides = torch.tensor(image.shape[1:])
        while min(sides) * scale >= 12:
            shrunk = (sides * scale).ceil().int()
            scores, corrections = self.pnet(
                nn.functional.interpolate(image[None], shrunk.tolist(), mode="area")
            )
            logit = scores[0, 1] - scores[0, 0]
            rows, columns = (logit > math.log(0.6 / 0.4)).nonzero().T  # a probability of 0.6
            corner = 2 * torch.stack([columns, rows], 1)  # one pooling by 2
            box = torch.cat([corner, corner + 12], 1) * (sides / shrunk).flip(0).repeat(2)
            box, logit = moved(box, corrections[0, :, rows, columns].T), logit[rows, columns]
            kept = suppress(box, logit, 0.5)
            boxes.append(box[kept])
            logits.append(logit[kept])
            scale *= shrink
        return torch.cat(boxes), torch.cat(logits)

    def judged(
        self, stage: nn.Module, image: Tensor, boxes: Tensor, side: int
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The squares around these boxes that a network classifies as faces, their logits, and its
        other outputs.
        """
        boxes = square(boxes)
        scores, *others = stage(crop(image, boxes, side))
        logits = scores[:, 1] - scores[:, 0]
        faces = logits > math.log(0.7 / 0.3)
        return boxes[faces], logits[faces], [other[faces] for other in others]

    def forward(self, photo: Tensor) -> Faces:
        """The faces of a photograph (3, H, W) with values from 0 to 255."""
        image, passed = (photo - 127.5) / 128, {}
        boxes, logits = self.proposals(image)
        passed["P-Net"] = boxes = boxes[suppress(boxes, logits, 0.7)]
        boxes, logits, (corrections,) = self.judged(self.rnet, image, boxes, 24)
        boxes = moved(boxes, corrections)
        passed["R-Net"] = boxes = boxes[suppress(boxes, logits, 0.7)]
        boxes, logits, (corrections, points) = self.judged(self.onet, image, boxes, 48)
        landmarks = boxes[:, None, :2] + points.unflatten(1, (2, 5)).mT * (
            boxes[:, None, 2:] - boxes[:, None, :2]
        )
        boxes = moved(boxes, corrections)
        kept = suppress(boxes, logits, 0.7, of_smaller=True)
        passed["O-Net"] = boxes[kept]
        return Faces(boxes[kept], logits[kept], landmarks[kept], passed)


# %% [markdown]
# Twelve convolutions become attention, in one line.

# %%
from skimage.data import astronaut  # type: ignore[import-not-found]  # noqa: E402

photo = torch.tensor(astronaut()).permute(2, 0, 1).float()
detector = Detector().eval()
attention = construct.convert(detector)
with torch.no_grad():
    before, after = detector(photo), attention(photo)
    calls = [runs(network, [photo], {})[0].convolutions for network in (detector, attention)]
print(
    f"a photograph of {photo.shape[2]} × {photo.shape[1]} pixels; convolutions called: {calls[0]} before, {calls[1]} after"
)
for name, boxes in before.passed.items():
    print(f"{name} lets {len(boxes)} boxes pass, and as attention {len(after.passed[name])}")

# %% [markdown] Every layer is judged twice: on its activations from the photograph, and for all
# inputs up to the largest of them.

# %%
pairs: dict[str, tuple[nn.Module, nn.Module]] = {
    name: (module, attention.get_submodule(name))
    for name, module in detector.named_modules()
    if isinstance(module, nn.Conv2d)
}
checks = check_on_activations(detector, pairs, [photo], "the photograph")
print("layer         heads  calls  difference    bound  for all |x| ≤      verdict")
bounds, differences, verdicts = [], [], []
for name, (convolution, layer) in pairs.items():
    certificate, verdict = certify_layer(convolution, layer, checks[name])
    assert certificate is not None
    bounds.append(float(certificate.bound.max()))
    differences.append(checks[name].discrepancy.max_abs)
    verdicts.append(verdict.name)
    heads, calls_of, side = len(layer.get_parameter("v")), checks[name].calls, checks[name].grid[0]
    domain = f"{certificate.input_bound:g} on {side} × {side}"
    print(
        f"{name:14}{heads:5}{calls_of:7}{differences[-1]:12.1e}{bounds[-1]:9.1e}  {domain:17}  {verdict.name}"
    )

# %% [markdown] The faces.  Both networks must pass on the same boxes, as one at a threshold would
# show.  The difference is rounding: sums in another order, through twelve layers.  Measured: less
# than 2e-4 pixels of 512 (float32 has steps of 3e-5 there), and 5e-7 of a score; the limits leave
# room for the order of other processors.

# %%
for name, faces in (("convolution", before), ("attention", after)):
    for box, logit, points in zip(faces.boxes, faces.logits, faces.landmarks, strict=True):
        print(
            f"{name:11} score {float(logit.sigmoid()):.7f}, box {[round(x, 4) for x in box.tolist()]}"
        )
        print(
            f"{'':11} landmarks {[tuple(round(x, 2) for x in point) for point in points.tolist()]}"
        )
off = {
    "boxes": float((after.boxes - before.boxes).abs().max()),
    "landmarks": float((after.landmarks - before.landmarks).abs().max()),
    "scores": float((after.logits.sigmoid() - before.logits.sigmoid()).abs().max()),
}
print(
    f"they differ by {off['boxes']:.1e} pixels (landmarks {off['landmarks']:.1e}); scores by {off['scores']:.1e}"
)


# %%
def picture() -> Any:
    """The photograph twice, with the boxes that each cascade passes on, and the certificates of all
    layers.
    """
    with style():
        figure = new_figure(8.4, 2.85)
        *panels, chart = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
        titles = (
            f"original: {calls[0]} convolution calls",
            f"as attention: {calls[1]} convolution calls",
        )
        for ax, faces, title in zip(panels, (before, after), titles, strict=True):
            ax.imshow(photo.byte().permute(1, 2, 0).numpy())
            for name, boxes in faces.passed.items():
                look = (
                    {"color": BLUE, "lw": 2.5}
                    if name == "O-Net"
                    else {"color": "white", "lw": 0.5, "alpha": 0.45}
                )
                for left, top, right, bottom in boxes.tolist():
                    ax.plot(
                        (left, right, right, left, left), (top, top, bottom, bottom, top), **look
                    )
            ax.plot(
                *faces.landmarks.flatten(0, 1).T.numpy(),
                "o",
                color=BLUE,
                mec="white",
                mew=0.6,
                ms=4,
            )
            counts = " → ".join(f"{name} {len(boxes)}" for name, boxes in faces.passed.items())
            ax.set_xlabel(f"{counts}\nscore {float(faces.logits.max().sigmoid()):.6f}", fontsize=9)
            ax.set(
                xlim=(0, photo.shape[2]),
                ylim=(photo.shape[1], 0),
                xticks=[],
                yticks=[],
                title=title,
            )
        rows, least = range(len(pairs)), 1e-8
        chart.hlines(rows, least, bounds, color=FAINT, lw=0.6)
        chart.plot(bounds, rows, "|", color=BLUE, ms=8, mew=2, label="PROVED bound")
        chart.plot(
            [max(x, least) for x in differences],
            rows,
            "o",
            color=ORANGE,
            ms=4,
            label="largest seen",
        )
        for row in (row for row in rows if not differences[row]):
            chart.annotate(
                "0", (least, row), (4, 1), textcoords="offset points", fontsize=8, color=ORANGE
            )
        chart.set(xscale="log", xlim=(least, 1e-1), title="attention − convolution")
        chart.set_yticks(rows, list(pairs), fontsize=8)
        chart.invert_yaxis()
        chart.legend(
            loc="upper center",
            bbox_to_anchor=(0.4, -0.1),
            ncols=2,
            handletextpad=0.1,
            columnspacing=1,
        )
        return figure


if write:
    write_figure(picture(), write)
    drawn, marks = Image.open(write), PngInfo()
    for key in ("Source", "Software"):
        marks.add_text(key, drawn.info[key])
    # a quarter of the size
    drawn.convert("RGB").quantize(128).save(write, optimize=True, pnginfo=marks)
    print(f"wrote {write}")
assert len(after.boxes) == 1
assert off["boxes"] < 1e-3
assert off["landmarks"] < 1e-3
assert off["scores"] < 1e-5
assert all(len(after.passed[name]) == len(boxes) for name, boxes in before.passed.items())
assert calls[0] == sum(check.calls for check in checks.values()) > 0
assert calls[1] == 0
assert verdicts == ["PROVED"] * 12
