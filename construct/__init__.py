"""Convolutions as explicit multi-head self-attention (Cordonnier, Loukas, Jaggi, ICLR 2020).

Importing it imports no torch: public names load their modules on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from construct.command.startup import DISTRIBUTION, require_torch  # noqa: F401  the name tells ours from another

if TYPE_CHECKING:
    from construct.attention import MHSA
    from construct.builder import conv_to_mhsa
    from construct.errors import UnsupportedLayer
    from construct.files.loading import load
    from construct.files.writing import save
    from construct.geometry import ConvGeometry
    from construct.heads.mixed import mixed_heads
    from construct.modules.added_heads import learn
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
    "learn",
    "load",
    "mixed_heads",
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
    "heads.mixed",
    "modules.added_heads",
    "network",
    "stock.layer",
    "weights",
)
"""The modules that define the public names."""


def __getattr__(name: str) -> Any:
    """Import the public names, and the modules that define them, on first use."""
    if not name.startswith("_"):
        require_torch()
        for home in _HOMES:
            module = import_module(f"construct.{home}")
            globals().update(
                {public: value for public, value in vars(module).items() if public in __all__}
            )
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'construct' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
