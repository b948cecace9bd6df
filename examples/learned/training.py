"""The training loop of one variant and seed, which resumes from its last checkpoint bit for bit."""

import json
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from construct import MHSA
from construct.encoding.encodings import Quadratic
from examples.learned.augmentation import augmented, mixed
from examples.learned.data import BadInput, Pictures
from examples.learned.network import AttentionNet
from examples.learned.optimising import optimiser_of, rate_at
from examples.learned.resnet import resnet18
from examples.learned.running import checkpoints, group
from examples.learned.running.console import Diverged, stepped
from examples.learned.running.files import records
from examples.learned.settings import Settings
from examples.learned.variants import VARIANTS

CHECKPOINT, METRICS, RESULT = "checkpoint.pt", "metrics.jsonl", "result.json"
CENTRES_EVERY = 50
"""Steps between two records of the centres."""


def network_of(settings: Settings, pictures: Pictures) -> nn.Module:
    """The untrained network, from the current state of torch's random numbers.

    Raises:
        BadInput: its sizes do not fit together, or the pictures do not fit it.
    """
    channels, rows, columns = pictures.train.shape[1:]
    variant = VARIANTS[settings.variant]
    if variant.encoding == "resnet":
        return resnet18(channels, pictures.classes, settings.how.shape.resnet)
    return AttentionNet(variant, settings.how.shape, (channels, rows, columns), pictures.classes)


def budget(settings: Settings, steps: int) -> float:
    """The sum of the rates of where heads look over a run of so many steps."""
    return settings.how.where * sum(rate_at(step, steps, settings) for step in range(steps))


def parts_of(pictures: Pictures, validation: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The indices of the pictures to learn from, and the pictures and labels that epochs are
    measured on.

    Args:
        pictures: the data set.
        validation: train pictures held out, always the same ones; 0 for the test pictures instead.

    Raises:
        BadInput: nothing is left to learn from.
    """
    count = len(pictures.train)
    if validation >= count:
        raise BadInput(
            f"{validation} pictures cannot be held back of {count} (take a smaller --validation)"
        )
    if not validation:
        return torch.arange(count), (pictures.test, pictures.test_labels)
    held, learned = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tensor_split(
        [validation]
    )
    return learned, (pictures.train[held], pictures.train_labels[held])


class Run:
    """One run, from its checkpoint or from the start; if there are several processes, each has its
    own ``Run``.

    A run resumes on the device on which it began; once trained, it may be measured on any.

    Args:
        settings: what determines its numbers.
        pictures: the pictures to learn from.
        folder: the folder of its files.
        every: steps between checkpoints; there is one at the end of each epoch too.

    Raises:
        BadInput: a checkpoint is damaged or from other settings, or sizes do not fit together.
    """

    def __init__(self, settings: Settings, pictures: Pictures, folder: Path, every: int):
        self.settings, self.pictures, self.folder, self.every = settings, pictures, folder, every
        self.device = torch.device(settings.device)
        self.learned, self.held = parts_of(pictures, settings.how.validation)
        self.labels = pictures.train_labels
        if settings.how.shuffled:
            self.labels = self.labels[
                torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(0))
            ]
        least = len(self.learned) % settings.how.batch or settings.how.batch
        if least < group.size():
            raise BadInput(
                f"{group.size()} processes cannot share a batch of {least} pictures (change --batch)"
            )
        state = group.agreed(lambda: checkpoints.read(folder / CHECKPOINT))
        torch.manual_seed(settings.seed)
        np.random.seed(settings.seed)  # noqa: NPY002
        random.seed(settings.seed)
        self.network = network_of(settings, pictures).to(self.device)
        self.parallel = group.parallel(self.network)
        self.optimiser = optimiser_of(self.network, settings)
        self.epoch = self.position = 0
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.order, self.sums, self.seconds, self.metrics_bytes = (
            torch.empty(0, dtype=torch.int64),
            [0.0, 0, 0],
            0.0,
            0,
        )
        self.centres: list[tuple[int, Tensor]] = []
        if state is not None:
            self._go_on(state)
        if group.rank() == 0:
            self._begin_metrics(folder / METRICS)

    def _begin_metrics(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if path.stat().st_size < self.metrics_bytes:
            raise BadInput(
                f"{path}: shorter than its checkpoint says (remove the folder to train this run anew)"
            )
        os.truncate(path, self.metrics_bytes)  # lines after the checkpoint are written again

    @property
    def batches(self) -> int:
        """Steps per epoch."""
        return math.ceil(len(self.learned) / self.settings.how.batch)

    @property
    def done(self) -> int:
        """Steps taken."""
        return self.epoch * self.batches + self.position

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.settings.how.epochs * self.batches

    def _go_on(self, state: dict[str, Any]) -> None:
        # once trained, its device no longer matters
        if state.get("epoch") == self.settings.how.epochs:
            self.settings = replace(self.settings, device=state["settings"].get("device"))
        changes = self.settings.differences(state["settings"])
        if changes:
            raise BadInput(
                f"{self.folder / CHECKPOINT}: of another run: {changes} (give another --out, or remove it)"
            )
        try:
            self._load(state)
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise BadInput(
                f"{self.folder / CHECKPOINT}: damaged: {reason} (remove it to train this run anew)"
            ) from None

    def _load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.started = state["started"]
        self.epoch, self.position, self.order = state["epoch"], state["position"], state["order"]
        self.sums, self.seconds, self.metrics_bytes = (
            state["sums"],
            state["seconds"],
            state["metrics_bytes"],
        )
        self.centres = state["centres"]
        if not (
            0 <= self.epoch <= self.settings.how.epochs
            and 0 <= self.position < self.batches
            and self.metrics_bytes >= 0
        ):
            raise ValueError(f"epoch {self.epoch}, step {self.position}")
        checkpoints.set_random_states(state["random"])

    def save(self) -> None:
        """Write a checkpoint, from which any number of processes can resume."""
        if group.rank():
            return
        state = {
            "settings": self.settings.record(),
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "started": self.started,
            "epoch": self.epoch,
            "position": self.position,
            "order": self.order,
            "sums": self.sums,
            "seconds": self.seconds,
            "metrics_bytes": self.metrics_bytes,
            "centres": self.centres,
            "random": checkpoints.random_states(),
        }
        checkpoints.write(state, self.folder / CHECKPOINT)

    def train(self, tell: Callable[[int, str], None]) -> None:
        """Train to the last epoch.

        Args:
            tell: progress callback with the steps taken and a status.

        Raises:
            Diverged: the loss is no longer a number.
        """
        self.network.train()
        last = time.monotonic()
        while self.epoch < self.settings.how.epochs:
            if self.position == 0:
                self.order, self.sums = torch.randperm(len(self.learned)), [0.0, 0, 0]
            while self.position < self.batches:
                self._log_centres()
                self._step()
                self.seconds, last = self.seconds + time.monotonic() - last, time.monotonic()
                tell(self.done, f"loss {self.sums[0] / self.sums[2]:.3f}")
                if self.position < self.batches and self.done % self.every == 0:
                    self.save()
            self._end_epoch()
            self.seconds, last = self.seconds + time.monotonic() - last, time.monotonic()
            self.save()

    def untrained(self) -> nn.Module:
        """The network as it was before the first step, which the seed alone determines."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return network_of(self.settings, self.pictures)

    def _step(self) -> None:
        how = self.settings.how
        chosen = self.learned[
            self.order[self.position * how.batch : (self.position + 1) * how.batch]
        ]
        x, labels = (
            group.part(t[chosen]).to(self.device) for t in (self.pictures.train, self.labels)
        )
        group.Dropout.whole = len(chosen)
        for param_group in self.optimiser.param_groups:
            param_group["lr"] = param_group["multiple"] * rate_at(
                self.done, self.steps, self.settings
            )
        x = augmented(x, len(chosen)) if how.augment else x
        share, others = 1.0, labels
        if VARIANTS[self.settings.variant].cutmix:
            other = chosen[torch.randperm(len(chosen))]
            pasted, others = (
                group.part(t[other]).to(self.device) for t in (self.pictures.train, self.labels)
            )
            x, share = mixed(x, augmented(pasted, len(chosen)) if how.augment else pasted)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=how.precision == "bfloat16"):
            logits = self.parallel(x).float()
        losses = [
            nn.functional.cross_entropy(logits, answers, reduction="sum")
            for answers in (labels, others)
        ]
        loss = (share * losses[0] + (1 - share) * losses[1]) / len(chosen)
        right = int((logits.argmax(1) == labels).sum())
        value, right = group.total([float(loss.detach()), right], self.device)
        if not math.isfinite(value):
            reason = f"the loss is {value} at step {self.position + 1} of epoch {self.epoch + 1}"
            raise Diverged(f"{self.settings}: {reason} (try a smaller --rate)")
        self.optimiser.zero_grad()
        (loss * group.size()).backward()  # gradients are averaged over all processes
        stepped(
            self.optimiser,
            f"{self.settings}: a step is longer than float32 can say (try a smaller --rate)",
        )
        self.sums = [
            self.sums[0] + value * len(chosen),
            self.sums[1] + int(right),
            self.sums[2] + len(chosen),
        ]
        self.position += 1

    def _log_centres(self) -> None:
        layers = [
            m
            for m in self.network.modules()
            if isinstance(m, MHSA) and m.encoding.name == Quadratic.name
        ]
        if not layers or self.done % CENTRES_EVERY:
            return
        pairs = [layer.centres() for layer in layers]
        now = torch.stack([torch.column_stack((alpha.log(), tau)) for alpha, tau in pairs])
        self.centres.append((self.done, now.float().cpu()))

    def budget(self) -> float:
        """The sum of the rates of where heads look: about as far as Adam can move a number."""
        return budget(self.settings, self.steps)

    def _end_epoch(self) -> None:
        loss, right, count = self.sums
        self.epoch, self.position = self.epoch + 1, 0
        line = {
            "epoch": self.epoch,
            "train_loss": loss / count,
            "train_accuracy": right / count,
            "accuracy": self.accuracy(*self.held),
            "seconds": round(self.seconds, 3),
        }
        if group.rank():
            return
        with (self.folder / METRICS).open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self.metrics_bytes = file.tell()

    @torch.no_grad()
    def accuracy(self, pictures: Tensor, labels: Tensor) -> float:
        """The fraction of pictures whose largest logit is that of the right class."""
        self.network.eval()
        right = broken = 0
        for x, answers in zip(
            group.part(pictures).split(500), group.part(labels).split(500), strict=True
        ):
            logits = self.network(x.to(self.device))
            # the last step's loss was computed before that step
            broken += int(not logits.isfinite().all())
            right += int((logits.argmax(1).cpu() == answers).sum())
        self.network.train()
        right, broken = group.total([right, broken], self.device)
        if broken:
            reason = f"outputs are no numbers after epoch {self.epoch} (try a smaller --rate)"
            raise Diverged(f"{self.settings}: {reason}")
        return right / len(pictures)

    def metrics(self) -> list[dict[str, Any]]:
        """A record for every epoch."""
        return records(self.folder / METRICS, ("epoch", "train_accuracy", "accuracy"), lines=True)
