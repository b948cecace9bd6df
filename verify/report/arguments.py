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


def models(original: Any, converted: Any) -> None:
    """Raise a TypeError unless each is a network or missing, and a ValueError if only one is given."""
    for what, model in (("the original", original), ("the converted network", converted)):
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(
                f"write_report: {what} must be a torch.nn.Module, not a {type(model).__name__}"
            )
    if (original is None) != (converted is None):
        raise ValueError("write_report takes both networks, or neither and attention alone")


def batch(x: Any) -> None:
    """Raise a TypeError unless a network can be called with this input: a tensor, tuple or mapping."""
    if x is not None and not isinstance(x, torch.Tensor | tuple | Mapping):
        raise TypeError(
            f"write_report: x must be a tensor, or a tuple or mapping of arguments, not a {type(x).__name__}"
        )


def certificates_by_path(
    given: Any, pairs: Mapping[str, tuple[nn.Module, MHSA]]
) -> dict[str, Certificate]:
    """Certificates by layer path, with digests that match the layers' present numbers.

    Raises:
        TypeError: a value is not a certificate.
        ValueError: there is no such layer, or the certificate belongs to another one.
    """
    if given is None:
        return {}
    if not isinstance(given, Certificate | Mapping):
        raise TypeError(
            f"write_report: certificates must be a Certificate or a mapping of them, not a {type(given).__name__}"
        )
    by_path = {"": given} if isinstance(given, Certificate) else dict(given)
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
        for what, layer, names, stated, hashes in (
            (
                "convolution",
                conv,
                ("weight", "bias"),
                certificate.conv_geometry,
                certificate.conv_sha256,
            ),
            ("attention layer", mhsa, TENSORS, certificate.mhsa_geometry, certificate.mhsa_sha256),
        ):
            theirs = {"geometry": stated, **hashes}
            ours = {"geometry": stated_geometry(layer), **digests(layer, names)}
            other = [
                name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)
            ]
            if other:
                raise ValueError(
                    f"write_report: the certificate of {path or 'the model'!r} is of another {what}: its {min(other)} is "
                    "another one (certify it again, or leave it out)"
                )
    return by_path


def probabilities_by_name(given: Any) -> dict[str, np.ndarray]:
    """The attention to show as float64 arrays by name; a TypeError unless it is a mapping of
    arrays.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"write_report: attention must be a mapping from names to probabilities, not a {type(given).__name__}"
        )
    arrays = {}
    for name, values in given.items():
        if not isinstance(name, str):
            raise TypeError(
                f"write_report: the name {name!r} of attention must be a text, not a {type(name).__name__}"
            )
        try:
            # numpy has no bfloat16.
            array = (
                values.detach().cpu().double().numpy()
                if isinstance(values, torch.Tensor)
                else values
            )
            arrays[name] = np.asarray(array, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"write_report: the attention of {name!r} must be an array of numbers: {error}"
            ) from error
    return arrays
