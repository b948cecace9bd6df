"""The settings of a run: the presets, and everything that determines its numbers."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from examples.learned.variants import Shape


@dataclass(frozen=True)
class Preset:
    """How networks are made and trained.

    Attributes:
        shape: the sizes of the attention networks and the ResNet.
        epochs: passes over the train set.
        batch: pictures per step.
        optimiser: "sgd" with momentum 0.9, or "adamw".
        rate: the greatest learning rate.
        decay: weight decay, never of α, Σ and τ, which it would pull towards 1 and 0.
        warmup: the share of the steps over which the rate rises; then it falls along a cosine to 0.
        augment: whether train pictures are shifted by up to 4 pixels and mirrored.
        audited: the number of channels on which an audit reads the map of a layer.
        validation: train pictures held out, on which epochs are measured; the test pictures are
            then read once, after the last.  If it is 0, epochs are measured on the test pictures.
        shuffled: whether the train labels are in a random order: a control, from which nothing
            about pictures can be learned.
        where: the rate of the parameters that say where heads look, as a multiple of ``rate``.
            Adam moves a number by at most about its rate in a step, so that this bounds how far a
            centre can get.
        precision: "float32", or "bfloat16" for matrix products in bfloat16 with all parameters in
            float32 (autocast).
    """

    shape: Shape
    epochs: int
    batch: int
    optimiser: str
    rate: float
    decay: float
    warmup: float
    augment: bool
    audited: int
    validation: int = 0
    shuffled: bool = False
    where: float = 25.0
    precision: str = "float32"


PRESETS = {
    # Narrow, and 4 × 4 tokens: a run of 12 epochs takes a minute or so on one core.
    "digits": Preset(
        Shape(6, 9, 36, 48, 0.1, 0, 2.0, 12), 12, 64, "adamw", 2e-3, 1e-2, 0.1, False, 8
    ),
    # The paper's pictures, tokens, layers and heads, as narrow as two cores can train; see
    # docs/learned_details.md for the cost.
    "cifar": Preset(
        Shape(6, 9, 36, 72, 0.1, 0, 2.0, 12),
        10,
        100,
        "adamw",
        2e-3,
        1e-2,
        0.1,
        True,
        2,
        validation=5000,
    ),
    # The same with the paper's own optimiser and schedule; all parameters at one rate, as in its
    # code.
    "cifar-sgd": Preset(
        Shape(6, 9, 36, 72, 0.1, 0, 2.0, 12),
        10,
        100,
        "sgd",
        0.1,
        1e-4,
        0.05,
        True,
        2,
        validation=5000,
        where=1.0,
    ),
    # As in the paper's appendix: 6 layers, 9 heads, D_h = D_out = 400, 512 between, SGD at 0.1,
    # cosine and warm-up.
    "paper": Preset(
        Shape(6, 9, 400, 512, 0.1, 400, 2.0, 64),
        300,
        100,
        "sgd",
        0.1,
        1e-4,
        0.05,
        True,
        4,
        where=1.0,
    ),
}


@dataclass(frozen=True)
class Settings:
    """All that determines the numbers of one run, on one machine.

    Attributes:
        preset: its name.
        variant: a key of ``VARIANTS``.
        seed: the seed of the start, of the order of pictures and of dropout.
        threads: torch's threads on the CPU.
        device: "cpu" or "cuda".
        data: the SHA-256 of every file of data.
        how: the preset, with the command's changes.
    """

    preset: str
    variant: str
    seed: int
    threads: int
    device: str
    data: dict[str, str]
    how: Preset

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    def record(self) -> dict[str, Any]:
        """The settings in JSON's types."""
        return asdict(self)

    @classmethod
    def read(cls, record: dict[str, Any]) -> "Settings":
        """The settings of a record.

        Raises:
            LookupError, TypeError: it is no such record.
        """
        how: dict[str, Any] = {**record["how"], "shape": Shape(**record["how"]["shape"])}
        fields: dict[str, Any] = {**record, "how": Preset(**how)}
        return cls(**fields)

    def differences(self, other: dict[str, Any]) -> str:
        """The differences from another record in a few words; empty if there are none."""
        mine, theirs = _flat(self.record()), _flat(other)
        changes = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
        return ", ".join(f"{key} {theirs.get(key)} then and {mine.get(key)} now" for key in changes)


def changed(preset: Preset, **given: Any) -> Preset:
    """A preset with the user's values where they are not None."""
    known = {key: value for key, value in given.items() if value is not None}
    shape = {key: known.pop(key) for key in ("heads", "layers", "width") if key in known}
    return replace(preset, shape=replace(preset.shape, **shape), **known)


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat |= (
            _flat(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat
