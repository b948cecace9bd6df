"""The report of a conversion: its rows, and its JSON document."""

import json
import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from construct.attention import MHSA
from construct.encoding.sharpness import alpha_for
from construct.files.reading import ModelFile
from construct.geometry import ConvGeometry
from construct.modules.folding import parametrization_names
from construct.network import Survey
from verify.argument.certificate import Certificate
from verify.argument.documents import json_data
from verify.samples.accuracy import Accuracy
from verify.samples.network import CallComparison
from verify.samples.sampling import LayerCheck
from verify.verdict import Verdict, from_above

IDLE = "not exercised by the check (the network did not call it, or only on an empty batch, in torch.func or by a stored method)"


Pairs = Mapping[str, tuple[nn.Module, MHSA]]
"""Path → a convolution of the network, and its attention layer."""


@dataclass(frozen=True)
class Conversion:
    """A network that was read from a file, and its conversion.

    Attributes:
        model: the network, without wrappers.
        survey: its convolutions.
        pairs: path → the convolution in ``model``, and its attention layer in ``converted``.
        remarks: (path, remark) on the conversion.
        unchecked: (path, remark) on why the output will not be rechecked; they are among the
            remarks.
    """

    source: ModelFile
    model: nn.Module
    survey: Survey
    pairs: Pairs
    converted: nn.Module
    remarks: tuple[tuple[str, str], ...]
    unchecked: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LayerRow:
    """One converted layer.

    Attributes:
        check: the check on samples.
        certificate: the certificate for all inputs, if there is one.
        verdict: the certificate's, or else the check's.
        exercised: whether a call by the network was checked; None if the network was not run.
    """

    path: str
    conv: nn.Module
    layer: MHSA
    check: LayerCheck
    certificate: Certificate | None
    verdict: Verdict
    exercised: bool | None

    @property
    def alpha(self) -> float:
        """The least sharpness of its heads."""
        return float(self.layer.centres()[0].min())

    @property
    def sharp_from(self) -> float:
        """The least sharpness at which heads of this dtype leak nothing."""
        return alpha_for(torch.promote_types(self.layer.w_val.dtype, torch.float32))

    @property
    def largest_bound(self) -> float:
        """The largest bound of its certificate; 0 without one."""
        if self.certificate is None:
            return 0.0
        return float(self.certificate.bound.max(initial=0.0))

    @property
    def share(self) -> float | None:
        """The bound over the largest |output| in the check, where a difference is claimed; None for
        the same function.
        """
        if self.certificate is None or self.certificate.within is None:
            return None
        if self.check.largest_output == 0:
            return math.inf
        return self.largest_bound / self.check.largest_output


@dataclass(frozen=True)
class NetworkRow:
    """The network as a whole, on the inputs that were run.

    Attributes:
        input_size: (C, S1, …, Sd) of the inputs; None for examples.
        inputs: their description.
        calls: comparison of the calls of both networks.
        accuracy: the accuracy of their outputs; None if these differ in size.
        same_expression: whether every executed convolution is a layer PROVED the same function and
            all else agrees.
    """

    input_size: tuple[int, ...] | None
    inputs: str
    calls: CallComparison
    accuracy: Accuracy | None
    same_expression: bool

    @property
    def good(self) -> bool:
        """Whether the networks make the same calls, and their outputs do not differ by more than
        rounding explains.
        """
        refuted = self.accuracy is None or self.accuracy.verdict.name == "REFUTED"
        return self.calls.difference is None and not refuted


NOTHING_LEFT = "there is no convolution left to convert (--format or -o writes it as it is)"
"""Why the network of a conversion without layers is not written: no failure."""


@dataclass(frozen=True)
class Report:
    """Everything that is printed.

    Attributes:
        options: the command line's options.
        network: None if it was not run.
        writing: remarks on what is written.
        other_bits: which tensor would be written with other bits than it was certified with; empty
            if none.
    """

    options: Namespace
    conversion: Conversion
    layers: tuple[LayerRow, ...]
    network: NetworkRow | None
    writing: tuple[str, ...] = ()
    other_bits: str = ""

    @property
    def hindrance(self) -> str:
        """Why nothing is written, and the option that writes it all the same; empty if it is
        written.
        """
        verdicts = {row.verdict.name for row in self.layers}
        left = bool(self.conversion.survey.refused)
        if "REFUTED" in verdicts:
            return "a layer is REFUTED"
        if self.network is not None:
            left |= bool(self.network.calls.left)
            if not self.network.good:
                return "the networks do not compare equal"
        if not self.options.partial:
            if "UNDECIDED" in verdicts:
                return "a layer is UNDECIDED (--partial writes it nevertheless)"
            if left:
                return "a convolution is left unconverted (--partial allows that)"
        if not self.layers and not self.options.copy:
            return NOTHING_LEFT
        return self.other_bits

    @property
    def exit_code(self) -> int:
        """0 if every layer is good and nothing hinders that the network is written."""
        good = all(row.verdict.good for row in self.layers)
        return int(not good or self.hindrance not in ("", NOTHING_LEFT))

    @property
    def output(self) -> Path | None:
        """The file of the network, if it is written."""
        return None if self.hindrance else self.options.output

    @property
    def document(self) -> Path | None:
        """The file of the certificate, if it is written."""
        certified = self.layers and not self.options.no_certify
        return self.options.document if certified and self.output else None

    @property
    def page(self) -> Path | None:
        """The file of the page, if there is something to show."""
        return self.options.report if self.layers else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or ignored, in reading and in writing."""
        notes = (*self.conversion.source.notes, *self.writing)
        if not self.layers and self.output:
            what = "the network is written as it is, without a certificate"
            notes += (f"no convolution is left to convert: {what}",)
        if not self.layers and self.options.report:
            notes += ("there is no layer to show, so no report was written",)
        return notes


def percent(share: float) -> str:
    """A share in percent, rounded up."""
    return f"{from_above(100 * share, digits=3)} %"


def convolution_text(g: ConvGeometry) -> str:
    """A convolution in a few characters, without defaults: ``Conv2d 16->24 2x2 s2``."""
    kind = f"ConvTranspose{g.dims}d" if g.transposed else f"Conv{g.dims}d"
    padding = g.padding if isinstance(g.padding, str) else _unusual("p", g.padding, 0)
    words = (
        kind,
        f"{g.in_channels}->{g.out_channels}",
        "x".join(map(str, g.kernel_size)),
        _unusual("s", g.stride, 1),
        padding,
        _unusual("d", g.dilation, 1),
        _unusual("g", (g.groups,), 1),
        _unusual("op", g.output_padding, 0),
        g.padding_mode.removeprefix("zeros"),
    )
    return " ".join(filter(None, words))


def _unusual(letter: str, values: tuple[int, ...], usual: int) -> str:
    """A hyperparameter along each axis, in one number if it is the same along all; empty if it is
    the usual one.
    """
    different = {*values}
    if different == {usual}:
        return ""
    if len(different) == 1:
        return f"{letter}{values[0]}"
    return letter + "x".join(map(str, values))


def checked_layers(report: Report) -> int:
    """How many layers are CHECKED on samples; a layer that the network did not call does not count."""
    return sum(
        row.check.verdict.name == "CHECKED" and row.exercised is not False for row in report.layers
    )


def print_json(report: Report, out: TextIO) -> None:
    """Print the report as one JSON document; non-finite numbers become strings."""
    conversion = report.conversion
    network = report.network
    document = {
        "input": conversion.source.path,
        "sha256": conversion.source.sha256,
        "layers": [_layer_dict(row) for row in report.layers],
        "network": network and network_dict(network),
        "already_converted": conversion.survey.earlier,
        "left_unconverted": [
            {"path": row.path, "class": row.kind, "reason": row.reason}
            for row in conversion.survey.refused
        ],
        "remarks": [{"path": path, "remark": remark} for path, remark in conversion.remarks],
        "checked": checked_layers(report),
        "samples": report.options.samples,
        "seed": report.options.seed,
        "notes": [*report.notes, *filter(None, [report.other_bits])],
        "output": report.output,
        "certificate": report.document,
        "report": report.page,
        "torch": torch.__version__,
        "exit_code": report.exit_code,
    }
    # the paths are written as texts
    out.write(json.dumps(json_data(document), indent=2, allow_nan=False, default=str) + "\n")
    out.flush()


def network_dict(network: NetworkRow) -> dict[str, Any]:
    """The network row, for :func:`~verify.argument.documents.json_data`."""
    calls = network.calls
    numbers = network.accuracy
    converted = None
    if calls.left is not None:
        converted = calls.executed - calls.left
    return {
        **_fields(network, "input_size", "inputs"),
        "calls": {
            "same": calls.difference is None,
            **_fields(calls, "difference", "compared", "converted"),
            "unseen": calls.untraced,
        },
        "convolution_calls": {"original": calls.executed, "converted": calls.left},
        "convolutions": {"executed": calls.executed, "converted": converted},
        "max_abs": numbers and numbers.difference,
        "numbers": numbers and _accuracy_dict(numbers),
        "same_expression": network.same_expression,
    }


def _accuracy_dict(numbers: Accuracy) -> dict[str, Any]:
    return {
        "verdict": numbers.verdict.name,
        "sentence": numbers.verdict.sentence,
        **_fields(numbers, "original", "converted", "limit", "largest"),
        "predictions": {"agree": numbers.agree, "of": numbers.predictions},
        **_fields(numbers, "other", "no_float64"),
    }


def _layer_dict(row: LayerRow) -> dict[str, Any]:
    return {
        "name": row.path,
        "convolution": convolution_text(row.layer.geometry),
        "heads": row.layer.heads,
        "head_dim": row.layer.w_val.shape[3],
        "alpha": row.alpha,
        **_fields(row.check, "interior", "border", "bound", "ratio", "calls"),
        "exercised": row.exercised,
        "folded": parametrization_names(row.conv),
        "checked": vars(row.check.verdict),
        "certificate": row.certificate and _certificate_dict(row.certificate),
        "share_of_output": row.share,
        "verdict": vars(row.verdict),
    }


def _certificate_dict(certificate: Certificate) -> dict[str, Any]:
    channels = _fields(certificate, "bound", "rounding", "leakage", "taps", "observed")
    return {
        "verdict": certificate.verdict.name,
        **_fields(certificate, "grid", "input_bound", "within"),
        **{name: values.max(initial=0.0) for name, values in channels.items()},
    }


def _fields(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}
