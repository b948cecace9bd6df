"""Loads an attention layer from a weight file with the checker's reader, which executes nothing from the file."""

import os
from pathlib import Path
from typing import Any

import torch

from construct.attention import MHSA, ConvGeometry, MHSAWeights
from verify.recheck.checkpoints import TENSORS
from verify.recheck.weight_files import layers_in, numbers


class NoLayer(ValueError):
    """The file holds no attention layer of this project."""


def layer_in(path: str | os.PathLike[str], name: str | None = None) -> MHSA:
    """Read a layer.

    Args:
        path: ``model.mhsa.pt``, a network or a state dict, or a safetensors file of this project.
        name: the layer's path in the network; only needed if the file holds several layers.

    Raises:
        ValueError: the file is malformed, holds no such layer, or holds several and no name was given.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        layers = {key: layer for key, layer in layers_in(file, str(path)).items() if layer.kind == "MHSA"}
        if not layers:
            raise NoLayer(
                f"{path}: it holds no attention layer of this project (python -m construct.from_conv makes one)"
            )
        if name is None and len(layers) > 1:
            raise ValueError(f"{path}: it holds several layers; give --layer, one of {', '.join(layers)}")
        if name is not None and name not in layers:
            raise ValueError(f"{path}: it holds no layer {name!r}, but {', '.join(map(repr, layers))}")
        layer = layers[next(iter(layers)) if name is None else name]
        if layer.geometry is None:
            raise ValueError(
                f"{path}: nothing is said of the layer's geometry (save the layer, or its state dict, again)"
            )
        stated: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in layer.geometry.items()}
        radix = stated.pop("radix", None)
        tensors = {}
        for key in TENSORS:
            stored = layer.tensors[key]
            tensors[key] = torch.from_numpy(numbers(stored.read(), stored.dtype)).to(getattr(torch, stored.dtype))
    try:
        return MHSA(ConvGeometry(**stated), MHSAWeights(**tensors), radix=radix)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: geometry and tensors do not fit together: {error}") from None
