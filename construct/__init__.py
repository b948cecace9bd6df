"""Convolutions as explicit multi-head self-attention (Cordonnier, Loukas, Jaggi, ICLR 2020)."""

import construct.command.interruption  # noqa: I001  for the seconds that the next line takes
import construct.command.requirements  # noqa: F401  checks the version of torch, so it comes before the others
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
"""By this we are known, where another package of our name may lie over ours: see :mod:`construct.command.overwritten`."""

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
