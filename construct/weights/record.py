"""The JSON record of a layer's geometry and encoding, which its tensors do not determine."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from construct.encoding.encodings import recorded_encoding
from construct.geometry import ConvGeometry
from construct.weights import has_nonzero

GEOMETRY = "geometry"
"""The metadata key under which the record is stored."""


def record_of(layer: Any) -> dict[str, Any]:
    """Describe a layer as JSON data: ``kind``, the fields of its geometry, its encoding unless it
    is quadratic, a missing bias.
    """
    record = {"kind": "MHSA", **asdict(layer.geometry), **layer.encoding.record()}
    if layer.bias is None:
        record["bias"] = False
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in record.items()
    }


def differences_of(layer: Any, stated: Any, b_out: Any) -> list[str]:
    """What a stored record, None if there is none, and a stored ``b_out`` have that a layer has
    not; zeros fit every layer.
    """
    own = record_of(layer)
    differences = []
    if stated is not None:
        record = stated if isinstance(stated, dict) else {GEOMETRY: stated}
        for key in own | record:
            if key != "bias" and own.get(key) != record.get(key):
                differences.append(f"{key} {record.get(key)!r} and not {own.get(key)!r}")
    if layer.bias is None and has_nonzero(b_out):
        differences.append("a bias, for its b_out is not zero, and without one here")
    return differences


def read_record(record: Any, tensor: Callable[[str], Tensor]) -> dict[str, Any]:
    """The arguments of a layer other than its weights that a record describes; ``tensor`` looks up
    a tensor by name.

    Raises:
        ValueError: not a record as :func:`record_of` makes it; a file may hold anything instead.
        TypeError: likewise.
    """
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in dict(record).items()
    }
    if fields.pop("kind", None) != "MHSA":
        raise ValueError("it is of no attention layer")
    stated = fields.pop("radix", None), fields.pop("encoding", None)
    bias = fields.pop("bias", True)
    if not isinstance(bias, bool):
        raise ValueError(f"its bias is {bias!r}, neither True nor False")
    geometry = ConvGeometry(**fields)
    encoding = recorded_encoding(*stated, geometry, tensor)
    return {"geometry": geometry, "encoding": encoding, "bias": bias}
