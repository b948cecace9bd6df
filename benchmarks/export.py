"""Export and compilation: processor time of each, with its target, and the length of an exported program.

    python -m benchmarks.export [ROW ...]

One thread, each row in its own process, with nothing cached from earlier ones.  An export includes saving, reloading and one run
of the file.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import construct
from benchmarks import shapes
from benchmarks.rows import verdict
from construct.files.export import export_program, to_onnx, to_pt2


def seconds(work: Callable[[], object]) -> float:
    """Processor time, including that of compilers it starts."""
    before = os.times()
    work()
    return sum(os.times()[:4]) - sum(before[:4])


def exported(make: Callable[[], nn.Module], to: Callable, size: tuple[int, ...], target: float) -> str:
    """The time of an export."""
    network = construct.convert(make().eval())
    spent = seconds(lambda: to(network, size))
    return verdict("seconds", spent, target)


def nodes() -> str:
    """The number of operations of one exported layer, with 1, 9, 49 and 121 heads."""
    lengths = []
    for k in (1, 3, 7, 11):
        layer = construct.convert(nn.Conv2d(3, 4, k, padding=k // 2))
        program, _ = export_program(layer, (3, 32, 32))
        lengths.append(len(program.graph.nodes))
    return verdict(f"{lengths} with 1, 9, 49, 121 heads; the longest beyond 9 heads", max(lengths) - lengths[1], 0)


def compiled(sides: tuple[int, ...], dynamic: bool) -> str:
    """The first call of a compiled, converted ResNet-50 relative to the original's; then other sizes, without another graph."""
    with torch.no_grad():  # the first compilation of a process has costs that belong to neither
        torch.compile(nn.Conv2d(3, 4, 3), dynamic=dynamic)(torch.ones(1, 3, 8, 8))
    spent, graphs = [], []
    for convert in (construct.convert, lambda network: network):
        network = convert(shapes.resnet50().eval()).requires_grad_(False)
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()  # type: ignore[attr-defined]
        run = torch.compile(network, dynamic=dynamic)
        with torch.no_grad():
            spent.append(seconds(partial(run, torch.randn(1, 3, sides[0], sides[0]))))
            for side in sides[1:]:
                run(torch.randn(1, 3, side, side))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])  # type: ignore[attr-defined]
    ratio = spent[0] / spent[1]
    first = verdict(f"{spent[0]:.1f} s; times the original", ratio, 2.0)
    return f"{first}; {graphs[0]} graphs for sides {sides}, the original {graphs[1]}"


ROWS: dict[str, Callable[[], str]] = {
    "resnet50-pt2": partial(exported, shapes.resnet50, to_pt2, (3, 224, 224), 30),
    "resnet50-onnx": partial(exported, shapes.resnet50, to_onnx, (3, 224, 224), 30),
    "pitch-pt2": partial(exported, shapes.pitch, to_pt2, (1, 1024), 15),
    "11x11-pt2": partial(exported, lambda: nn.Conv2d(3, 8, 11, padding=5), to_pt2, (3, 64, 64), 15),
    "unet3d-onnx": partial(exported, shapes.unet3d, to_onnx, (1, 32, 32, 32), 30),
    "nodes": nodes,
    "compile": partial(compiled, (128,), False),
    "compile-dynamic": partial(compiled, (128, 160, 96), True),
}


def main() -> None:
    """Print the rows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) == 3 and sys.argv[1] == "--alone":
        print(ROWS[sys.argv[2]]())
        return
    for name in sys.argv[1:] or ROWS:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            words = [sys.executable, "-m", "benchmarks.export", "--alone", name]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        line = done.stdout.strip() or f"failed: {done.stderr.strip().splitlines()[-1]}"
        print(f"{name}: {line}   [{time.perf_counter() - started:.0f} s by the clock]", flush=True)


if __name__ == "__main__":
    main()
