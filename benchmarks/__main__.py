"""The constructed attention beside the convolution that it equals: ratios of times and other
figures, with their goals.

    python -m benchmarks [NAME ...] [--device cpu|cuda] [--rounds N] [--json FILE]

A ratio is the attention's time divided by that of torch's own convolution.  Both take turns in one
process, and the ratio is the median over the rounds.  A network's time is the sum over its
convolutions, each in the faster of two memory layouts.  With one thread it is processor time.
Nothing is asserted.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from benchmarks import layers
from benchmarks.results import Row, parsed, publish


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="The constructed attention beside the convolution that it equals.",
    )
    parser.add_argument(
        "--device",
        type=torch.device,
        default="cpu",
        help="cpu, or cuda, where everything is measured",
    )
    parser.add_argument("--rounds", type=int, default=9)
    options = parsed(parser, layers.PARTS, words)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU (torch.cuda.is_available() is False): leave --device out")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: Iterator[Row]
    if options.device.type == "cuda":
        rows = layers.on_a_gpu(options.rounds, options.device)
    else:
        rows = chain.from_iterable(layers.PARTS[name](options.rounds) for name in options.names)
    chosen = [] if options.names == [*layers.PARTS] else options.names
    publish(" ".join(["python -m benchmarks", *chosen]), rows, options.json, options.device)


if __name__ == "__main__":
    main()
