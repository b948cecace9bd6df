"""Validates the arguments of `verify.write_report` before any work, with one-line errors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from construct.attention import MHSA
from verify.argument.certificate import Certificate
from verify.layers.fields import TENSORS, digests
from verify.oracle import stated_geometry


def require_types(**given: tuple[Any, Any, str]) -> None:
    """Raise a TypeError unless each argument, given with its type and that in words, is of it or
    missing.
    """
    for name, (value, kind, words) in given.items():
        if not isinstance(value, kind | None):
            raise TypeError(f"write_report: {name} must be {words}, not a {type(value).__name__}")


def certificates_by_path(
    given: Mapping[str, Certificate] | Certificate | None,
    pairs: Mapping[str, tuple[nn.Module, MHSA]],
) -> dict[str, Certificate]:
    """Certificates by layer path, with digests that match the layers' present numbers.

    Raises:
        TypeError: a value is not a certificate.
        ValueError: there is no such layer, or the certificate belongs to another one.
    """
    by_path = {"": given} if isinstance(given, Certificate) else dict(given or {})
    for path, certificate in by_path.items():
        if not isinstance(certificate, Certificate):
            raise TypeError(
                f"write_report: the certificate of {path!r} is a {type(certificate).__name__}"
            )
        if path not in pairs:
            names = ", ".join(repr(name) for name in list(pairs)[:8]) or "no layer at all"
            raise ValueError(
                f"write_report: there is a certificate of {path!r}, but no such layer; there is {names}"
            )
        conv, mhsa = pairs[path]
        for what, ours, theirs in (
            ("geometry of the convolution", stated_geometry(conv), certificate.conv_geometry),
            ("geometry of the attention", stated_geometry(mhsa), certificate.mhsa_geometry),
            ("convolution", digests(conv, ("weight", "bias")), certificate.conv_sha256),
            ("attention layer", digests(mhsa, TENSORS), certificate.mhsa_sha256),
        ):
            if ours != theirs:
                raise ValueError(
                    f"write_report: the certificate of {path or 'the model'!r} is of another {what} "
                    "(certify it again, or leave it out)"
                )
    return by_path


def probabilities_by_name(given: Mapping[str, Any] | None) -> dict[str, np.ndarray]:
    """The attention to show as float64 arrays by name; a TypeError unless all are arrays."""
    arrays = {}
    for name, values in (given or {}).items():
        try:
            if isinstance(values, torch.Tensor):  # numpy has no bfloat16
                values = values.detach().cpu().double().numpy()
            arrays[str(name)] = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"write_report: the attention of {name!r} must be an array of numbers: {error}"
            ) from error
    return arrays
