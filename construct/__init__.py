"""Convolutions as explicit multi-head self-attention (Cordonnier, Loukas, Jaggi, ICLR 2020)."""

import construct.command.startup  # noqa: F401, I001  before anything else that imports torch
from construct.attention import MHSA
from construct.builder import conv_to_mhsa
from construct.errors import UnsupportedLayer
from construct.geometry import ConvGeometry
from construct.files.loading import load
from construct.network import convert
from construct.stock.layer import from_torch_mha, to_torch_mha
from construct.weights import MHSAWeights
from construct.files.writing import save

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
