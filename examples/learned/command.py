"""The command line of ``examples.learned``: train all variants and seeds, measure the layers, write
table and figures.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from examples.learned.data import IDX_FILES, BadInput, Pictures, cifar10, digits, fashion_mnist
from examples.learned.results import plots, table
from examples.learned.results.measurements import (
    OF_TRAINING,
    RULER,
    earlier_of,
    is_measured,
    measurements,
)
from examples.learned.results.stored import stored
from examples.learned.results.summary import folder_of, summary_of
from examples.learned.running import group
from examples.learned.running.console import bars, check_numbers, ended
from examples.learned.running.files import replaced
from examples.learned.running.processes import Tell, cores, run_in_processes
from examples.learned.settings import PRESETS, Settings, changed
from examples.learned.training import RESULT, Run, network_of, parts_of
from examples.learned.variants import VARIANTS

SUMMARY = "summary.json"
CHANGED = dict.fromkeys(("epochs", "batch", "heads", "layers", "width", "validation"), int)
CHANGED |= dict.fromkeys(("rate", "where"), float)
"""The numbers of a preset that an option may change."""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m examples.learned",
        description="Do attention layers learn convolutions?  Train the paper's network, and measure its layers.  "
        "A command that was stopped goes on where it was when it is given again.",
    )
    arguments.add_argument(
        "--preset",
        choices=[*PRESETS],
        default="digits",
        help="sizes and schedule (default: %(default)s)",
    )
    arguments.add_argument(
        "--data",
        type=Path,
        help="folder that examples.learned.fetch wrote, or cifar-10-binary.tar.gz",
    )
    arguments.add_argument(
        "--variants",
        nargs="+",
        choices=[*VARIANTS],
        default=[*VARIANTS],
        metavar="NAME",
        help=", ".join(VARIANTS),
    )
    arguments.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)"
    )
    arguments.add_argument(
        "--out",
        type=Path,
        default=Path("learned-runs"),
        help="folder of all output (default: %(default)s)",
    )
    for name, kind in CHANGED.items():
        arguments.add_argument(f"--{name}", type=kind, help="in place of the preset's")
    arguments.add_argument(
        "--precision", choices=["float32", "bfloat16"], help="of matrix products while training"
    )
    arguments.add_argument(
        "--shuffled",
        action="store_true",
        default=None,
        help="learn from labels in a random order: a control",
    )
    arguments.add_argument(
        "--checkpoint-every", type=int, default=100, metavar="STEPS", help="(default: %(default)s)"
    )
    arguments.add_argument(
        "--threads",
        type=int,
        default=1,
        help="of torch on the CPU, for each run (default: %(default)s)",
    )
    arguments.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs at once (default: one for each CPU core; on a GPU one)",
    )
    arguments.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    arguments.add_argument("--no-plots", action="store_true", help="write numbers alone")
    return arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if a loss was not a number, 2 for bad input, 130 if
    it was interrupted.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(given)
    stopped = "stopped; the same command goes on from the last checkpoint"
    return ended(lambda console: everything(options, given, console), stopped)


def everything(options: argparse.Namespace, given: Sequence[str], console: Console) -> str:
    """Train and measure, alone or with the other processes that ``torchrun`` started, and write the
    files.

    Returns:
        The table; empty from a process that writes no files.

    Raises:
        BadInput: the options, the data or a checkpoint cannot be used.
        Diverged: a loss is no longer a number.
    """
    device = "cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu"
    with group.joined(device):
        writes = group.rank() == 0
        console.quiet = not writes
        runs, pictures = planned(options, console, device)
        trained(runs, pictures, options, given, console)
    return written(runs, pictures, options) if writes else ""


def planned(
    options: argparse.Namespace, console: Console, device: str
) -> tuple[list[Settings], Pictures]:
    """The settings of all runs, and their pictures.

    Raises:
        BadInput: the options or the data cannot be used.
    """
    check_numbers(options)
    if options.preset != "digits" and options.data is None:
        raise BadInput(
            f"--preset {options.preset} learns from CIFAR-10: give --data (python -m examples.learned.fetch gets it)"
        )
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch sees no GPU here")
    torch.set_num_threads(options.threads)
    pictures = read(options.data)
    for name, digest in pictures.digests.items():
        console.print(f"{name}: SHA-256 {digest}", highlight=False, soft_wrap=True)
    given = {name: getattr(options, name) for name in (*CHANGED, "precision", "shuffled")}
    preset = changed(PRESETS[options.preset], **given)
    runs = [
        Settings(options.preset, variant, seed, options.threads, device, pictures.digests, preset)
        for seed in dict.fromkeys(options.seeds)
        for variant in dict.fromkeys(options.variants)
    ]
    suited(runs, pictures)
    return runs, pictures


def trained(
    runs: Sequence[Settings],
    pictures: Pictures,
    options: argparse.Namespace,
    given: Sequence[str],
    console: Console,
) -> None:
    """Train and measure all runs whose result does not exist."""
    device = runs[0].device
    alone = device == "cpu" and group.size() == 1
    jobs = min(len(runs), options.jobs or (max(1, cores() // options.threads) if alone else 1))
    if jobs > 1 and group.size() > 1:
        raise BadInput(
            f"--jobs is {jobs}, and the processes of torchrun share one run after the other (leave it away)"
        )
    stated = {
        "command": shlex.join(["python", "-m", "examples.learned", *given]),
        "machine": machine(device, options.threads)
        + (f", {jobs} runs at once" if jobs > 1 else ""),
    }
    work = partial(one_run, options=options, stated=stated)
    with bars(console, "runs", len(runs)) as tell:
        if jobs > 1:
            run_in_processes(
                runs, partial(prepared, options.data, options.threads, work), jobs, tell
            )
        else:
            for settings in runs:
                work(settings, partial(tell, settings), pictures=pictures)
                tell(settings, 0, 0, "", ended=True)


def written(runs: Sequence[Settings], pictures: Pictures, options: argparse.Namespace) -> str:
    """Write ``table.md``, the summary and the pictures of all runs.

    Returns:
        The table.
    """
    variants, seeds = (
        [*dict.fromkeys(getattr(run, name) for run in runs)] for name in ("variant", "seed")
    )
    results = table.results_in(options.out, variants, seeds)
    text = table.markdown(results)
    options.out.mkdir(parents=True, exist_ok=True)
    replaced(options.out / "table.md", text)
    summary = summary_of(
        results,
        lambda variant, seed: stored(folder_of(options.out, variant, seed), pictures),
        pictures.test,
    )
    replaced(options.out / SUMMARY, json.dumps(summary, separators=(",", ":")) + "\n")
    if not options.no_plots:
        plots.write(summary, options.out)
    return text + "\n"


def suited(runs: Sequence[Settings], pictures: Pictures) -> None:
    """Build every variant once with one layer, so that unsuitable sizes fail before any training.

    Raises:
        BadInput: the sizes of a run do not fit.
    """
    parts_of(pictures, runs[0].how.validation)
    with torch.random.fork_rng(devices=[]):
        for settings in {settings.variant: settings for settings in runs}.values():
            # all layers have the same sizes
            one_layer = replace(settings.how, shape=replace(settings.how.shape, layers=1))
            network_of(replace(settings, how=one_layer), pictures)


def read(data: Path | None) -> Pictures:
    """CIFAR-10 or Fashion-MNIST from a path, or scikit-learn's digits.

    Raises:
        BadInput: the files are not these, or are damaged.
    """
    if data is None:
        return digits()
    return fashion_mnist(data) if (data / IDX_FILES[0]).exists() else cifar10(data)


def prepared(
    data: Path | None, threads: int, work: Callable[..., None]
) -> Callable[[Settings, Tell], None]:
    """Load the pictures of a process, and return its work function."""
    torch.set_num_threads(threads)
    return partial(work, pictures=read(data))


def one_run(
    settings: Settings,
    tell: Tell,
    *,
    pictures: Pictures,
    options: argparse.Namespace,
    stated: dict[str, str],
) -> None:
    """Train and measure one variant with one seed, unless its result exists."""
    folder = folder_of(options.out, settings.variant, settings.seed)
    run = Run(settings, pictures, folder, options.checkpoint_every)
    if group.agreed(lambda: is_measured(folder / RESULT)) and run.done == run.steps:
        return
    earlier = group.agreed(lambda: earlier_of(folder / RESULT)) if run.done == run.steps else {}
    run.train(lambda done, how_it_goes: tell(done, run.steps, how_it_goes))
    test_accuracy = (
        earlier["test_accuracy"]
        if "test_accuracy" in earlier
        else run.accuracy(pictures.test, pictures.test_labels)
    )
    if group.rank():
        return
    tell(run.steps, run.steps, "measured")
    layers = measurements(run, earlier)
    if run.settings.device != settings.device:
        stated = stated | {"machine": f"trained on {run.settings.device}; {stated['machine']}"}
    result = {
        **stated,
        "ruler": RULER,
        "variant": settings.variant,
        "seed": settings.seed,
        "started": run.started,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(run.seconds, 3),
        "parameters": sum(p.numel() for p in run.network.parameters() if p.requires_grad),
        "test_accuracy": test_accuracy,
        "train_accuracy": run.metrics()[-1]["train_accuracy"],
        "accuracy": [line["accuracy"] for line in run.metrics()],
        "budget": run.budget(),
        **layers,
        "settings": run.settings.record(),
        **{key: earlier[key] for key in OF_TRAINING if key in earlier},
    }
    replaced(folder / RESULT, json.dumps(result, indent=1) + "\n")


def machine(device: str, threads: int) -> str:
    """A description of the machine, as far as it matters for the runs' time."""
    shared = f"{group.size()} processes, " if group.size() > 1 else ""
    if device == "cuda":
        return f"{shared}{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{shared}{threads} of {os.cpu_count()} CPU cores, torch {torch.__version__}"
