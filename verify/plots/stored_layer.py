"""An attention layer from a file, which the project's one reader reads without running anything
that it holds.
"""

from construct.attention import MHSA
from construct.files.loading import load
from verify.recheck.strict_input import AnyPath, opened


def layer_in(path: AnyPath, name: str | None = None) -> MHSA:
    """Read a layer.

    Args:
        path: ``model.mhsa.pt``, a network or a state dict, or a safetensors file of this project.
        name: the layer's path in the network; only needed if the file holds several layers.

    Raises:
        ValueError: the file cannot be read, holds no such layer, or holds several and no name was
            given.
        OSError: it cannot be opened.
    """
    opened(path).close()
    layers = load(path, layers=True)
    if name is None and len(layers) > 1:
        raise ValueError(
            f"{path}: it holds several layers; give --layer, one of {', '.join(layers)}"
        )
    if name is not None and name not in layers:
        raise ValueError(f"{path}: it holds no layer {name!r}, but {', '.join(map(repr, layers))}")
    return layers[next(iter(layers)) if name is None else name]
