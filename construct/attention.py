"""Multi-head self-attention with relative positional encoding (Eq. 3 and 6 of the talk), as a layer
called like a convolution.

Per head, for a query token q and a key token k at δ = k − q,

    A_{q,k} = X_q W_qry W_keyᵀ X_kᵀ  +  X_q W_qry Ŵ_key r_δ  +  uᵀ W_keyᵀ X_kᵀ  +  vᵀ Ŵ_key r_δ          (Eq. 6)
    P = softmax of A over the keys,      MHSA(X) = b_out + Σ_h P^h X W_val^h W_out^h                      (Eq. 3)

W_qry and W_key are (D_in, D_k) matrices, and Ŵ_key r_δ ∈ R^{D_k}.

Only ``v`` and ``w_key_pos`` say where a head looks.  The geometry defines the padded token grid and
which tokens are queries; it never says where a head looks.

Arithmetic: positions and scores in float64; values and products in the layer's type, but never
below float32; the output is rounded once to the layer's type.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from operator import index
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

import construct.execution as evaluation
import construct.tokens as tokens
from construct.encoding.encoding import Encoding, Quadratic
from construct.encoding.scores import Scores
from construct.execution import NAMES as EXECUTION_NAMES
from construct.execution import reads
from construct.execution.dense import working_dtype
from construct.execution.transforms import nonzero_heads, plain
from construct.geometry import ConvGeometry, HasGeometry
from construct.tokens import TokenGrid
from construct.weights import NAMES, POSITIONAL, MHSAWeights

if TYPE_CHECKING:
    from construct.execution.blocks import smaller_blocks
    from construct.execution.call import EXECUTIONS


class MHSA(HasGeometry, nn.Module):
    """The full attention layer of the paper, in any dimension, called like the convolution that it
    can replace.

    >>> import torch, construct
    >>> conv = torch.nn.Conv2d(3, 8, kernel_size=3, padding=1)
    >>> layer = construct.conv_to_mhsa(conv)
    >>> layer.centres()[1][:2]  # where the first heads look
    tensor([[-1., -1.],
            [-1.,  0.]], dtype=torch.float64)
    >>> torch.equal(layer.weight, conv.weight)  # the kernel, read back from the heads
    True
    >>> layer.attention_probabilities(torch.zeros(1, 3, 16, 16)).shape  # 9 heads, 16² queries, 18² padded tokens
    torch.Size([1, 9, 256, 324])
    >>> print(layer.explain((1, 3, 16, 16)))  # what each execution would take
    dense       2.3e+06 multiplications ... MiB  the paper's equations as they stand...
    auto        5.5e+04 multiplications ... MiB  ...; heads here: 9 as shifts

    Symbols: D_in, D_out ``in_channels``, ``out_channels``; N_h ``heads``; D_h ``head_dim``; D_k
    ``key_dim``; D_p ``pos_dim``; the eight tensors are those of
    :class:`~construct.weights.MHSAWeights`, all in the state dict.

    ``w_val``, ``w_out`` and ``b_out`` hold what a convolution trains.  The attention's own
    parameters (``w_qry``, ``w_key``, ``w_key_pos``, ``u``, ``v``) start frozen: at full sharpness
    their gradients are exactly zero, and weight decay would soften the heads.
    ``layer.w_qry.requires_grad_()`` enables content attention.

    Args:
        geometry: defines the padded token grid and the queries.
        weights: every parameter.
        radix: None for the quadratic encoding (D_p = d + 1); or the parabola's mixed radix
            (D_p = 2), one weight per axis.
        execution: a key of ``EXECUTIONS``; assign to the attribute of that name to change it.
        encoding: the encoding r_δ, instead of a radix; see :mod:`construct.encoding.encodings`.
            The tables of a relative encoding become the layer's parameters ``offsets_1``, …,
            ``offsets_d``.  An encoding of a class of your own is kept as ``own_encoding``: its
            attention does not factorise, and no certificate covers it.
        bias: without a bias, ``b_out`` is a buffer of zeros, which no optimizer changes, and
            ``bias`` is None.

    Raises:
        ValueError: weights, encoding, bias and geometry do not fit together, or the execution is
            unknown.
        TypeError: the encoding is not an :class:`~construct.encoding.encoding.Encoding`.
    """

    _encoding: str | None = None
    """The encoding's name, or None if it is one of the theorem's: files of those layers do not
    record it.
    """
    own_encoding: Any
    """The encoding itself, if its class is not one of ours."""

    w_qry: Tensor
    w_key: Tensor
    w_key_pos: Tensor
    u: Tensor
    v: Tensor
    w_val: Tensor
    w_out: Tensor
    b_out: Tensor

    def __init__(
        self,
        geometry: ConvGeometry,
        weights: MHSAWeights,
        execution: str = "auto",
        radix: tuple[int, ...] | None = None,
        encoding: Encoding | None = None,
        bias: bool = True,
    ):
        super().__init__()
        if radix is not None:
            if encoding is not None:
                raise ValueError("give a radix or an encoding; the radix is that of the parabola")
            from construct.encoding.encodings import Parabola

            encoding = Parabola(radix)
        elif encoding is None:
            encoding = Quadratic()
        elif not isinstance(encoding, Encoding):
            own = type(encoding).__name__
            raise TypeError(
                f"MHSA: encoding must be a construct.encoding.encodings.Encoding, not a {own}; subclass it"
            )
        weights.check_fit(geometry, encoding, bias)
        self.geometry = geometry
        self.heads = len(weights.v)
        for name in NAMES:
            trained = name in ("w_val", "w_out", "b_out")
            self.register_parameter(
                name, nn.Parameter(getattr(weights, name).resolve_neg(), requires_grad=trained)
            )
        if not bias:
            self.register_buffer("b_out", self._parameters.pop("b_out").detach())  # type: ignore[union-attr]
        self.radix: tuple[int, ...] | None = None
        for name, value in encoding.attributes().items():
            setattr(self, name, value)
        self.execution = execution

    @property
    def execution(self) -> str:
        """The name of the execution in use; assign to change it."""
        return self._execution

    @execution.setter
    def execution(self, name: str) -> None:
        if name not in EXECUTION_NAMES:
            raise ValueError(f"no execution {name!r}; there are {', '.join(EXECUTION_NAMES)}")
        self._execution = name

    @property
    def bias(self) -> Tensor | None:
        """``b_out``, or None without a bias, where ``b_out`` is a buffer;
        ``layer.b_out = nn.Parameter(…)`` gives it one.
        """
        return None if "b_out" in self._buffers else self.b_out

    @property
    def weight(self) -> Tensor:
        """The kernel in torch's layout, assembled from the heads' matrices and the shifts that they
        actually attend.

        What is written into it, or into its ``.data`` or a view, is written into the heads.

        Raises:
            ValueError: a head looks at no position of this kernel, so no such kernel exists.
        """
        from construct.weights.kernel import Kernel

        if torch.compiler.is_compiling() or not plain():
            return Kernel.plain(self)
        return Kernel.of(self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set like any module, but refuse another ``weight`` or ``bias``, which are read from other
        tensors.

        Raises:
            AttributeError: the message says what to set instead.
        """
        if name not in ("weight", "bias"):
            super().__setattr__(name, value)
        elif value is None or (
            value is not self.bias and getattr(value, "layer", None) is not self
        ):
            # ``layer.weight *= 2`` sets what it has just changed in place.
            what = "weight is assembled from the heads and bias is b_out"
            raise AttributeError(
                f"MHSA: {what}: layer.weight.data.copy_(…) and layer.b_out = nn.Parameter(…) set them"
            )

    def position_vector(self) -> Tensor:
        """c_h = Ŵ_keyᵀ v_h, the vector whose product with r_δ is the position score; float64
        (heads, D_p).
        """
        return torch.matmul(self.v.double().unsqueeze(1), self.w_key_pos.double()).squeeze(1)

    @property
    def encoding(self) -> Encoding:
        """The encoding r_δ; a learned relative one has the current tables."""
        if self._encoding is None and self.radix is None:
            return Quadratic()
        from construct.encoding.encodings import encoding_of

        return encoding_of(self)

    @property
    def offsets(self) -> tuple[str, ...]:
        """The parameter names of a learned relative encoding's tables, one per axis; empty for
        other encodings.
        """
        if self._encoding != "relative":
            return ()
        return tuple(f"offsets_{axis}" for axis in range(1, self.geometry.dims + 1))

    def centres(self) -> tuple[Tensor, Tensor]:
        """Sharpness and shift of every head, read back from c = Ŵ_keyᵀ v: α (heads,) and τ
        (heads, d), float64.

        Raises:
            ValueError: the encoding is a learned relative one, which has no centres.
        """
        return self.encoding.centres(self.position_vector().detach())

    # ---- Eq. 6 and its softmax -------------------------------------------------------------------

    def content_heads(self) -> tuple[bool, ...]:
        """For each head, whether any of the first three terms of Eq. 6 can be non-zero, or is being
        learned.
        """
        rows = [reads.frozen_rows(self, name) for name in ("w_qry", "w_key", "u")]
        learned = any([*map(reads.is_learned, rows)])
        if learned and (torch.is_grad_enabled() or tokens.host_waits(rows[0].device)):
            return (True,) * self.heads
        kept = len(rows[0])
        added = (True,) * (self.heads - len(rows[0]))
        q, u = (reads.once(self, name, nonzero_heads)[:kept] for name in ("w_qry", "u"))
        if not q.any() and not u.any():
            return (False,) * kept + added
        k, p = (reads.once(self, name, nonzero_heads)[:kept] for name in ("w_key", "w_key_pos"))
        return *(q & (k | p) | u & k).tolist(), *added

    def has_content(self) -> bool:
        """Whether any head has content."""
        return any(self.content_heads())

    def attention_probabilities(self, x: Tensor) -> Tensor:
        """The attention P of every head over all tokens of the padded grid, as in ``dense``; for
        inspection.

        Args:
            x: an input of the layer, ``(B, D_in, *size)`` or ``(D_in, *size)``.

        Returns:
            float64 (B, heads, queries, T), rows summing to 1; B is 1 while attention does not
            depend on content.
        """
        from construct.execution.call import has_batch_axis

        x = x if has_batch_axis(self.geometry, self.w_val, x) else x[None]
        grid = TokenGrid.of(self.geometry, tuple(x.shape[2:]))
        return torch.softmax(
            Scores(self, grid.gather(x).to(working_dtype(x.dtype)), grid)(), dim=-1
        )

    def explain(self, shape: Sequence[int]) -> str:
        """Estimate what each execution costs for an input of shape ``(B, D_in, *n)``, without
        running any; ``auto``, which is ``axial``, comes last.

        Returns:
            One line per execution, with multiplications, memory beyond the input, and a
            description; at last, how many heads ``auto`` evaluates in which way.

        Raises:
            ValueError: no input of this layer has this shape.
        """
        from construct.execution.call import explained

        return explained(self, shape[0], self._grid_of(shape))

    def multiplications(self, shape: Sequence[int], execution: str) -> int:
        """The approximate number of multiplications of an execution for an input of shape
        ``(B, D_in, *n)``.

        Raises:
            ValueError: the execution is unknown, or no input of this layer has this shape.
        """
        from construct.execution.call import EXECUTIONS

        if execution not in EXECUTIONS:
            raise ValueError(f"no execution {execution!r}; there are {', '.join(EXECUTIONS)}")
        return EXECUTIONS[execution].cost(self, shape[0], self._grid_of(shape))

    def _grid_of(self, shape: Sequence[int]) -> TokenGrid:
        if len(shape) != self.geometry.dims + 2:
            raise ValueError(
                f"MHSA: expected a shape (B, D_in, {self.geometry.dims} sizes), got {tuple(shape)}"
            )
        return TokenGrid.of(self.geometry, tuple(map(index, shape[2:])))

    # ---- the call --------------------------------------------------------------------------------

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Apply the layer; it is called like the convolution that it replaces.

        Args:
            input: ``(B, D_in, *size)``, or ``(D_in, *size)`` unbatched, in the layer's dtype; any
                spatial size that fits.
            output_size: only for a transposed layer: the desired spatial size, as in torch.

        Returns:
            ``(B, D_out, *output)`` or ``(D_out, *output)``.

        Raises:
            RuntimeError: rank, channels, dtype or size do not fit, where torch's convolution raises
                too.
            TypeError: the input is not a tensor, or ``output_size`` is given to a layer that is not
                transposed.
            ValueError: ``output_size`` cannot be reached.
            NotEnoughMemory: the chosen execution needs more memory than is free.
        """
        return evaluation.call.call(self, input, output_size)

    def frozen_now(self) -> Any:
        """Which heads are shifts now, where these look, and whether our operators serve; None if
        they cannot be frozen.

        ``torch.compile`` calls this while it traces, and treats the result as a constant.
        """
        from construct.execution.traced import frozen_now

        return frozen_now(self)

    # What torch.compiler.assume_constant_result does; calling that here would import the whole
    # compiler.  It is a method because torch 2.11 accepts no module as an argument of a constant
    # function.
    frozen_now._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MHSA":
        """Move or cast like any module, but keep positions in float32 or better, and storage
        contiguous.
        """
        # Match any part of the name: a parametrized v is computed from parametrizations.v.original0
        # and others.
        names = {*POSITIONAL, *self.offsets}
        kept = [
            part for name, part in self.named_parameters() if names.intersection(name.split("."))
        ]
        positional = {id(t) for part in kept for t in (part, part.grad)}

        def careful(tensor: Tensor) -> Tensor:
            # Flatten: torch applies memory formats to every 4-D or 5-D tensor, but the heads'
            # matrices are not images.
            plain = (
                type(tensor) in (Tensor, nn.Parameter)
                and tensor.dim() == 4
                and tensor.is_contiguous()
            )
            flat = tensor.flatten() if plain else tensor
            out = fn(flat)
            out = tensor if out is flat else out.view(tensor.shape)
            if out.is_complex():
                raise TypeError(
                    "MHSA: complex numbers are not covered (float16, bfloat16, float32 and float64 are)"
                )
            if id(tensor) in positional and out.dtype in (torch.float16, torch.bfloat16):
                out = tensor.to(device=out.device)
            return out.contiguous()

        return super()._apply(careful, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save like any module, and store the geometry, which the tensors do not determine, in the
        state dict's metadata.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        from construct.weights.record import GEOMETRY, record_of

        # absent from a dict that the caller passed
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            metadata.setdefault(prefix[:-1], {})[GEOMETRY] = record_of(self)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        """Load like any module; report an error if the state dict records another geometry, or has
        a bias that the layer lacks.
        """
        from construct.weights.record import GEOMETRY, differences_of

        differences = differences_of(
            self, local_metadata.get(GEOMETRY), state_dict.get(f"{prefix}b_out")
        )
        if differences:
            what = f"it was saved from attention with {', '.join(differences)}"
            rest[-1].append(f"{prefix[:-1] or 'the layer'}: {what}")
        else:
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)

    def extra_repr(self) -> str:
        """The geometry as torch prints it, and the heads, head size and execution."""
        as_in_torch: Any = SimpleNamespace(**vars(self.geometry), bias=self.bias)
        parts = [
            _ConvNd.extra_repr(as_in_torch),
            f"heads={self.heads}",
            f"head_dim={self.w_val.shape[3]}",
            f"execution={self.execution!r}",
        ]
        if self.transposed:
            parts.append("transposed=True")
        if self._encoding is not None:
            parts.append(f"encoding={self._encoding!r}")
        return ", ".join(parts)


def __getattr__(name: str) -> Any:
    """How the layer is evaluated is loaded on first use."""
    home = {"EXECUTIONS": "call", "smaller_blocks": "blocks"}.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"construct.execution.{home}"), name)


__all__ = ["EXECUTIONS", "MHSA", "POSITIONAL", "ConvGeometry", "MHSAWeights", "smaller_blocks"]
