"""Teachers (random convolutions) and students (attention layers that learn them from patches).

**The tokens.** The teacher has no padding, and the student has queries only where the teacher has
outputs: at the positions whose window lies in the patch; keys are all its positions.  So q + τ is a
token of the image for every τ ∈ Δ_K, and a student with sharp heads on Δ_K and the teacher's taps
is the teacher.  Padding tokens would allow that too; but a head that looks only at zeros is off,
and one could not tell whether it had learned that or merely got lost.

**Side by side.** The students of all seeds are one MHSA layer, each with its own heads and output
channels: W_out of a head is zero at the channels of all others, and stays so.  As Adam steps each
number by itself, every student learns as if it were alone.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor, nn

from construct.attention import MHSA
from construct.geometry import ConvGeometry
from construct.modules.learning import learned_quadratic, settle
from construct.weights import NAMES, MHSAWeights
from examples.learned.data import BadInput
from examples.learned.starting import attention_to_learn

CHANNELS = 3
"""D_in: red, green and blue."""


@dataclass(frozen=True)
class Setting:
    """The hyperparameters of one group of students.

    Attributes:
        heads: N_h.
        kernel: K of the teacher, odd.
        start: "paper" or "local".
        alpha: the initial sharpness.
        rate: the learning rate of τ and log α.
        data: what patches are cut from.
        side: pixels along each axis of a patch.
        out_channels: D_out of the teacher.
        steps: the steps of gradient descent.
        batch: patches per step.
        value_rate: the learning rate of W_out and b_out.
        floor: None to leave α free; else a least α, which rises to this over the second half of the
            steps.
    """

    heads: int
    kernel: int
    start: str
    alpha: float
    rate: float
    data: str
    side: int
    out_channels: int
    steps: int
    batch: int
    value_rate: float
    floor: float | None = None

    @property
    def label(self) -> str:
        """Its name in tables and figures."""
        floor = "" if self.floor is None else f", driven to α ≥ {self.floor:g}"
        return f"{self.heads} heads, {self.start} start, α = {self.alpha:g} at first, rate {self.rate:g}, {self.data}{floor}"

    def least_alpha(self, step: int) -> float:
        """The least α allowed after a step: 0 in the first half, then rising in equal factors from
        ``alpha``.
        """
        share = 2 * step / self.steps - 1
        if self.floor is None or share <= 0:
            return 0.0
        return self.alpha * (self.floor / self.alpha) ** min(1.0, share)


def teachers_of(setting: Setting, seeds: list[int]) -> nn.Module:
    """The teachers of all seeds as one convolution (3 → seeds · D_out): weights from N(0, 1/(3K²)),
    the bias from N(0, 1).
    """
    drawn = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        shape = (setting.out_channels, CHANNELS, setting.kernel, setting.kernel)
        fan_in = CHANNELS * setting.kernel**2
        weight = torch.randn(shape, generator=generator) / fan_in**0.5
        drawn.append((weight, torch.randn(setting.out_channels, generator=generator)))
    teachers = nn.Conv2d(
        CHANNELS, len(seeds) * setting.out_channels, setting.kernel
    ).requires_grad_(False)
    teachers.weight.copy_(torch.cat([weight for weight, _ in drawn]))
    teachers.bias.copy_(torch.cat([bias for _, bias in drawn]))  # type: ignore[union-attr]
    return teachers


def shifts_of(kernel: int) -> list[tuple[int, int]]:
    """Δ_K = {−⌊K/2⌋, …, ⌊K/2⌋}², row by row."""
    reach = range(-(kernel // 2), kernel // 2 + 1)
    return [(row, column) for row in reach for column in reach]


class Students:
    """The students of all seeds, side by side in one layer.

    Args:
        setting: their common hyperparameters.
        seeds: one per student; the seed draws its start, and that of its teacher draws the teacher.

    Attributes:
        layer: the layer, with learned τ and log α.
        log_alpha: (seeds · heads,); tau: (seeds · heads, 2): its parameters.
        mask: (seeds · heads, 1, 3, seeds · D_out): where W_out may be other than zero.

    Raises:
        BadInput: the start does not suit the heads.
    """

    def __init__(self, setting: Setting, seeds: list[int]):
        self.setting, self.seeds = setting, seeds
        alone = []
        for seed in seeds:
            # not the teacher's random numbers
            generator = torch.Generator().manual_seed(10_000 + seed)
            try:
                student = attention_to_learn(
                    CHANNELS,
                    setting.out_channels,
                    setting.heads,
                    start=setting.start,
                    alpha=setting.alpha,
                    generator=generator,
                )
            except ValueError as error:
                raise BadInput(str(error)) from None
            alone.append(
                {name: tensor.detach() for name, tensor in settle(student).named_parameters()}
            )
        joined = {name: torch.cat([one[name] for one in alone]) for name in NAMES}
        joined["w_out"] = torch.cat(
            [self._among_all(one["w_out"], place) for place, one in enumerate(alone)]
        )
        self.mask = torch.cat(
            [
                self._among_all(torch.ones_like(one["w_out"]), place)
                for place, one in enumerate(alone)
            ]
        )
        width, k = len(seeds) * setting.out_channels, (setting.kernel, setting.kernel)
        geometry = ConvGeometry(CHANNELS, width, k, (1, 1), (0, 0), "zeros", (1, 1), 1)
        # All pairs of a small patch: one softmax over all heads trains faster than a factor for
        # each axis.
        self.layer = learned_quadratic(MHSA(geometry, MHSAWeights(**joined), "dense"))
        self.layer.w_val.requires_grad_(False)
        self.layer.w_out.register_hook(lambda gradient: gradient * self.mask)
        held = dict(self.layer.named_parameters())
        self.log_alpha, self.tau = (
            held["parametrizations.v.original0"],
            held["parametrizations.v.original1"],
        )

    def _among_all(self, w_out: Tensor, place: int) -> Tensor:
        """(heads, 1, 3, D_out) → (heads, 1, 3, seeds · D_out), zero at the channels of all others."""
        width = self.setting.out_channels
        return nn.functional.pad(w_out, (width * place, width * (len(self.seeds) - place - 1)))

    @torch.no_grad()
    def put_on_solution(self, teachers: nn.Module, alpha: float) -> None:
        """Heads on Δ_K, row by row, with the teacher's taps: the theorem's own construction.

        Raises:
            ValueError: there are fewer heads than taps.
        """
        k, heads = self.setting.kernel, self.setting.heads
        if heads < k**2:
            raise ValueError(f"{heads} heads cannot stand on {k**2} shifts")
        # (seeds, D_out, 3, K, K)
        weight = teachers.get_parameter("weight").unflatten(0, (len(self.seeds), -1))
        taps = weight.flatten(3).permute(0, 3, 2, 1)  # (seeds, K², 3, D_out)
        spare = heads - k**2  # heads that add nothing
        taps = nn.functional.pad(taps, (0, 0, 0, 0, 0, spare))
        tau = torch.tensor(shifts_of(k) + [(0, 0)] * spare, dtype=self.tau.dtype)
        self.tau.copy_(tau.repeat(len(self.seeds), 1))
        self.log_alpha.fill_(log(alpha))
        self.layer.w_out.copy_(
            torch.cat([self._among_all(t[:, None], s) for s, t in enumerate(taps)])
        )
        self.layer.b_out.copy_(teachers.get_parameter("bias"))

    def errors(self, teachers: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
        """The relative mean squared error of every student on some patches: (seeds,).

        Args:
            teachers: the teachers of the same seeds.
            x: (B, 3, side, side).
            scale: the variance of each teacher's outputs, (seeds,).
        """
        square = (self.layer(x) - teachers(x)).square().unflatten(1, (len(self.seeds), -1))
        return square.mean((0, 2, 3, 4)) / scale

    def alone(self, place: int) -> MHSA:
        """The student of one seed, as a separate layer with plain tensors."""
        setting, heads = (
            self.setting,
            slice(place * self.setting.heads, (place + 1) * self.setting.heads),
        )
        width = slice(place * setting.out_channels, (place + 1) * setting.out_channels)
        held = {name: getattr(self.layer, name).detach() for name in NAMES}
        own = {
            name: tensor[heads].clone()
            for name, tensor in held.items()
            if name not in ("w_out", "b_out")
        }
        weights = MHSAWeights(
            **own,
            w_out=held["w_out"][heads, ..., width].clone(),
            b_out=held["b_out"][width].clone(),
        )
        k = (setting.kernel, setting.kernel)
        geometry = ConvGeometry(
            CHANNELS, setting.out_channels, k, (1, 1), (0, 0), "zeros", (1, 1), 1
        )
        return MHSA(geometry, weights, "dense")

    def centres(self) -> tuple[Tensor, Tensor]:
        """α (seeds, heads) and τ (seeds, heads, 2)."""
        seeds = len(self.seeds)
        alpha, tau = self.log_alpha.detach().exp(), self.tau.detach()
        return alpha.view(seeds, -1).clone(), tau.view(seeds, -1, 2).clone()


@torch.no_grad()
def scale_of(teachers: nn.Module, seeds: int, x: Tensor) -> Tensor:
    """The variance of each teacher's outputs on some patches, (seeds,): each channel about its own
    mean.
    """
    return teachers(x).var((0, 2, 3)).unflatten(0, (seeds, -1)).mean(1)
