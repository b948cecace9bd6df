"""Train the demo network: six convolutions of six different kinds that read handwritten digits.

    python examples/train_digits_cnn.py [--write [OUT]] [--epochs N] [--seed S]

Data: scikit-learn's bundled digits (`sklearn.datasets.load_digits`, nothing is downloaded), 1797
images of 8×8 pixels with values 0..16, scaled here to [0, 1]. Split: 1437 to train, 360 to test
(20 %), stratified by digit, drawn with the seed; the same people wrote in both parts, so the test
says nothing about a stranger's hand. Measured as shipped (30 epochs, seed 0): 100.00 % on the train
images, 99.44 % on the test images; seeds 1 to 4 gave 98.61 to 99.72 % there.

One seed gives the same weights, bit for bit, on one machine and version of torch; elsewhere
rounding may differ. Nothing is written without `--write`, nor if the network reads no more than 95
% of the test images.
"""

import argparse
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

OUT = Path(__file__).resolve().parents[1] / "construct" / "command" / "demo" / "digits_cnn.pt"


def block(conv: nn.Conv2d, norm: bool = True) -> nn.Sequential:
    """A convolution, optional batch normalisation, and a ReLU."""
    norms = {"norm": nn.BatchNorm2d(conv.out_channels)} if norm else {}
    return nn.Sequential(OrderedDict({"conv": conv} | norms | {"relu": nn.ReLU()}))


def digits_cnn() -> nn.Sequential:
    """The untrained network, (N, 1, 8, 8) → (N, 10). No nn.Linear: the classifier is a convolution
    too.
    """
    # (N, 16, 8, 8)
    # (N, 16, 8, 8), bias and norm
    layers = {
        "stem": block(nn.Conv2d(1, 16, 3, padding=1, padding_mode="replicate", bias=False)),
        "context": block(nn.Conv2d(16, 16, 3, padding="same", dilation=2)),
        "shrink": block(nn.Conv2d(16, 24, 2, stride=2), norm=False),  # (N, 24, 4, 4), even kernel
        "depthwise": nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False),  # (N, 24, 4, 4)
        "mix": block(nn.Conv2d(24, 24, 1, bias=False)),  # (N, 24, 4, 4)
        "head": nn.Conv2d(24, 10, 4),  # (N, 10, 1, 1)
        "flatten": nn.Flatten(),  # (N, 10)
    }
    return nn.Sequential(OrderedDict(layers))


def digits(seed: int) -> list[torch.Tensor]:
    """Train images, test images (N, 1, 8, 8), train labels, test labels (N,)."""
    pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = (pixels / 16).float().reshape(-1, 1, 8, 8)
    split: Any = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)
    return split


def train(
    model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, epochs: int, batch: int = 64
) -> None:
    """Fit in place by AdamW, with one warm-up and cool-down of the learning rate; leave the model
    in eval mode.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    steps = epochs * -(-len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            loss = nn.functional.cross_entropy(
                model(images[chosen]), labels[chosen], label_smoothing=0.1
            )
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Sequential, images: torch.Tensor, labels: torch.Tensor) -> float:
    """The fraction of images whose largest logit is the right digit."""
    return (model(images).argmax(1) == labels).double().mean().item()


def main(argv: Sequence[str] | None = None) -> None:
    """Train, measure, and write the model if requested and if it reads well enough."""
    parser = argparse.ArgumentParser(description="Train the demo CNN on scikit-learn's digits.")
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=OUT,
        metavar="OUT",
        help="write the model (to the one that ships)",
    )
    parser.add_argument(
        "--epochs", type=int, default=30, help="passes over the train images (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of split, start and order (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    train_images, test_images, train_labels, test_labels = digits(args.seed)
    model, start = digits_cnn(), time.perf_counter()
    train(model, train_images, train_labels, args.epochs)
    reads = accuracy(model, test_images, test_labels)
    seconds, fits = time.perf_counter() - start, accuracy(model, train_images, train_labels)
    print(
        f"train accuracy {fits:.2%}, test accuracy {reads:.2%} ({args.epochs} epochs, {seconds:.1f} s)"
    )
    assert reads > 0.95, f"test accuracy {reads:.2%} is not above 95 %; nothing was written"
    if args.write:
        torch.save(model, args.write)
        print(f"wrote {args.write} ({args.write.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
