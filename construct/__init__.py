"""Convolutions as explicit multi-head self-attention (Cordonnier, Loukas, Jaggi, ICLR 2020)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from construct.command.startup import DISTRIBUTION, STARTING, require_torch  # noqa: F401  the name tells ours from another

if TYPE_CHECKING:
    from construct.attention import MHSA
    from construct.builder import conv_to_mhsa
    from construct.errors import UnsupportedLayer
    from construct.files.loading import load
    from construct.files.writing import save
    from construct.geometry import ConvGeometry
    from construct.network import convert
    from construct.stock.layer import from_torch_mha, to_torch_mha
    from construct.weights import MHSAWeights

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

_HOMES = (
    "attention",
    "builder",
    "errors",
    "files.loading",
    "files.writing",
    "geometry",
    "network",
    "stock.layer",
    "weights",
)
"""The modules that define the public names."""


def _load() -> None:
    require_torch()
    for home in _HOMES:
        module = import_module(f"construct.{home}")
        globals().update({name: value for name, value in vars(module).items() if name in __all__})


def __getattr__(name: str) -> Any:
    """Import the public names on first use, where the command that starts has not yet."""
    if STARTING and not name.startswith("_"):
        _load()
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'construct' has no attribute {name!r}")


if not STARTING:
    _load()
