"""``verify.write_report``: checks and certifies the layers of two networks, and writes the page."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from construct.attention import MHSA
from verify.argument.certificate import Certificate
from verify.argument.documents import replace_file
from verify.argument.verdicts import certify_layer, combined
from verify.report.arguments import certificates_by_path, probabilities_by_name, require_types
from verify.report.images import activations, has_photograph, photograph
from verify.report.layer import ReportLayer
from verify.report.page import Facts, page
from verify.samples.sampling import check_call, evaluating, generated_inputs

MOST_DRAWN = 40
"""The most layers whose inputs are kept for drawing; more images would not fit on a page."""


def write_report(
    path: str | os.PathLike[str],
    original: nn.Module | None = None,
    converted: nn.Module | None = None,
    x: Tensor | None = None,
    *,
    certificates: Mapping[str, Certificate] | Certificate | None = None,
    attention: Mapping[str, Any] | None = None,
    title: str = "Convolutions as attention",
) -> None:
    """Write one self-contained HTML page with the attention of every head and the proved claim for
    each layer.

    Args:
        path: of the page; it replaces an earlier file atomically.
        original: a convolution, or a network with convolutions.
        converted: its attention layer, or the network that ``construct.convert`` made of it.
        x: a batched input of ``original``, whose first example is checked and drawn; by default
            each layer gets its own inputs.
        certificates: from ``verify.certify``, by layer path, or one for a bare layer.  Layers
            without one are certified here.
        attention: probabilities ``(heads, *positions, *positions)`` of learned attention, by name.
            Under a layer path they replace that layer's own attention; other names are added.
        title: of the page.

    Raises:
        ImportError: jinja2 is missing.
        TypeError: an argument has a wrong type.
        ValueError: the networks do not belong together, a certificate belongs to another layer,
            ``x`` is not a valid input of the network, or the attention does not consist of
            probabilities.
        OSError: the file cannot be written.

    >>> import construct, pathlib, tempfile, torch, verify
    >>> conv = torch.nn.Conv2d(1, 2, kernel_size=3, padding=1)
    >>> path = tempfile.mkdtemp() + "/page.html"
    >>> verify.write_report(path, conv, construct.conv_to_mhsa(conv), torch.randn(1, 1, 8, 8))
    >>> "PROVED" in pathlib.Path(path).read_text(encoding="utf-8")
    True
    """
    require_types(
        original=(original, nn.Module, "a torch.nn.Module"),
        converted=(converted, nn.Module, "a torch.nn.Module"),
        x=(x, Tensor | tuple | Mapping, "a tensor, or a tuple or mapping of arguments"),
        certificates=(certificates, Certificate | Mapping, "a Certificate or a mapping of them"),
        attention=(attention, Mapping, "a mapping from names to probabilities"),
    )
    if (original is None) != (converted is None):
        raise ValueError("write_report takes both networks, or neither and attention alone")
    # in training, to read a parametrized weight may change it
    with evaluating(*filter(None, (original, converted))):
        arrays = probabilities_by_name(attention)
        layers: list[ReportLayer] = []
        input_caption = ""
        first = None
        if original is not None and converted is not None:
            pairs = _pairs(original, converted)
            known = certificates_by_path(certificates, pairs)
            inputs, input_caption, first = _inputs(
                original, {name: conv for name, (conv, _) in pairs.items()}, x
            )
            missing = why_no_input(pairs, inputs)
            for name, (conv, mhsa) in pairs.items():
                try:
                    layer = _judged(
                        name, conv, mhsa, inputs.get(name), known.get(name), arrays.pop(name, None)
                    )
                    layers.append(replace(layer, no_input=missing.get(name, "")))
                except (ValueError, RuntimeError) as error:
                    raise ValueError(
                        f"write_report: layer {name or 'the model'!r}: {error}"
                    ) from error
        else:
            certificates_by_path(certificates, {})
        layers += [ReportLayer(name, attention=array) for name, array in arrays.items()]
        if not layers:
            raise ValueError("write_report: there is nothing to show")
        facts = Facts(title, input_caption=input_caption, run=(original, converted, first))
        replace_file(Path(path), page(layers, facts))


def _pairs(original: nn.Module, converted: nn.Module) -> dict[str, tuple[nn.Module, MHSA]]:
    """Each attention layer and the convolution that it replaces, by path."""
    before = dict(original.named_modules(remove_duplicate=False))
    pairs = {}
    for name, mhsa in converted.named_modules(remove_duplicate=False):
        if isinstance(mhsa, MHSA) and not isinstance(before.get(name), MHSA):
            if getattr(before.get(name), "weight", None) is None:
                raise ValueError(
                    f"write_report: {name or 'the model'!r} is attention, but no convolution in the original"
                )
            pairs[name] = (before[name], mhsa)
    if not pairs:
        raise ValueError(
            "write_report: no convolution of the original is an attention layer of the converted network"
        )
    return pairs


def pictured(
    original: nn.Module,
    convolutions: Mapping[str, Any],
    x: Any,
    size: tuple[int, ...] | None = None,
) -> tuple[dict[str, Tensor], str, Any]:
    """An input to draw for each layer, a caption, and the input of the network; None if it did not
    run.

    The network runs once: on a photograph if it accepts one of ``size``, (channels, height, width),
    else on ``x``. Without ``x`` each layer gets seeded random inputs.
    """
    convolutions = dict(islice(convolutions.items(), MOST_DRAWN))
    dtype = next(conv.weight.dtype for conv in convolutions.values())
    real = size and photograph(size, dtype)
    if real is not None:
        inputs = activations(original, real[0], convolutions)
        return inputs, f"What reaches this layer from {real[1]}.", real[0]
    wanting = has_photograph(size)
    if x is not None:
        inputs = activations(original, x, convolutions)
        caption = "What reaches this layer from the first input of the check."
    else:
        inputs = {name: generated_inputs(conv, 1, 0) for name, conv in convolutions.items()}
        caption = "The input is random."
        if list(convolutions) == [""]:
            conv = convolutions[""]
            shape = (int(conv.in_channels), *(64,) * (conv.weight.dim() - 2))
            own = photograph(shape, dtype)
            if own is not None:
                return {"": own[0].to(conv.weight.device)}, f"The input is {own[1]}.", None
            wanting = has_photograph(shape)
    if wanting:
        caption += " Install scikit-learn for a real picture."
    return inputs, caption, x


def why_no_input(convolutions: Iterable[str], inputs: Mapping[str, Any]) -> dict[str, str]:
    """The reasons why layers have no input to draw, by path."""
    reasons = {}
    for index, name in enumerate(convolutions):
        if index >= MOST_DRAWN:
            reasons[name] = f"only the inputs of the first {MOST_DRAWN} layers are kept"
        elif name not in inputs:
            reasons[name] = "the network did not call this layer"
    return reasons


def _inputs(
    original: nn.Module, convolutions: dict[str, nn.Module], x: Any
) -> tuple[dict[str, Tensor], str, Any]:
    try:
        return pictured(original, convolutions, x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if x is None:
            raise
        raise ValueError(f"write_report: the network does not take x: {error}") from error


def _judged(
    name: str,
    conv: nn.Module,
    mhsa: MHSA,
    x: Any,
    certificate: Certificate | None,
    attention: np.ndarray | None,
) -> ReportLayer:
    """Check a layer on one input, and certify it unless a certificate is given."""
    sample = generated_inputs(conv, 1, 0) if x is None else x
    check = check_call(conv, mhsa, sample, "one input of the report")
    if certificate is None:
        certificate, verdict = certify_layer(conv, mhsa, check)
    else:
        verdict = combined(certificate, check)
    return ReportLayer(name, conv, mhsa, check, certificate, verdict, x, attention)
