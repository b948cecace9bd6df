"""Training and measuring one group of students."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

import verify
from examples.learned.running.console import Diverged, stepped
from examples.taught.counting import NEAREST, count
from examples.taught.patches import Patches
from examples.taught.students import Setting, Students, scale_of, teachers_of

HELD_OUT = 256
"""Held-out patches on which the distance to the teacher is measured."""
LOOKS = 30
"""How often students are measured during training."""
RISE = 0.05
"""The share of the steps over which the rates rise; then they fall along a cosine to 0."""


def share_of_rate(step: int, steps: int) -> float:
    """The share of the greatest learning rate at a step."""
    rise = max(1, round(RISE * steps))
    if step < rise:
        return (step + 1) / rise
    return (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2


def taught(
    setting: Setting, seeds: list[int], patches: Patches, tell: Callable[[int, str], None]
) -> tuple[Students, list[dict[str, Any]]]:
    """Teach the students of all seeds, and measure them during training.

    Args:
        setting: their common hyperparameters.
        seeds: one per student.
        patches: the patches to learn from.
        tell: progress callback with the steps taken and a status.

    Returns:
        The students, and a record for every look: step, and by seed the held-out error, α and τ.

    Raises:
        BadInput: heads and start do not fit together.
        Diverged: a loss is no longer a number.
    """
    students, teachers = Students(setting, seeds), teachers_of(setting, seeds)
    return students, teach(students, teachers, patches, tell)


def teach(
    students: Students, teachers: nn.Module, patches: Patches, tell: Callable[[int, str], None]
) -> list[dict[str, Any]]:
    """Teach these students from their current state; see :func:`taught`."""
    setting, layer = students.setting, students.layer
    # The patches are the same for all settings and seeds; a seed determines its teacher and its
    # start.
    held = patches.draw(HELD_OUT, torch.Generator().manual_seed(1), held_out=True)
    scale = scale_of(teachers, len(students.seeds), held)
    order = torch.Generator().manual_seed(2)
    groups = [
        {"params": [students.log_alpha, students.tau], "lr": setting.rate},
        {"params": [layer.w_out, layer.b_out], "lr": setting.value_rate},
    ]
    optimiser = torch.optim.Adam(groups)
    greatest = [group["lr"] for group in optimiser.param_groups]
    looks, every, start = [], max(1, setting.steps // LOOKS), time.monotonic()

    def look(step: int) -> None:
        with torch.no_grad():
            errors = students.errors(teachers, held, scale).tolist()
        alpha, tau = students.centres()
        seconds = round(time.monotonic() - start, 3)
        looks.append(
            {
                "step": step,
                "seconds": seconds,
                "error": errors,
                "alpha": alpha.tolist(),
                "tau": tau.tolist(),
            }
        )

    look(0)
    for step in range(setting.steps):
        for group, rate in zip(optimiser.param_groups, greatest, strict=True):
            group["lr"] = rate * share_of_rate(step, setting.steps)
        errors = students.errors(teachers, patches.draw(setting.batch, order), scale)
        wrong = [
            seed
            for seed, error in zip(students.seeds, errors.tolist(), strict=True)
            if not math.isfinite(error)
        ]
        if wrong:
            raise Diverged(
                f"{setting.label}, seed {wrong[0]}: the loss is no number at step {step + 1} (try a smaller --rate)"
            )
        optimiser.zero_grad()
        errors.sum().backward()
        stepped(
            optimiser,
            f"{setting.label}: a step is longer than float32 can say (try a smaller --rate)",
        )
        done = step + 1
        if (least := setting.least_alpha(done)) > 0:
            with torch.no_grad():
                students.log_alpha.clamp_(min=math.log(least))
        if done % every == 0 or done == setting.steps:
            look(done)
            tell(done, f"error {sum(looks[-1]['error']) / len(students.seeds):.2g}")
    return looks


def inside(alpha: torch.Tensor, tau: torch.Tensor, kernel: int, side: int) -> float:
    """The share of the heads' attention that falls on Δ_K, on average, from the middle of a patch.

    Args:
        alpha: (heads,).
        tau: (heads, 2).
        kernel: K.
        side: of the patch.
    """
    reach = torch.arange(side, dtype=torch.float64) - side // 2
    delta = torch.cartesian_prod(reach, reach)
    score = -alpha.double()[:, None] * (delta[None] - tau.double()[:, None]).square().sum(2)
    on_kernel = delta.abs().amax(1) <= kernel // 2
    return float(torch.softmax(score, dim=1)[:, on_kernel].sum(1).mean())


def measured(students: Students, looks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measure every trained student: its counts, its distance to the teacher, and a black-box
    audit.

    Returns:
        By seed: ``error`` on held-out patches; ``count`` and ``nearest``
        (by the nearest shifts alone), and ``first`` before learning; ``to_convolution``, the
        distance to the nearest K × K convolution, and ``kernel_apart``, the relative distance of
        its kernel from the teacher's (None if the audit found another size); ``inside``; and the
        sorted α.

    Raises:
        Diverged: a held-out error is not a number.
    """
    setting, teachers = students.setting, teachers_of(students.setting, students.seeds)
    kernels = teachers.get_parameter("weight").double().unflatten(0, (len(students.seeds), -1))
    alpha, tau = students.centres()
    rows = []
    for place, seed in enumerate(students.seeds):
        error = looks[-1]["error"][place]
        if not math.isfinite(error):
            raise Diverged(
                f"{setting.label}, seed {seed}: the held-out error is no number (try a smaller --rate)"
            )
        # The map itself, whatever patches taught it: white noise covers all the directions that
        # photographs hardly have.
        audit = verify.audit(
            students.alone(place), (setting.side, setting.side), kernel_size=setting.kernel
        )
        apart = None
        if audit.kernel.shape == tuple(kernels[place].shape):
            kernel = kernels[place].numpy()
            apart = float(((audit.kernel - kernel) ** 2).sum() / (kernel**2).sum()) ** 0.5
        centres = tau[place].tolist()
        rows.append(
            {
                "seed": seed,
                "error": error,
                "count": asdict(count(centres, setting.kernel)),
                "nearest": asdict(count(centres, setting.kernel, NEAREST)),
                "first": asdict(count(looks[0]["tau"][place], setting.kernel)),
                "to_convolution": audit.distance,
                "kernel_apart": apart,
                "inside": inside(alpha[place], tau[place], setting.kernel, setting.side),
                "alpha": sorted(alpha[place].tolist()),
            }
        )
    return rows
