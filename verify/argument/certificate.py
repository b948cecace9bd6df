"""``Certificate``: a claim about a convolution and an attention layer for all inputs, with its
steps and assumptions.
"""

import json
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np
from numpy import ndarray

from verify.argument.refutation import Counterexample
from verify.argument.steps import Step
from verify.oracle import Vector, greatest
from verify.recheck.certificate_file import PARTS, VERSION
from verify.recheck.strict_input import Record
from verify.verdict import Verdict, as_html, exactly, from_above

_WRITTEN = "dtype heads conv_geometry mhsa_geometry conv_sha256 mhsa_sha256 torch_version".split()
"""The fields that are JSON as they are."""
MOST_SHOWN = 2**16
"""An input that exceeds the bound is written down if it has no more numbers than this."""


@dataclass(frozen=True)
class Overrun:
    """A run that differs from the convolution by more than the bound.

    Attributes:
        execution: the one that was run.
        input: ``(D_in, *grid)``, float64.
        output: ``(channel, *position)``.
        convolution: the convolution's exact output there.
        attention: the run's output there.
    """

    execution: str
    input: ndarray
    output: Vector
    convolution: Fraction
    attention: float

    def record(self) -> Record:
        """As JSON types; a long input becomes null."""
        shown = None
        if self.input.size <= MOST_SHOWN:
            shown = _hex(self.input.ravel())
        return {
            "execution": self.execution,
            "grid": list(self.input.shape[1:]),
            "input": shown,
            "output": list(self.output),
            "convolution": str(self.convolution),
            "attention": float(self.attention).hex(),
        }


@dataclass(frozen=True)
class Certificate:
    """For all finite X with ``|X| ≤ B`` on inputs up to the grid:
    ``|attention(X) − convolution(X)| ≤ bound``, per output channel.

    Attributes:
        verdict: PROVED, REFUTED or UNDECIDED, with its sentence.
        grid: the input's spatial size, before padding; smaller inputs are covered too.
        input_bound: B.
        within: None for the claim "the same function" (the bound is rounding alone), else T for "a
            difference ≤ T".
        bound: float64 (D_out,), rounded up: rounding + leakage + taps.  Infinite where a step
            failed.
        rounding: the part due to rounding.
        leakage: the part due to attention that goes to other keys.
        taps: the part due to weights that differ.
        steps: the steps of the argument.
        assumptions: what the claim assumes, each as ``"name: sentence"``.
        dtype: the type of both layers.
        heads: N_h.
        conv_geometry: the geometry that the convolution states.
        mhsa_geometry: the geometry that the attention layer states.
        conv_sha256: for each tensor of the convolution that is there, SHA-256 of its type, shape
            and bytes.
        mhsa_sha256: the same for the attention layer.
        torch_version: the version that ran the probes.
        observed: the largest difference in any run, per output channel.
        probes: (execution, inputs, worst ratio to the bound, note).
        counterexample: an input on which the two exact outputs differ, if that is what refutes the
            claim.
        overrun: the first run that refutes the bound, if there is one.
        positional: where step 1 fails, the certificate of the heads that attend by position alone,
            with b_out; a file has only its verdict, in the sentence of step 1.

    >>> import construct, torch, verify
    >>> conv = torch.nn.Conv1d(2, 3, 5, padding=2)
    >>> certificate = verify.certify(conv, construct.conv_to_mhsa(conv), grid=(16,), input_bound=4.0)
    >>> certificate.verdict.name, certificate.bound.shape, bool((certificate.observed <= certificate.bound).all())
    ('PROVED', (3,), True)
    >>> [step.name for step in certificate.steps if step.holds]
    ['tokens', 'content', 'target', 'leakage', 'taps', 'rounding', 'runs']
    """

    verdict: Verdict
    grid: Vector
    input_bound: float
    within: float | None
    bound: ndarray
    rounding: ndarray
    leakage: ndarray
    taps: ndarray
    steps: tuple[Step, ...]
    assumptions: tuple[str, ...]
    dtype: str
    heads: int
    conv_geometry: Record
    mhsa_geometry: Record
    conv_sha256: dict[str, str]
    mhsa_sha256: dict[str, str]
    torch_version: str
    observed: ndarray
    probes: tuple[Record, ...] = ()
    counterexample: Counterexample | None = None
    overrun: Overrun | None = None
    positional: "Certificate | None" = None

    @property
    def tightness(self) -> float:
        """Bound over observed at the output where it is tightest; infinite if nothing was observed."""
        with np.errstate(all="ignore"):
            ratios = np.where(
                (self.observed > 0) & (self.bound < np.inf), self.bound / self.observed, np.inf
            )
        return float(ratios.min(initial=np.inf))

    @property
    def claim(self) -> str:
        """What is claimed, "same sums" (the same function, up to rounding) or "within" a number."""
        return "same sums" if self.within is None else "within"

    def __str__(self) -> str:
        claim = "the same function"
        if self.within is not None:
            claim = f"a difference of at most {exactly(self.within)}"
        lines = [
            str(self.verdict),
            f"claim: {claim}, for all finite |x| ≤ {exactly(self.input_bound)} on inputs up to {self.grid}",
            f"bound: {_most(self.bound)} at most "
            f"(rounding {_most(self.rounding)}, leakage {_most(self.leakage)}, taps {_most(self.taps)})",
            f"observed: {self._observed()}",
        ]
        lines += [
            f"step {s.number} {'holds' if s.holds else 'FAILS'}: {s.name}: {s.sentence}"
            for s in self.steps
        ]
        lines += [f"assuming {assumption}" for assumption in self.assumptions]
        return "\n".join(lines)

    _repr_html_ = as_html

    def _observed(self) -> str:
        if not any(probe["inputs"] for probe in self.probes):
            return "nothing, as no execution was run"
        if not self.observed.any():
            return "no difference, so that nothing is known of how tight the bound is"
        most = f"{_most(self.observed)} at most, on adversarial inputs; "
        if not np.isfinite(self.tightness):
            return most + "where there was a difference, there is no bound to hold it against"
        tight = f"the bound is {self.tightness:.3g} times what was observed of the output where it is tightest"
        return f"{most}{tight} (measured, not proved)"

    def record(self) -> Record:
        """The certificate as JSON types; floats are written so that they read back exactly."""
        claim = "same function"
        within = None
        if self.within is not None:
            claim = "difference within"
            within = float(self.within).hex()
        return {
            "version": VERSION,
            "verdict": self.verdict.name,
            "sentence": self.verdict.sentence,
            "claim": claim,
            "within": within,
            "grid": list(self.grid),
            "input_bound": float(self.input_bound).hex(),
            **{name: vars(self)[name] for name in _WRITTEN},
            **{part: _hex(vars(self)[part]) for part in (*PARTS, "observed")},
            "steps": [asdict(step) for step in self.steps],
            "assumptions": list(self.assumptions),
            "probes": [dict(probe) for probe in self.probes],
            "counterexample": self.counterexample and self.counterexample.record(),
            "overrun": self.overrun and self.overrun.record(),
        }

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps(self.record(), indent=1, ensure_ascii=False) + "\n"


def _most(part: ndarray) -> str:
    return from_above(greatest(part))


def _hex(array: ndarray) -> list[str]:
    return [float(x).hex() for x in array]
