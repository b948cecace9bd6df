"""Convolutions as explicit multi-head self-attention (Cordonnier, Loukas, Jaggi, ICLR 2020)."""

import construct.command.startup  # noqa: F401, I001  before torch
import torch

if torch.__version__ < "2.10.dev0":
    raise ImportError(
        f"construct needs torch 2.10 or newer, and this is {torch.__version__} (pip install 'torch>=2.10')"
    )

from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.errors import UnsupportedLayer
from construct.files.loading import load
from construct.files.writing import save
from construct.geometry import ConvGeometry
from construct.network import convert
from construct.stock.layer import from_torch_mha, to_torch_mha
from construct.weights import MHSAWeights

DISTRIBUTION = "conv-as-attention"
"""Tells this package from another one named ``construct``: see :mod:`construct.command.overwritten`."""

__all__ = [
    "MHSA",
    "ConvGeometry",
    "MHSAWeights",
    "UnsupportedLayer",
    "conv_to_mhsa",
    "convert",
    "from_torch_mha",
    "load",
    "save",
    "to_torch_mha",
]
