"""The kernel of a layer's heads, read from what they attend and carry, and written back into them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from construct.heads import factor, kernel_of_taps, tap_matrices, tap_shifts


def taps_of_heads(layer: Any) -> list[int]:
    """The tap at which each head looks, read back from ``v`` and ``w_key_pos``.

    Raises:
        ValueError: a head looks at no position of this kernel, or attends to content instead.
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
            what = f"looks at {shift}, no tap of kernel {layer.geometry.kernel_size}"
            if layer.content_heads()[head]:
                what = "attends to content, so no kernel is what the heads do"
            raise ValueError(f"MHSA: head {head} {what}")
        taps.append(numbers[shift])
    return taps


def kernel_of_heads(layer: Any) -> Tensor:
    """The kernel in torch's layout: at each tap Σ W_val^h W_out^h over the heads that look there."""
    _, groups, d_in, _ = layer.w_val.shape
    d_out = layer.w_out.shape[3]
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
    order = taps_of_heads(layer)
    _, _, d_in, head_dim = layer.w_val.shape
    d_out = layer.w_out.shape[3]
    # else computed from other tensors
    stored = {"w_val", "w_out"} <= {*layer._parameters, *layer._buffers}
    if (
        not stored
        or sorted(order) != list(range(layer.geometry.taps))
        or head_dim < min(d_in, d_out)
    ):
        raise ValueError(
            "MHSA: an edited weight needs one head for each tap, D_h at least min(D_in, D_out) and factors without a "
            "parametrization; edit w_val and w_out themselves, or convert the edited convolution"
        )
    w_val, w_out = factor(tap_matrices(kernel, layer.geometry)[order], head_dim)
    layer.w_val.copy_(w_val)
    layer.w_out.copy_(w_out)


class Kernel(Tensor):
    """The kernel of a layer's heads: what is written into it, or into a view of it, is written into
    the heads.

    All operations run on plain tensors.  Views of a kernel are kernels, numpy arrays of it are
    read-only, and all else is plain.

    Attributes:
        layer: the layer.
        whole: the kernel as a plain tensor, whose version counts what is written into it or into
            its views.
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
        # tensors of that mode count no versions
        with torch.inference_mode(False), torch.set_grad_enabled(recorded):
            kernel = kernel_of_heads(layer).clone()  # no view: a write renews the history of views
        return cls.over(layer, kernel, kernel)

    @classmethod
    def over(cls, layer: Any, whole: Tensor, part: Tensor) -> "Kernel":
        """Make the kernel that stands for ``part`` of ``whole``."""
        kernel = part.as_subclass(cls)
        kernel.layer = layer
        kernel.whole = whole
        kernel.part = part
        return kernel

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run any function of torch on the plain tensors, then write what it has changed into the
        heads.

        Raises:
            RuntimeError: it was changed in place while gradients are recorded, which torch allows
                no parameter either.
            ValueError: the heads cannot hold every kernel, or ``.data`` is set to a tensor of
                another shape, dtype or device.
        """
        kernels = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Kernel)]
        before = [(kernel.whole._version, kernel.whole.grad_fn) for kernel in kernels]
        args, kwargs = tree_map_only(Kernel, lambda kernel: kernel.part, (args, kwargs or {}))
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            func = Tensor.detach  # the same memory, but ``.data`` would count its own versions
        elif args and args[0] is kernels[0].whole:
            func = kernels[0]._setter(func)
        result = func(*args, **kwargs)
        for kernel, (version, history) in zip(kernels, before, strict=True):
            if kernel.whole._version != version:
                if kernel.whole.grad_fn is not history:
                    raise RuntimeError(
                        "MHSA: edit weight in place under torch.no_grad(), as any parameter"
                    )
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

    def _setter(self, func: Any) -> Any:
        """What sets an attribute of the whole kernel in place of torch's function; the function
        itself if that sets none.
        """
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]
            return _set_data
        return self._set_requires_grad if func in _SET_REQUIRES_GRAD else func

    def _set_requires_grad(self, part: Tensor, requires_grad: bool = True) -> Tensor:
        self.layer.w_val.requires_grad_(requires_grad)
        self.layer.w_out.requires_grad_(requires_grad)
        return part


_SET_REQUIRES_GRAD = (Tensor.requires_grad_, Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


def _set_data(kernel: Tensor, data: Tensor) -> None:
    if (data.shape, data.dtype, data.device) != (kernel.shape, kernel.dtype, kernel.device):
        raise ValueError(
            f"MHSA: the data of weight stay {kernel.dtype} {tuple(kernel.shape)} on {kernel.device}"
        )
    kernel.detach().copy_(data)
