"""The numbers of one convolution and its attention layer, after their digests, dtypes and shapes
match the certificate.
"""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from verify.recheck.certificate_file import LayerCertificate
from verify.recheck.grids import StatedGeometry, geometry_of
from verify.recheck.stored_layers import BYTES, TENSORS, StoredLayer
from verify.recheck.strict_input import Record, Rejected, Vector

# of at least float32, so not always of the values' type
SCORES = ("w_qry", "w_key", "w_key_pos", "u", "v")
NOT_PLAIN = "what is folded, or of a class of its own, is not rechecked (a state dict with the plain weights is)"


@dataclass(frozen=True)
class LayerPair:
    """The numbers of a convolution and an attention layer in float64, which is exact."""

    stated: LayerCertificate  # what the certificate states about them
    conv: StatedGeometry
    mhsa: StatedGeometry
    radix: list[int] | None  # of the parabola; None for the quadratic encoding
    weight: ndarray  # the kernel in torch's layout
    kernel: ndarray  # W, (taps, groups, D_in/groups, D_out/groups), taps in row-major order
    bias: ndarray  # (D_out,)
    a: dict[str, ndarray]  # the eight tensors of the attention layer
    carrying: ndarray  # (heads,): whether a head's value and output matrices are nonzero
    content: ndarray  # (heads,): whether a head's scores may depend on the content
    assumed: bool  # whether a file states no geometry, so that the certificate's is used
    notes: list[str]  # for the report

    @classmethod
    def read(cls, stated: LayerCertificate, conv: StoredLayer, mhsa: StoredLayer) -> "LayerPair":
        """Read both layers; `Rejected` unless they are byte for byte the certified ones."""
        prefix = f"layer {stated.name!r}: "
        _require_plain(prefix, conv)
        notes = [
            f"the file of the {layer.kind} states no geometry; assumed: what the certificate says"
            for layer in (conv, mhsa)
            if layer.geometry is None
        ]
        weights = _certified(prefix, conv, stated.geometries[0], stated.digests[0])
        a = _certified(prefix, mhsa, stated.geometries[1], stated.digests[1])
        types = {
            t.dtype
            for layer in (conv, mhsa)
            for name, t in layer.tensors.items()
            if name not in SCORES
        }
        if types != {stated.dtype}:
            raise Rejected(f"{prefix}of the types {sorted(types)}, and not {stated.dtype}")
        conv_geometry = geometry_of(stated.geometries[0])
        mhsa_geometry = geometry_of(stated.geometries[1])
        radix = stated.geometries[1].get("radix")
        if (
            conv.kind not in (conv_geometry.kind, "Conv")
            or mhsa.kind != "MHSA"
            or "radix" in stated.geometries[0]
        ):
            belongs = f"where a {conv_geometry.kind} and its attention belong"
            raise Rejected(f"{prefix}a {conv.kind} and a {mhsa.kind} {belongs}")
        expected = _shapes(conv_geometry, mhsa_geometry, radix, a["v"].shape, a["w_val"].shape[-1])
        for name, array in (weights | a).items():
            if array.shape != expected[name] or len(a["v"]) != stated.heads:
                raise Rejected(
                    f"{prefix}{name} has shape {array.shape}, or there are not {stated.heads} heads"
                )
        # all but b_out have a matrix or a vector for each head
        nonzero = {name: a[name].reshape(stated.heads, -1).any(axis=1) for name in TENSORS[:-1]}
        by_key = nonzero["w_qry"] & (nonzero["w_key"] | nonzero["w_key_pos"])
        return cls(
            stated=stated,
            conv=conv_geometry,
            mhsa=mhsa_geometry,
            radix=radix,
            weight=weights["weight"],
            kernel=_taps(weights["weight"], conv_geometry),
            bias=weights.get("bias", np.zeros(conv_geometry.d_out)),
            a=a,
            carrying=np.asarray(nonzero["w_val"] & nonzero["w_out"]),
            content=np.asarray(by_key | (nonzero["u"] & nonzero["w_key"])),
            assumed=bool(notes),
            notes=notes,
        )


def _require_plain(prefix: str, conv: StoredLayer) -> None:
    """Refuse a convolution that is folded or unknown, or in the wrong file."""
    if conv.kind == "unknown":
        raise Rejected(
            f"{prefix}class or tensors {sorted(conv.tensors)} are of no plain convolution: {NOT_PLAIN}"
        )
    if conv.kind == "MHSA":
        raise Rejected(
            f"{prefix}the file of the convolutions has its attention (are the two files exchanged?)"
        )


def _certified(
    prefix: str, layer: StoredLayer, stated: Record, digests: dict[str, str]
) -> dict[str, ndarray]:
    """The numbers of a layer, if digests and geometry match the certificate."""
    if layer.geometry not in (None, stated):
        raise Rejected(
            f"{prefix}the geometry of the {layer.kind} is not the one that was certified"
        )
    if other := {*digests} ^ {*layer.tensors}:
        raise Rejected(
            f"{prefix}only one of certificate and file has {min(other)} of the {layer.kind}"
        )
    arrays = {}
    for name, digest in digests.items():
        if layer.tensors[name].sha256() != digest:
            what = f"{name} of the {layer.kind} is not the tensor that was certified"
            raise Rejected(
                f"{prefix}{what} (of the networks in a checkpoint, the option key chooses one)"
            )
        if layer.tensors[name].dtype not in BYTES:
            raise Rejected(f"{prefix}{name} is of {layer.tensors[name].dtype}")
        arrays[name] = layer.tensors[name].numbers()
        if not np.isfinite(arrays[name]).all():
            raise Rejected(f"{prefix}{name} has numbers that are not finite")
    return arrays


def _shapes(
    g: StatedGeometry,
    mhsa: StatedGeometry,
    radix: list[int] | None,
    v: Vector,
    head_dim: int,
) -> dict[str, Vector]:
    """The shape of every tensor, from the geometries."""
    heads, key_dim = v
    first, second = (g.d_in, g.d_out) if g.transposed else (g.d_out, g.d_in)
    return {
        "weight": (first, second // g.groups, *g.kernel),
        "bias": (g.d_out,),
        "w_qry": (heads, mhsa.d_in, key_dim),
        "w_key": (heads, mhsa.d_in, key_dim),
        "w_key_pos": (heads, key_dim, len(mhsa.kernel) + 1 if radix is None else 2),
        "u": (heads, key_dim),
        "v": (heads, key_dim),
        "w_val": (heads, mhsa.groups, mhsa.d_in // mhsa.groups, head_dim),
        "w_out": (heads, mhsa.groups, head_dim, mhsa.d_out // mhsa.groups),
        "b_out": (mhsa.d_out,),
    }


def _taps(weight: ndarray, g: StatedGeometry) -> ndarray:
    """The matrix of every tap from torch's layout: (D_out, D_in/groups, *K), or transposed
    (D_in, D_out/groups, *K).
    """
    flat = np.moveaxis(weight.reshape(*weight.shape[:2], -1), -1, 0)  # (taps, first, second/groups)
    blocks = flat.reshape(len(flat), g.groups, -1, flat.shape[2])
    return blocks if g.transposed else blocks.swapaxes(2, 3)
