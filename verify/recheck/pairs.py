"""What the checker holds of one layer: the numbers of both sides, once digests, types and shapes are what was certified."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from verify.recheck.arrays import TENSORS, Layer, Rejected, numbers
from verify.recheck.grids import Geometry, geometry_of
from verify.recheck.statements import Claim

CONVOLUTION = ("weight", "bias")
AT_LEAST_FLOAT32 = ("w_qry", "w_key", "w_key_pos", "u", "v")
"""They make up the scores, and may be of another type than the values."""


NOT_PLAIN = "what is folded, or of a class of its own, is not rechecked (a state dict with the plain weights is)"


@dataclass(frozen=True)
class Pair:
    """The numbers of a convolution and an attention layer, in float64, which holds them exactly.

    Attributes:
        claim: what the certificate says of them.
        conv: the geometry of the convolution.
        mhsa: the geometry of the attention layer.
        radix: of the parabola; None for the quadratic encoding.
        kernel: W, (taps, groups, D_in/groups, D_out/groups), taps in row-major order.
        bias: (D_out,).
        a: the eight tensors of the attention layer.
        carrying: (heads,), whether a head carries anything at all.
        loud: (heads,), whether its scores may depend on the content.
        assumed: whether a file states no geometry, so that what the certificate says is taken for it.
        notes: for people.
    """

    claim: Claim
    conv: Geometry
    mhsa: Geometry
    radix: list[int] | None
    kernel: np.ndarray
    bias: np.ndarray
    a: dict[str, np.ndarray]
    carrying: np.ndarray
    loud: np.ndarray
    assumed: bool
    notes: list[str]

    @classmethod
    def read(cls, claim: Claim, conv: Layer, mhsa: Layer) -> "Pair":
        """Read both layers; `Rejected` if they are not those that were certified, byte by byte."""
        told, notes = f"layer {claim.name!r}: ", []
        if conv.kind == "unknown":
            raise Rejected(
                f"{told}its class, or its tensors {sorted(conv.tensors)}, are of no plain convolution: {NOT_PLAIN}"
            )
        for layer in (conv, mhsa):
            if layer.geometry is None:
                notes.append(f"the file of the {layer.kind} states no geometry; assumed: what the certificate says")
        weights = _certified(told, conv, CONVOLUTION, claim.geometries[0], claim.digests[0])
        a = _certified(told, mhsa, TENSORS, claim.geometries[1], claim.digests[1])
        types = {t.dtype for layer in (conv, mhsa) for name, t in layer.tensors.items() if name not in AT_LEAST_FLOAT32}
        if types != {claim.dtype} or any(mhsa.tensors[name].shape != a[name].shape for name in a):
            raise Rejected(f"{told}of the types {sorted(types)}, and not {claim.dtype}")
        g, ours = geometry_of(claim.geometries[0]), geometry_of(claim.geometries[1])
        radix = claim.geometries[1].get("radix")
        kind = f"Conv{'Transpose' if g.transposed else ''}{len(g.kernel)}d"
        if conv.kind not in (kind, "Conv") or mhsa.kind != "MHSA" or "radix" in claim.geometries[0]:
            raise Rejected(f"{told}a {conv.kind} and a {mhsa.kind} where a {kind} and its attention belong")
        if g.mode != "zeros" and conv.pads not in (None, g.torch_pads()):
            raise Rejected(f"{told}torch would pad by {conv.pads}, which contradicts the geometry")
        expected = _shapes(g, ours, radix, a["v"].shape, a["w_val"].shape[-1])
        for name, array in (weights | a).items():
            if array.shape != expected[name] or len(a["v"]) != claim.heads:
                raise Rejected(f"{told}{name} has shape {array.shape}, or there are not {claim.heads} heads")
        anything = {name: a[name].reshape(claim.heads, -1).any(axis=1) for name in TENSORS if name != "b_out"}
        content, place = anything["w_key"], anything["w_key_pos"]
        return cls(
            claim=claim,
            conv=g,
            mhsa=ours,
            radix=radix,
            kernel=_taps(weights["weight"], g),
            bias=weights.get("bias", np.zeros(g.d_out)),
            a=a,
            carrying=np.asarray(anything["w_val"] & anything["w_out"]),
            loud=np.asarray((anything["w_qry"] & (content | place)) | (anything["u"] & content)),
            assumed=conv.geometry is None or mhsa.geometry is None,
            notes=notes,
        )


def _certified(
    told: str, layer: Layer, names: tuple[str, ...], stated: dict[str, Any], digest: str
) -> dict[str, np.ndarray]:
    """The numbers of a layer, if their digest and its geometry are what the certificate says."""
    held = {name: layer.tensors[name] for name in names if name in layer.tensors}
    head = {"geometry": stated, "tensors": [[name, tensor.dtype, [*tensor.shape]] for name, tensor in held.items()]}
    hashed = hashlib.sha256(json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\0")
    arrays = {}
    for name, tensor in held.items():
        bits = np.ascontiguousarray(tensor.read())
        hashed.update(bits.data)
        arrays[name] = numbers(bits, tensor.dtype)
        if not np.isfinite(arrays[name]).all():
            raise Rejected(f"{told}{name} has numbers that are not finite")
    if layer.geometry not in (None, stated):
        raise Rejected(f"{told}the geometry of the {layer.kind} is not the one that was certified")
    if hashed.hexdigest() != digest or len(held) != len(layer.tensors):
        raise Rejected(f"{told}the numbers of the {layer.kind} are not those that were certified")
    return arrays


def _shapes(
    g: Geometry, ours: Geometry, radix: list[int] | None, v: tuple[int, ...], head_dim: int
) -> dict[str, tuple[int, ...]]:
    """What shape the geometries give to each tensor."""
    heads, key_dim = v
    first, second = (g.d_in, g.d_out) if g.transposed else (g.d_out, g.d_in)
    return {
        "weight": (first, second // g.groups, *g.kernel),
        "bias": (g.d_out,),
        "w_qry": (heads, ours.d_in, key_dim),
        "w_key": (heads, ours.d_in, key_dim),
        "w_key_pos": (heads, key_dim, len(ours.kernel) + 1 if radix is None else 2),
        "u": (heads, key_dim),
        "v": (heads, key_dim),
        "w_val": (heads, ours.groups, ours.d_in // ours.groups, head_dim),
        "w_out": (heads, ours.groups, head_dim, ours.d_out // ours.groups),
        "b_out": (ours.d_out,),
    }


def _taps(weight: np.ndarray, g: Geometry) -> np.ndarray:
    """The matrix of every tap from torch's layout: (D_out, D_in/groups, *K), or transposed (D_in, D_out/groups, *K)."""
    flat = np.moveaxis(weight.reshape(*weight.shape[:2], -1), -1, 0)  # (taps, first, second/groups)
    blocks = flat.reshape(len(flat), g.groups, -1, flat.shape[2])
    return blocks if g.transposed else blocks.swapaxes(2, 3)
