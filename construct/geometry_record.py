"""The geometry record: what has to be known of an attention layer beside its tensors, as plain data in JSON's types.

A state dict carries it in the metadata that torch keeps for every module, a safetensors file in its own metadata.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from construct.encoding.encodings import CLASSICAL, Covariance, Encoding, Parabola, Quadratic, Relative
from construct.geometry import ConvGeometry

GEOMETRY = "geometry"
"""The key of the metadata under which the record stands."""


def record_of(geometry: ConvGeometry, encoding: Encoding) -> dict[str, Any]:
    """The record of a layer: ``kind``, the fields of its geometry, and its encoding where that is not the quadratic one."""
    fields = asdict(geometry).items()
    record = {"kind": "MHSA", **{key: list(value) if isinstance(value, tuple) else value for key, value in fields}}
    if isinstance(encoding, Parabola):
        record["radix"] = list(encoding.radix)
    elif encoding.name not in CLASSICAL:
        record["encoding"] = encoding.name
    return record


def read_record(record: Any, tensor: Callable[[str], Tensor]) -> tuple[ConvGeometry, Encoding]:
    """Geometry and encoding of the layer that a record describes.

    Args:
        record: from :func:`record_of`, or from a file that may hold anything in its place.
        tensor: gives a tensor of the layer by its name.

    Raises:
        ValueError: it is no such record.
        TypeError: the same.
    """
    fields: dict[str, Any] = dict(record)
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    if fields.pop("kind", None) != "MHSA":
        raise ValueError("it is of no attention layer")
    radix, name = fields.pop("radix", None), fields.pop("encoding", None)
    geometry = ConvGeometry(**fields)
    if radix is None:
        return geometry, encoding_of(name, geometry.dims, tensor) or Quadratic()
    if name is not None or not (isinstance(radix, tuple) and all(type(weight) is int for weight in radix)):
        raise ValueError(f"its radix is {radix!r}, beside the encoding {name!r}")
    return geometry, Parabola(radix)


def encoding_of(name: object, dims: int, offsets: Callable[[str], Any]) -> Encoding | None:
    """The encoding that a layer states beside its radix; None for none.

    Args:
        name: as stated.
        dims: d.
        offsets: gives the table of this name.

    Raises:
        ValueError: there is no such encoding.
    """
    if name is None:
        return None
    if name == Covariance.name:
        return Covariance()
    if name != Relative.name:
        raise ValueError(f"no encoding {name!r}")
    return Relative(tuple(offsets(f"offsets_{axis}") for axis in range(1, dims + 1)))
