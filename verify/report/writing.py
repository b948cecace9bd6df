"""``verify.write_report``: the page of a convolution or a network, from the modules themselves."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from construct.attention import MHSA
from verify.argument.certificate import Certificate
from verify.argument.documents import _replace
from verify.argument.verdicts import certify_layer, combined
from verify.report.arguments import batch, certificates_by_path, models, probabilities_by_name
from verify.report.images import activations, has_photograph, photograph
from verify.report.layer import Layer
from verify.report.page import Facts, page
from verify.samples.sampling import check_call, evaluating, generated_inputs

MOST_DRAWN = 40
"""Layers whose input is kept to be drawn; the pictures of more would not fit on a page."""
LEDE = (
    "Below, each convolution stands beside a layer of multi-head self-attention with relative positions. The theorem "
    "(Cordonnier, Loukas, Jaggi, ICLR 2020) gives every tap of a kernel a head of its own, to look where the tap looks. Whether "
    "these layers then compute the same is judged one by one."
)


def write_report(
    path: str | os.PathLike[str],
    original: nn.Module | None = None,
    converted: nn.Module | None = None,
    x: torch.Tensor | None = None,
    *,
    certificates: Mapping[str, Certificate] | Certificate | None = None,
    attention: Mapping[str, Any] | None = None,
    title: str = "Convolutions as attention",
) -> None:
    """Write one self-contained HTML page that shows what every head looks at, beside what is proved of the layers.

    Args:
        path: of the page; whatever stood there is replaced in one step or not touched.
        original: a convolution, or a network with convolutions.
        converted: its attention layer, or the network that ``construct.convert`` made of it.
        x: an input of ``original``, batched, to check and to draw; by default every layer gets inputs of its own.
        certificates: what ``verify.certify`` gave: by the path of the layer, or one for a bare layer.  A layer without one is
            certified here.
        attention: learned attention to show, by name: probabilities (heads, *positions, *positions).  For the path of a layer
            they are shown in place of its own; other names are added.
        title: of the page.

    Raises:
        ImportError: jinja2 is not there.
        TypeError: an argument is of another kind than it says above.
        ValueError: the two networks do not belong together, a certificate is of another layer, ``x`` is no input of the
            network, or the attention is not made of probabilities.
        OSError: the file cannot be written.
    """
    models(original, converted)
    batch(x)
    arrays = probabilities_by_name(attention)
    layers: list[Layer] = []
    told = ""
    if original is not None and converted is not None:
        pairs = _pairs(original, converted)
        known = certificates_by_path(certificates, pairs)
        inputs, told = _inputs(original, {name: conv for name, (conv, _) in pairs.items()}, x)
        missing = why_no_input(pairs, inputs)
        for name, (conv, mhsa) in pairs.items():
            try:
                layer = _judged(name, conv, mhsa, inputs.get(name), known.get(name), arrays.pop(name, None))
                layers.append(replace(layer, no_input=missing.get(name, "")))
            except (ValueError, RuntimeError) as error:
                raise ValueError(f"write_report: layer {name or 'the model'!r}: {error}") from error
    else:
        certificates_by_path(certificates, {})
    layers += [Layer(name, attention=array) for name, array in arrays.items()]
    if not layers:
        raise ValueError("write_report: there is nothing to show")
    lede = LEDE if original is not None else "Attention as it was given, head by head."
    _replace(Path(path), page(layers, Facts(title, lede, input_told=told)))


def _pairs(original: nn.Module, converted: nn.Module) -> dict[str, tuple[nn.Module, MHSA]]:
    """Every attention layer and the convolution in whose place it is."""
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
        raise ValueError("write_report: no convolution of the original is an attention layer of the converted network")
    return pairs


def pictured(
    original: nn.Module, convolutions: Mapping[str, Any], x: Any, size: tuple[int, ...] | None = None
) -> tuple[dict[str, torch.Tensor], str]:
    """An input to draw for each layer, and what they are.

    A network is run once: on a photograph if its inputs are of that kind, else on ``x``.  Without ``x`` every layer gets seeded
    inputs of its own.

    Args:
        original: the network.
        convolutions: its layers, by path.
        x: an input of the network, or None.
        size: (channels, height, width) if a photograph may take the place of ``x``.
    """
    convolutions = dict(islice(convolutions.items(), MOST_DRAWN))
    dtype = next(conv.weight.dtype for conv in convolutions.values())
    real = photograph(size, dtype) if size is not None else None
    if real is not None:
        return activations(original, real[0], convolutions), f"What reaches this layer from {real[1]}."
    wanting = has_photograph(size)
    if x is not None:
        found, told = (
            activations(original, x, convolutions),
            "What reaches this layer from the first input of the check.",
        )
    else:
        found, told = (
            {name: generated_inputs(conv, 1, 0) for name, conv in convolutions.items()},
            "The input is random.",
        )
        if list(convolutions) == [""]:
            conv = convolutions[""]
            shape = (int(conv.in_channels), 64, 64) if conv.weight.dim() == 4 else None
            own = photograph(shape, dtype) if shape is not None else None
            if own is not None:
                return {"": own[0].to(conv.weight.device)}, f"The input is {own[1]}."
            wanting = has_photograph(shape)
    return found, f"{told} Install scikit-learn for a real picture." if wanting else told


def why_no_input(convolutions: Iterable[str], inputs: Mapping[str, Any]) -> dict[str, str]:
    """Why some layers have no input to draw, by path."""
    return {
        name: f"only the inputs of the first {MOST_DRAWN} layers are kept"
        if index >= MOST_DRAWN
        else "the network did not call this layer"
        for index, name in enumerate(convolutions)
        if name not in inputs
    }


def _inputs(original: nn.Module, convolutions: dict[str, nn.Module], x: Any) -> tuple[dict[str, torch.Tensor], str]:
    try:
        return pictured(original, convolutions, x)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if x is None:
            raise
        raise ValueError(f"write_report: the network does not take x: {error}") from error


def _judged(
    name: str, conv: nn.Module, mhsa: MHSA, x: Any, certificate: Certificate | None, attention: np.ndarray | None
) -> Layer:
    """Check a layer on one input, and certify it if that was not done."""
    sample = generated_inputs(conv, 1, 0) if x is None else x
    with evaluating(conv, mhsa):
        check = check_call(conv, mhsa, sample, "one input of the report")
        if certificate is None:
            certificate, verdict = certify_layer(conv, mhsa, check)
        else:
            verdict = combined(certificate, check)
    return Layer(name, conv, mhsa, check, certificate, verdict, x, attention)
