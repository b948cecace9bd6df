"""An attention layer from a weight file, by the checker's reader: nothing that the file holds is run."""

import os
from pathlib import Path
from typing import Any

import torch

from construct.attention import MHSA, ConvGeometry, MHSAWeights
from verify.recheck.arrays import TENSORS, layers_in, numbers


def layer_in(path: str | os.PathLike[str], name: str | None = None) -> MHSA:
    """Read a layer.

    Args:
        path: of ``model.mhsa.pt``, a network or a state dict, or of a safetensors file that this project wrote.
        name: the layer's path in the network; not needed if there is one layer alone.

    Returns:
        The layer, with the very numbers of the file.

    Raises:
        ValueError: the file is odd or holds no such layer, or several and no name was given.
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        found = {key: layer for key, layer in layers_in(file, str(path)).items() if layer.kind == "MHSA"}
        if not found:
            raise ValueError(f"{path}: it holds no attention layer (python -m construct.from_conv makes one)")
        if name is None and len(found) > 1:
            raise ValueError(f"{path}: it holds several layers; give --layer, one of {', '.join(found)}")
        if name is not None and name not in found:
            raise ValueError(f"{path}: it holds no layer {name!r}, but {', '.join(map(repr, found))}")
        layer = found[next(iter(found)) if name is None else name]
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
