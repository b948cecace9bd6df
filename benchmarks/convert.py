"""The whole command on networks read from a file, certificates included: processor time and peak memory.

    python -m benchmarks.convert [NETWORK …] [--profile]

One thread, each part in its own process.  The targets: beyond loading the file and two forwards of the network, the command
takes at most 20 forwards or 10 s, whichever is more, and at most 1 GiB of memory more than a forward.  ``--profile`` shows where
the time of the one network named goes; profiling itself takes some of it.
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

from benchmarks import shapes
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
    model, x = load(name, path), torch.randn(1, *SIZES[name], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(x)
        return timed(lambda: model(x))


def convert(name: str, path: Path) -> float:
    """Processor time of the command, without its imports."""
    options = ["--arch", f"benchmarks.shapes:{name}", "--input-size", *map(str, SIZES[name]), "--samples", "1"]
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
    words = [sys.executable, "-m", "benchmarks.convert", part, name, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    spent, peak = map(float, done.stdout.split())
    return spent, peak


def row(name: str, path: Path) -> str:
    """The figures of one network, each with its target."""
    (load_s, _), (forward_s, forward_gib), (spent, peak) = (measured(part, name, path) for part in PARTS)
    beyond, seconds = spent - load_s - 2 * forward_s, max(SECONDS, FORWARDS * forward_s)
    kept = ["MISSED", "met"]
    return (
        f"{name}: load {load_s:.1f} s, forward {forward_s:.2f} s, command {spent:.1f} s; "
        f"beyond loading and two forwards {beyond:.1f} s, of at most {seconds:.1f} s: {kept[beyond <= seconds]}; "
        f"memory {peak - forward_gib:+.2f} GiB beside a forward, of at most {GIB:g}: {kept[peak <= forward_gib + GIB]}"
    )


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        spent = PARTS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
        print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    for name in [word for word in sys.argv[1:] if word[0] != "-"] or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.pt"
            torch.manual_seed(0)
            torch.save(getattr(shapes, name)().state_dict(), path)
            if "--profile" in sys.argv:
                profile = cProfile.Profile()
                profile.runcall(convert, name, path)
                pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
            else:
                print(row(name, path), flush=True)


if __name__ == "__main__":
    main()
