"""Export and compilation: processor time of each, with its target, and the length of an exported
program.

    python -m benchmarks.export [NAME ...] [--json FILE]

One thread, each row in its own process, with nothing cached from earlier ones.  An export includes
saving, reloading and one run of the file.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

import construct
from benchmarks import shapes
from benchmarks.results import Row, parsed, publish
from construct.files.export import export_program, to_onnx, to_pt2


def seconds(work: Callable[[], object]) -> float:
    """Processor time, including that of compilers it starts."""
    before = os.times()
    work()
    return sum(os.times()[:4]) - sum(before[:4])


def exported(make: Callable[[], nn.Module], to: Callable, size: tuple[int, ...]) -> list[float]:
    """The time of an export."""
    network = construct.convert(make().eval())
    return [seconds(lambda: to(network, size))]


def nodes() -> list[float]:
    """How many operations an exported layer with 49 or 121 heads has beyond one with 9."""
    lengths = list[int]()
    for k in (3, 7, 11):
        layer = construct.convert(nn.Conv2d(3, 4, k, padding=k // 2))
        program, _ = export_program(layer, (3, 32, 32))
        lengths.append(len(program.graph.nodes))
    return [length - lengths[0] for length in lengths[1:]]


def compiled() -> list[float]:
    """The first call of a compiled, converted ResNet-50 relative to the original's."""
    with torch.no_grad():  # the first compilation of a process has costs that belong to neither
        torch.compile(nn.Conv2d(3, 4, 3))(torch.ones(1, 3, 8, 8))
        spent = []
        for convert in (construct.convert, lambda network: network):
            network = convert(shapes.resnet50()).requires_grad_(False)
            torch.compiler.reset()
            spent.append(
                seconds(partial(torch.compile(network, dynamic=False), torch.randn(1, 3, 128, 128)))
            )
    return [spent[0] / spent[1]]


ROWS: dict[str, tuple[Row, Callable[[], list[float]]]] = {
    "resnet50-pt2": (
        Row("ResNet-50 to .pt2, saved, loaded and run", (), 30, "s"),
        partial(exported, shapes.resnet50, to_pt2, (3, 224, 224)),
    ),
    "resnet50-onnx": (
        Row("ResNet-50 to ONNX, with one run", (), 30, "s"),
        partial(exported, shapes.resnet50, to_onnx, (3, 224, 224)),
    ),
    "pitch-pt2": (
        Row("a six-layer pitch network to .pt2", (), 15, "s"),
        partial(exported, shapes.pitch, to_pt2, (1, 1024)),
    ),
    "11x11-pt2": (
        Row("one 11 × 11 layer to .pt2", (), 15, "s"),
        partial(exported, lambda: nn.Conv2d(3, 8, 11, padding=5), to_pt2, (3, 64, 64)),
    ),
    "unet3d-onnx": (
        Row("a 3-D U-Net to ONNX", (), 30, "s"),
        partial(exported, shapes.unet3d, to_onnx, (1, 32, 32, 32)),
    ),
    "nodes": (Row("operations of a layer with 49, 121 heads beyond those with 9", (), 0), nodes),
    "compile": (
        Row("torch.compile of ResNet-50 at 128², to that of the original", (), 2),
        compiled,
    ),
}
"""Each row without its values, and what measures them."""


def measured(name: str) -> Row:
    """A row, measured in its own process."""
    row, _ = ROWS[name]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        words = [sys.executable, "-m", "benchmarks.export", "--alone", name]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    return replace(row, values=tuple(json.loads(done.stdout.splitlines()[-1])))


def main(words: Sequence[str] | None = None) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.export", description="Export and compilation."
    )
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parsed(parser, ROWS, words)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.alone:
        print(json.dumps(ROWS[options.alone][1]()))
        return
    publish("python -m benchmarks.export", map(measured, options.names), options.json)


if __name__ == "__main__":
    main()
