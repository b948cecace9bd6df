"""The whole command on networks read from a file, certificates included: processor time and peak
memory.

    python -m benchmarks.convert [NAME ...] [--json FILE]

One thread, each part in its own process.  The goals: beyond loading the file and two forwards of
the network, the command takes at most 20 forwards or 10 s, whichever is more, and at most 1 GiB of
memory more than a forward.
"""

import argparse
import contextlib
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch

from benchmarks import shapes
from benchmarks.results import Row, parsed, publish
from construct.files.reading import read
from construct.from_conv import main as command

SIZES = {"resnet50": (3, 224, 224), "unet3d": (1, 32, 32, 32), "wavenet": (1, 8192)}
"""Functions of :mod:`benchmarks.shapes`, and the size of one input."""
SECONDS, FORWARDS, GIB = 10.0, 20, 1.0


def load(name: str, path: Path) -> torch.nn.Module:
    """The network from its file, as the command reads it."""
    content = read(path).content
    assert isinstance(content, dict)
    model = getattr(shapes, name)()
    model.load_state_dict(content)
    return model


def forward(name: str, path: Path) -> float:
    """Processor time of one forward of the network, the second of two."""
    model, x = (
        load(name, path),
        torch.randn(1, *SIZES[name], generator=torch.Generator().manual_seed(0)),
    )
    with torch.no_grad():
        model(x)
        return timed(lambda: model(x))


def convert(name: str, path: Path) -> float:
    """Processor time of the command, without its imports."""
    options = [
        "--arch",
        f"benchmarks.shapes:{name}",
        "--input-size",
        *map(str, SIZES[name]),
        "--samples",
        "1",
    ]
    codes: list[int] = []
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        spent = timed(lambda: codes.append(command([str(path), *options, "--json"])))
    result = json.loads(printed.getvalue())
    verdicts = {layer["verdict"]["name"] for layer in result["layers"]}
    assert codes == [0], result
    assert verdicts == {"PROVED"}, verdicts
    assert path.with_suffix(".mhsa.json").exists()
    return spent


def timed(work: Callable[[], object]) -> float:
    """Processor time of some work, over all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


PARTS: dict[str, Callable[[str, Path], float]] = {
    "load": lambda name, path: timed(lambda: load(name, path)),
    "forward": forward,
    "convert": convert,
}


def measured(part: str, name: str, path: Path) -> tuple[float, float]:
    """Processor time in seconds and peak memory in GiB of one part, in its own process."""
    words = [sys.executable, "-m", "benchmarks.convert", "--alone", part, name, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    spent, peak = map(float, done.stdout.split())
    return spent, peak


def rows(name: str) -> Iterator[Row]:
    """The figures of one network, each with its goal."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.pt"
        torch.manual_seed(0)
        torch.save(getattr(shapes, name)().state_dict(), path)
        (load_s, _), (forward_s, forward_gib), (spent, peak) = (
            measured(part, name, path) for part in PARTS
        )
    beyond, most = spent - load_s - 2 * forward_s, max(SECONDS, FORWARDS * forward_s)
    yield Row(
        f"{name} at {'×'.join(map(str, SIZES[name]))}, beyond loading and two forwards",
        (beyond,),
        most,
        "s",
    )
    yield Row(f"{name}, memory beyond a forward", (peak - forward_gib,), GIB, "GiB")


def main(words: Sequence[str] | None = None) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convert", description="The command on whole networks."
    )
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    options = parsed(parser, SIZES, words)
    torch.set_num_threads(1)
    if options.alone:
        part, name, path = options.alone
        print(
            PARTS[part](name, Path(path)),
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        )
        return
    publish(
        "python -m benchmarks.convert", chain.from_iterable(map(rows, options.names)), options.json
    )


if __name__ == "__main__":
    main()
