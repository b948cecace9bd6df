"""The whole command on a ResNet-50-shaped file at 224 × 224, certificate included: processor time and peak memory.

    python -m benchmarks.convert [--profile]

One thread, each part in a process of its own.  The aim: at most 10 s of processor time beyond loading the file and two forwards
of the network.  ``--profile`` shows where the time goes, which by itself takes some.
"""

import contextlib
import cProfile
import io
import json
import pstats
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.shapes import resnet50
from construct.files.reading import read
from construct.from_conv import main as command

AIM = 10.0
"""Seconds of processor time beyond loading and two forwards."""
SIZE = (3, 224, 224)


def load(path: Path) -> torch.nn.Module:
    """The network from its file, as the command reads it."""
    content = read(path).content
    assert isinstance(content, dict)
    model = resnet50()
    model.load_state_dict(content)
    return model


def forward(path: Path) -> float:
    """Processor time of one forward of the network, the second of two."""
    model, x = load(path), torch.randn(1, *SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(x)
        return timed(lambda: model(x))


def convert(path: Path) -> float:
    """Processor time of the command, without the imports that come before it."""
    options = ["--arch", "benchmarks.shapes:resnet50", "--input-size", *map(str, SIZE), "--samples", "1"]
    codes: list[int] = []
    with contextlib.redirect_stdout(io.StringIO()) as told:
        spent = timed(lambda: codes.append(command([str(path), *options, "--json"])))
    found = json.loads(told.getvalue())
    names = [layer["verdict"]["name"] for layer in found["layers"]]
    assert codes == [0], found
    assert names == ["PROVED"] * 53, names
    assert Path(
        found["certificate"] if isinstance(found.get("certificate"), str) else path.with_suffix(".mhsa.json")
    ).exists()
    return spent


def timed(work: Callable[[], object]) -> float:
    """Processor time of some work, of all threads."""
    started = time.process_time()
    work()
    return time.process_time() - started


PARTS: dict[str, Callable[[Path], float]] = {
    "load": lambda path: timed(lambda: load(path)),
    "forward": forward,
    "convert": convert,
}


def measured(part: str, path: Path) -> tuple[float, float]:
    """Processor time in seconds and peak memory in GiB of one part, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.convert", part, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    spent, peak = map(float, done.stdout.split())
    return spent, peak


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        spent = PARTS[sys.argv[1]](Path(sys.argv[2]))
        print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.pt"
        torch.manual_seed(0)
        torch.save(resnet50().state_dict(), path)
        if "--profile" in sys.argv:
            profile = cProfile.Profile()
            profile.runcall(convert, path)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
            return
        figures = {part: measured(part, path) for part in PARTS}
    for part, (spent, peak) in figures.items():
        print(f"{part}: {spent:.1f} s of processor time, peak memory {peak:.2f} GiB")
    beyond = figures["convert"][0] - figures["load"][0] - 2 * figures["forward"][0]
    print(
        f"beyond loading and two forwards: {beyond:.1f} s, of at most {AIM:.0f} s: {'met' if beyond <= AIM else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
