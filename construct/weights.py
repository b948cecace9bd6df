"""MHSAWeights: the eight tensors of Eq. 3 and 6 with their shapes; the JSON record of a layer's geometry and encoding; and
the kernel of a layer's heads, read from what they attend and carry, and written back into them.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from construct.encoding.encodings import CLASSICAL, Covariance, Encoding, Parabola, Relative
from construct.geometry import ConvGeometry
from construct.heads import factor, kernel_of_taps, tap_matrices, tap_shifts

POSITIONAL = ("w_key_pos", "v")
"""Stored in float32 or better: bfloat16 would round the shift 257 to 256."""


@dataclass(frozen=True)
class MHSAWeights:
    """The eight tensors of a multi-head self-attention layer; heads first, each with its own contiguous storage.

    >>> import torch, construct
    >>> layer = construct.conv_to_mhsa(torch.nn.Conv2d(2, 4, 3))
    >>> {name: tuple(tensor.shape) for name, tensor in layer.named_parameters()}  # N_h = 9, D_k = D_p = 3, D_h = 2
    {'w_qry': (9, 2, 3), 'w_key': (9, 2, 3), 'w_key_pos': (9, 3, 3), 'u': (9, 3), 'v': (9, 3),
     'w_val': (9, 1, 2, 2), 'w_out': (9, 1, 2, 4), 'b_out': (4,)}

    Attributes:
        w_qry: W_qry, (heads, D_in, D_k).
        w_key: W_key, (heads, D_in, D_k).
        w_key_pos: Ŵ_key, (heads, D_k, D_p).
        u: (heads, D_k).
        v: (heads, D_k).
        w_val: W_val, (heads, groups, D_in/groups, D_h).
        w_out: W_out, (heads, groups, D_h, D_out/groups).
        b_out: (D_out,); zeros without a bias.

    Raises:
        ValueError: the shapes do not fit together.
    """

    w_qry: Tensor
    w_key: Tensor
    w_key_pos: Tensor
    u: Tensor
    v: Tensor
    w_val: Tensor
    w_out: Tensor
    b_out: Tensor

    def __post_init__(self) -> None:
        for name, dims in zip(NAMES, (3, 3, 3, 2, 2, 4, 4, 1), strict=True):
            if getattr(self, name).dim() != dims:
                raise ValueError(f"{name} has {getattr(self, name).dim()} axes, not {dims}")
        heads, groups, d_in, head_dim = self.w_val.shape
        key_dim, pos_dim = self.w_key_pos.shape[1:]
        expected = {
            "w_qry": (heads, groups * d_in, key_dim),
            "w_key": (heads, groups * d_in, key_dim),
            "w_key_pos": (heads, key_dim, pos_dim),
            "u": (heads, key_dim),
            "v": (heads, key_dim),
            "w_out": (heads, groups, head_dim, self.w_out.shape[-1]),
            "b_out": (groups * self.w_out.shape[-1],),
        }
        for name, shape in expected.items():
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(f"{name} is {tuple(getattr(self, name).shape)}, where the others make it {shape}")
        for name in NAMES:
            tensor = getattr(self, name)
            if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes:
                object.__setattr__(self, name, tensor.clone(memory_format=torch.contiguous_format))

    def check_fit(self, geometry: ConvGeometry, encoding: Encoding, bias: bool) -> None:
        """Check that these are weights for a geometry and an encoding, and that ``b_out`` is zero if there is no bias.

        Raises:
            ValueError: they are not.
        """
        _, groups, d_in, _ = self.w_val.shape
        channels = (groups, groups * d_in, len(self.b_out))
        if channels != (geometry.groups, geometry.in_channels, geometry.out_channels):
            raise ValueError(
                f"weights for {groups} groups, {groups * d_in} input and {len(self.b_out)} output channels do not fit {geometry}"
            )
        pos_dim = encoding.pos_dim(geometry.dims)
        if self.w_key_pos.shape[2] != pos_dim:
            raise ValueError(
                f"D_p is {self.w_key_pos.shape[2]}, and this encoding in {geometry.dims} dimensions has {pos_dim}"
            )
        if isinstance(encoding, Parabola) and len(encoding.radix) != geometry.dims:
            raise ValueError(f"the radix {encoding.radix} has {len(encoding.radix)} weights, not {geometry.dims}")
        if not bias and _has_nonzero(self.b_out):
            raise ValueError("b_out is not zero, and there is to be no bias")


NAMES = tuple(field.name for field in fields(MHSAWeights))


# ---- the geometry record ---------------------------------------------------------------------------------------------

GEOMETRY = "geometry"
"""The metadata key under which the record is stored."""


def record_of(layer: Any) -> dict[str, Any]:
    """Describe a layer as JSON data: ``kind``, the fields of its geometry, its encoding unless it is quadratic, a missing bias."""
    fields, encoding = asdict(layer.geometry).items(), layer.encoding
    record = {"kind": "MHSA", **{key: list(value) if isinstance(value, tuple) else value for key, value in fields}}
    if isinstance(encoding, Parabola):
        record["radix"] = list(encoding.radix)
    elif type(encoding) not in CLASSICAL:
        record["encoding"] = encoding.name
    if layer.bias is None:
        record["bias"] = False
    return record


def differences_of(layer: Any, stated: Any, b_out: Any) -> list[str]:
    """What a stored record, None if there is none, and a stored ``b_out`` have that a layer has not; zeros fit every layer."""
    own, differences = record_of(layer), []
    if stated is not None:
        record = stated if isinstance(stated, dict) else {GEOMETRY: stated}
        keys = [key for key in dict.fromkeys([*own, *record]) if key != "bias" and own.get(key) != record.get(key)]
        differences = [f"{key} {record.get(key)!r} and not {own.get(key)!r}" for key in keys]
    if layer.bias is None and _has_nonzero(b_out):
        differences.append("a bias, for its b_out is not zero, and without one here")
    return differences


def _has_nonzero(tensor: Any) -> bool:
    """Whether this is a tensor with values at hand, one of them not zero."""
    return isinstance(tensor, Tensor) and not tensor.is_meta and bool(tensor.any())


def read_record(record: Any, tensor: Callable[[str], Tensor]) -> dict[str, Any]:
    """The arguments of a layer other than its weights that a record describes; ``tensor`` looks up a tensor by name.

    Raises:
        ValueError: not a record as :func:`record_of` makes it; a file may hold anything instead.
        TypeError: likewise.
    """
    fields: dict[str, Any] = dict(record)
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    if fields.pop("kind", None) != "MHSA":
        raise ValueError("it is of no attention layer")
    radix, name, bias = fields.pop("radix", None), fields.pop("encoding", None), fields.pop("bias", True)
    arguments: dict[str, Any] = {"geometry": ConvGeometry(**fields), "bias": bias}
    if not isinstance(bias, bool):
        raise ValueError(f"its bias is {bias!r}, neither True nor False")
    if name is not None:
        arguments["encoding"] = encoding_of(name, arguments["geometry"].dims, tensor)
    if radix is not None:
        if name is not None or not (isinstance(radix, tuple) and all(type(weight) is int for weight in radix)):
            raise ValueError(f"its radix is {radix!r}, beside the encoding {name!r}")
        arguments["radix"] = radix
    return arguments


def encoding_of(name: object, dims: int, offsets: Callable[[str], Any]) -> Encoding:
    """The learned encoding of this name in d dimensions; ``offsets`` looks up a relative encoding's table by name.

    Raises:
        ValueError: no encoding has this name.
    """
    if name == Covariance.name:
        return Covariance()
    if name != Relative.name:
        raise ValueError(f"no encoding {name!r}")
    return Relative(tuple(offsets(f"offsets_{axis}") for axis in range(1, dims + 1)))


# ---- the kernel of a layer's heads --------------------------------------------------------------------------------------


def taps_of_heads(layer: Any) -> list[int]:
    """The tap at which each head looks, read back from ``v`` and ``w_key_pos``.

    Raises:
        ValueError: a head looks at no position of this kernel.
        TypeError: ``torch.fx`` traces, for which tensors are symbols.
    """
    if isinstance(layer.v, torch.fx.Proxy):
        raise TypeError(
            "MHSA: torch.fx cannot trace a network that reads layer.weight (keep a clone of it from before)"
        )
    numbers = {shift: tap for tap, shift in enumerate(tap_shifts(layer.geometry))}
    taps = []
    for head, (alpha, tau) in enumerate(zip(*layer.centres(), strict=True)):
        shift = tuple(tau.tolist())
        if not alpha > 0 or shift not in numbers:
            raise ValueError(f"MHSA: head {head} looks at {shift}, no tap of kernel {layer.geometry.kernel_size}")
        taps.append(numbers[shift])
    return taps


def kernel_of_heads(layer: Any) -> Tensor:
    """The kernel in torch's layout: at each tap Σ W_val^h W_out^h over the heads that look there."""
    (_, groups, d_in, _), d_out = layer.w_val.shape, layer.w_out.shape[3]
    taps = layer.w_val.new_zeros(layer.geometry.taps, groups, d_in, d_out)
    for head, tap in enumerate(taps_of_heads(layer)):
        taps[tap] += layer.w_val[head] @ layer.w_out[head]
    return kernel_of_taps(taps, layer.geometry)


@torch.no_grad()
def write_kernel(layer: Any, kernel: Tensor) -> None:
    """Store a kernel in the heads of a layer, factored as :func:`factor` does.

    Raises:
        ValueError: the heads cannot hold every kernel.
    """
    order, (_, _, d_in, head_dim), d_out = taps_of_heads(layer), layer.w_val.shape, layer.w_out.shape[3]
    stored = {"w_val", "w_out"} <= {*layer._parameters, *layer._buffers}  # else computed from other tensors
    if not stored or sorted(order) != list(range(layer.geometry.taps)) or head_dim < min(d_in, d_out):
        raise ValueError(
            "MHSA: an edited weight needs one head for each tap, D_h at least min(D_in, D_out) and factors without a "
            "parametrization; edit w_val and w_out themselves, or convert the edited convolution"
        )
    w_val, w_out = factor(tap_matrices(kernel, layer.geometry)[order], head_dim)
    layer.w_val.copy_(w_val)
    layer.w_out.copy_(w_out)


class Kernel(Tensor):
    """The kernel of a layer's heads: what is written into it, or into a view of it, is written into the heads.

    All operations run on plain tensors.  Views of a kernel are kernels, numpy arrays of it are read-only, and all else is plain.

    Attributes:
        layer: the layer.
        whole: the kernel as a plain tensor, whose version counts what is written into it or into its views.
        part: this view of it, plain.
    """

    layer: Any
    whole: Tensor
    part: Tensor
    plain = staticmethod(kernel_of_heads)

    @classmethod
    def of(cls, layer: Any) -> "Kernel":
        """The kernel of a layer's heads; raises as :func:`taps_of_heads`."""
        recorded = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(recorded):  # tensors of that mode count no versions
            kernel = kernel_of_heads(layer).clone()  # no view: a write renews the history of views
        return cls.over(layer, kernel, kernel)

    @classmethod
    def over(cls, layer: Any, whole: Tensor, part: Tensor) -> "Kernel":
        """Make the kernel that stands for ``part`` of ``whole``."""
        kernel = part.as_subclass(cls)
        kernel.layer, kernel.whole, kernel.part = layer, whole, part
        return kernel

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run any function of torch on the plain tensors, then write what it has changed into the heads.

        Raises:
            RuntimeError: it was changed in place while gradients are recorded, which torch allows no parameter either.
            ValueError: the heads cannot hold every kernel, or ``.data`` is set to a tensor of another shape, dtype or device.
        """
        kernels = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Kernel)]
        before = [(kernel.whole._version, kernel.whole.grad_fn) for kernel in kernels]
        args, kwargs = tree_map_only(Kernel, lambda kernel: kernel.part, (args, kwargs or {}))
        of_whole = args and args[0] is kernels[0].whole
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            func = Tensor.detach  # the same memory, but ``.data`` would count its own versions
        elif of_whole and func == Tensor.data.__set__:  # type: ignore[attr-defined]
            func = _set_data
        elif of_whole and func in _SET_REQUIRES_GRAD:
            func = kernels[0]._set_requires_grad
        result = func(*args, **kwargs)
        for kernel, (version, history) in zip(kernels, before, strict=True):
            if kernel.whole._version != version:
                if kernel.whole.grad_fn is not history:
                    raise RuntimeError("MHSA: edit weight in place under torch.no_grad(), as any parameter")
                write_kernel(kernel.layer, kernel.whole.detach())
        if isinstance(result, np.ndarray):
            result.flags.writeable = False

        def wrapped(tensor: Tensor) -> Tensor:
            for kernel in kernels:
                if torch._C._has_storage(tensor) and torch._C._is_alias_of(tensor, kernel.whole):  # type: ignore[attr-defined]
                    return cls.over(kernel.layer, kernel.whole, tensor)
            return tensor

        return tree_map_only(Tensor, wrapped, result)

    def _become_parameter(self, value: bool) -> None:
        raise TypeError("MHSA: nn.Parameter(layer.weight.clone()) makes a parameter of a weight")

    _is_param = property(fset=_become_parameter)  # type: ignore[assignment]  # which nn.Parameter sets on a subclass

    def _set_requires_grad(self, part: Tensor, requires_grad: bool = True) -> Tensor:
        self.layer.w_val.requires_grad_(requires_grad)
        self.layer.w_out.requires_grad_(requires_grad)
        return part


_SET_REQUIRES_GRAD = (Tensor.requires_grad_, Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


def _set_data(kernel: Tensor, data: Tensor) -> None:
    if (data.shape, data.dtype, data.device) != (kernel.shape, kernel.dtype, kernel.device):
        raise ValueError(f"MHSA: the data of weight stay {kernel.dtype} {tuple(kernel.shape)} on {kernel.device}")
    kernel.detach().copy_(data)
