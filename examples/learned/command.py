"""The command: train every variant with every seed, measure the layers, and write the table and the pictures."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from examples.learned import plots, table
from examples.learned.data import BadInput, Pictures, cifar10, digits
from examples.learned.measuring import PICTURES, attention_of, distances
from examples.learned.network import VARIANTS, AttentionNet
from examples.learned.outcome import ended
from examples.learned.settings import PRESETS, Settings, changed
from examples.learned.training import RESULT, Run


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m examples.learned",
        description="Do attention layers learn convolutions?  Train the paper's network, and measure its layers.  "
        "A command that was stopped goes on where it was when it is given again.",
    )
    found.add_argument(
        "--preset", choices=[*PRESETS], default="digits", help="sizes and schedule (default: %(default)s)"
    )
    found.add_argument("--data", type=Path, help="CIFAR-10: cifar-10-binary.tar.gz, or a folder with its six files")
    found.add_argument(
        "--variants", nargs="+", choices=[*VARIANTS], default=[*VARIANTS], metavar="NAME", help=", ".join(VARIANTS)
    )
    found.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    found.add_argument(
        "--out", type=Path, default=Path("learned-runs"), help="folder of all output (default: %(default)s)"
    )
    for name, kind in (
        ("epochs", int),
        ("batch", int),
        ("heads", int),
        ("layers", int),
        ("width", int),
        ("rate", float),
    ):
        found.add_argument(f"--{name}", type=kind, help="in place of the preset's")
    found.add_argument("--checkpoint-every", type=int, default=100, metavar="STEPS", help="(default: %(default)s)")
    found.add_argument("--threads", type=int, default=1, help="of torch on the CPU (default: %(default)s)")
    found.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    found.add_argument("--no-plots", action="store_true", help="write the table alone")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if a loss was no number, 2 for bad input, 130 if it was stopped."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    stopped = "stopped; the same command goes on from the last checkpoint"
    return ended(lambda console: everything(options, given, console) + "\n", stopped)


def everything(options: argparse.Namespace, given: Sequence[str], console: Console) -> str:
    """Train, measure, and write ``table.md`` and the pictures.

    Returns:
        The table.

    Raises:
        BadInput: the options, the data or a checkpoint cannot be used.
        Diverged: a loss is no number any more.
    """
    for name in ("epochs", "batch", "heads", "layers", "width", "checkpoint_every", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise BadInput(f"--{name.replace('_', '-')} is {value}, not a positive number")
    for seed in options.seeds:
        if not 0 <= seed < 2**32:
            raise BadInput(f"--seeds has {seed}, which is not from 0 to 2^32 - 1")
    if options.threads > 1024:
        raise BadInput(f"--threads is {options.threads}, more than any machine has")
    if options.rate is not None and not 0 < options.rate < float("inf"):
        raise BadInput(f"--rate is {options.rate}, not a positive number")
    if options.preset == "paper" and options.data is None:
        raise BadInput("--preset paper learns from CIFAR-10: give --data (cifar-10-binary.tar.gz, or its folder)")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch sees no GPU here")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
    torch.set_num_threads(options.threads)
    pictures = digits() if options.data is None else cifar10(options.data)
    for name, digest in pictures.digests.items():
        console.print(f"{name}: SHA-256 {digest}", highlight=False, soft_wrap=True)
    how = changed(
        PRESETS[options.preset],
        **{name: getattr(options, name) for name in ("epochs", "batch", "heads", "layers", "width", "rate")},
    )
    todo = [(variant, seed) for seed in dict.fromkeys(options.seeds) for variant in dict.fromkeys(options.variants)]
    stated = {
        "command": shlex.join(["python", "-m", "examples.learned", *given]),
        "machine": machine(device, options.threads),
    }
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        overall = progress.add_task("runs", total=len(todo))
        for variant, seed in todo:
            settings = Settings(options.preset, variant, seed, options.threads, device, pictures.digests, how)
            one_run(settings, pictures, options, stated, progress)
            progress.advance(overall)
    seeds, variants = [*dict.fromkeys(options.seeds)], [*dict.fromkeys(options.variants)]
    found = table.results_in(options.out, variants, seeds)
    text = table.markdown(found)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    if not options.no_plots:
        draw(options, found, pictures, device, how)
    return text


def one_run(
    settings: Settings, pictures: Pictures, options: argparse.Namespace, stated: dict[str, str], progress: Progress
) -> None:
    """Train a variant with a seed and measure it, unless that has been done."""
    folder = options.out / settings.variant / f"seed-{settings.seed}"
    run = Run(settings, pictures, folder, options.checkpoint_every)
    if (folder / RESULT).exists() and run.done == run.steps:
        return
    name = f"{settings.variant}, seed {settings.seed}"
    task = progress.add_task(name, total=run.steps, completed=run.done)
    run.train(lambda done, how_it_goes: progress.update(task, completed=done, description=f"{name}: {how_it_goes}"))
    layers: dict[str, list[dict[str, Any]]] = {"layers": [], "untrained": []}
    for when, network in (("layers", run.network), ("untrained", run.untrained())):
        if isinstance(network, AttentionNet):
            progress.update(task, description=f"{name}: audit")
            layers[when] = distances(network, settings.how.audited)
    result = {
        **stated,
        "variant": settings.variant,
        "seed": settings.seed,
        "started": run.started,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 3),
        "parameters": sum(p.numel() for p in run.network.parameters() if p.requires_grad),
        "test_accuracy": run.metrics()[-1]["test_accuracy"],
        "train_accuracy": run.metrics()[-1]["train_accuracy"],
        **layers,
        "settings": settings.record(),
    }
    temporary = folder / f"{RESULT}.part"
    temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, folder / RESULT)  # noqa: PTH105
    progress.remove_task(task)


def machine(device: str, threads: int) -> str:
    """What the runs ran on, as far as it says something about their time."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{threads} of {os.cpu_count()} CPU cores, torch {torch.__version__}"


def draw(options: argparse.Namespace, found: dict[str, Any], pictures: Pictures, device: str, how: Any) -> list[Path]:
    """All pictures: of the runs together, and of each attention variant with its first seed."""
    metrics, drawn = {}, []
    for variant, results in found.items():
        runs = []
        for result in results:
            settings = Settings(options.preset, variant, result["seed"], options.threads, device, pictures.digests, how)
            runs.append(
                Run(settings, pictures, options.out / variant / f"seed-{result['seed']}", options.checkpoint_every)
            )
        metrics[variant] = [run.metrics() for run in runs]
        network = runs[0].network
        if isinstance(network, AttentionNet):
            attention = attention_of(network, pictures.test[:PICTURES].to(runs[0].device))
            count = min(PICTURES, len(pictures.test))
            told = f"{VARIANTS[variant].told}, seed {results[0]['seed']}, averaged over {count} test pictures"
            drawn.append(plots.centres(attention, told, options.out / f"centres-{variant}.svg"))
            drawn.append(plots.maps(attention, told, options.out / f"maps-{variant}.png"))
    drawn.append(plots.accuracy(metrics, options.out / "accuracy.svg"))
    drawn.append(plots.seconds(found, options.out / "seconds.svg"))
    return drawn
