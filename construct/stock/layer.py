"""``construct.to_torch_mha`` and ``from_torch_mha``: an MHSA layer as one stock
``nn.MultiheadAttention``, and back.

:mod:`construct.stock.dot_products` has the scores and the limits on the grid.  The rows of head h's
projections, with head size D and β = √D·α:

    q: (β(−1, 2(p + τ_h)), 0 …)      k: (‖p‖², p, 0 …)      v: X W_val^h, all groups, 0 …      out: W_out^h, all groups

and with a null token one more column, β(½ − ‖p + τ_h‖²) of q and 1 of k.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad

from construct.attention import MHSA
from construct.builder import kernel_to_mhsa
from construct.encoding.encodings import CLASSICAL, shift_of_number, shifts_are_distinct
from construct.encoding.sharpness import ALPHA
from construct.errors import refuse, require
from construct.execution.call import geometry_for, has_batch_axis
from construct.execution.shifts.operator import is_recorded
from construct.execution.traced import tensors_of
from construct.execution.transforms import transformed
from construct.geometry import ConvGeometry
from construct.modules.patches import PatchAttention, Patching
from construct.stock.dot_products import HeadCentre, head_size, next_power, position_columns
from construct.stock.layout import NoStockForm, TokenLayout, padded_grid, stays_on
from construct.stock.projections import has_hooks, read_kernel


class StockAttention(nn.Module):
    """One ``nn.MultiheadAttention``, called with an image like a convolution; made by
    :func:`construct.to_torch_mha`.

    A token is (content, p_1, …, p_d, ‖p‖², [1,] 0, …, 0), ``attention.embed_dim`` wide; the 1 is
    present if the projections have no biases.  The state dict holds only the tensors of
    ``attention``.  If it adds a null token (``add_zero_attn``), there are no padding tokens.

    Attributes:
        attention: the nn.MultiheadAttention, ``batch_first``; queries, keys and values are all rows
            of :meth:`tokens`.
        geometry: the geometry of the convolution.
        grid: the spatial size of the input before padding.
        positions: (T, d + 1 or d + 2), the position channels.
        sources: int64 (T,), the source of each token: 0 for zeros, i + 1 for input position i.
        query_tokens: int64 (outputs,), the query token of each output.
        patching: None; or how an image is cut into patches, if these are the tokens: then geometry and
            grid count patches.
    """

    patching: Patching | None = None
    positions: Tensor
    sources: Tensor
    query_tokens: Tensor

    def __init__(
        self,
        geometry: ConvGeometry,
        grid: tuple[int, ...],
        attention: nn.MultiheadAttention,
        centres: tuple[HeadCentre, ...],
    ):
        super().__init__()
        self.geometry = geometry
        self.grid = grid
        self.attention = attention
        self._centres = centres  # checked again on casts
        for name, tensor in _layout(self).buffers().items():
            self.register_buffer(name, tensor.to(attention.out_proj.weight.device), False)

    def tokens(self, x: Tensor) -> Tensor:
        """The input tokens of ``attention``: ``(B, D_in, *grid)`` → (B, T, embed_dim)."""
        content = pad(x.flatten(2), (1, 0))[:, :, self.sources].transpose(1, 2)
        tokens = torch.cat([content, self.positions.expand(len(x), -1, -1)], dim=2)
        return pad(tokens, (0, self.attention.embed_dim - tokens.shape[2]))

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Apply the attention like the convolution.

        Args:
            input: ``(B, D_in, *grid)``, or ``(D_in, *grid)`` unbatched, in the module's dtype.
            output_size: only for a transposed layer, and only its one output size.

        Returns:
            ``(B, D_out, *output)`` or ``(D_out, *output)``, contiguous.

        Raises:
            TypeError: ``output_size`` is given and the layer is not transposed.
            ValueError: ``output_size`` is another size.
            RuntimeError: rank, channels, spatial size, dtype or device do not fit.
            NotEnoughMemory: the tokens and their projections would not fit.
        """
        if self.patching is None:
            return self._attended(input, output_size)
        return self.patching.applied(self._attended, input)

    def _attended(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        kind = x.device.type
        if not x.is_meta and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
            with torch.autocast(kind, enabled=False):  # half precision cannot hold the coordinates
                y = self._attended(x.to(self.positions.dtype), output_size)
            return y.to(torch.get_autocast_dtype(kind))
        if not self._check_input(x, output_size):
            return self._attended(x[None])[0]
        if torch.compiler.is_dynamo_compiling() or x.is_neg():
            x = x.resolve_neg()  # as MHSA does
        learning = is_recorded(x, *self.parameters()) or (
            not torch.compiler.is_compiling() and transformed()
        )
        self._require_memory(x, learning)
        g = self.geometry
        shape = g.output_size(self.grid)
        if len(x) == 0:  # nn.MultiheadAttention cannot reshape an empty batch
            return x.new_zeros(0, g.out_channels, *shape)
        tokens = self.tokens(x)
        # In the backward pass, fused attention recomputes P as exp of a difference of rounded
        # scores, no longer 0 and 1.  It has no forward-mode derivatives.
        with sdpa_kernel(SDPBackend.MATH) if learning else nullcontext():
            y, _ = self.attention(tokens[:, self.query_tokens], tokens, tokens, need_weights=False)
        return y[..., : g.out_channels].transpose(1, 2).unflatten(2, shape).contiguous()

    def _check_input(self, x: Tensor, output_size: Sequence[int] | None) -> bool:
        """Check an input and a wanted output size, and say whether the input has a batch axis."""
        g = self.geometry
        batched = has_batch_axis(g, self.positions, x)
        size = tuple(x.shape[-g.dims :])
        if size != self.grid:
            raise RuntimeError(f"MHSA: this attention takes inputs of size {self.grid}, not {size}")
        if geometry_for(g, output_size, size, batched) != g:
            raise ValueError(
                f"MHSA: this attention has outputs of size {g.output_size(size)}, not {tuple(output_size or ())}; "
                "give the convolution an output_padding, and convert that"
            )
        return batched

    def _require_memory(self, x: Tensor, learning: bool) -> None:
        keys = len(self.sources)
        queries = len(self.query_tokens)
        # Per key: the token, its copy for the product, and two copies each of key and value; about
        # the same per query.
        # the null token is appended to copies of key and value
        numbers = (
            6 * (keys + queries) + 2 * keys * self.attention.add_zero_attn
        ) * self.attention.embed_dim
        if learning:  # attention, its scores, and the gradients of both
            numbers += 4 * self.attention.num_heads * keys * queries
        needed = numbers * len(x) * x.element_size()
        require(needed, x.device, f"a stock attention over {queries} queries and {keys} keys")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "StockAttention":
        """Move or cast, after checking that the new dtype can hold the scores.

        Raises:
            UnsupportedLayer: (a ValueError) half precision, or too large a grid for the format.
        """
        dtype = fn(self.positions[:0]).dtype
        if dtype != self.positions.dtype:
            layout = replace(_layout(self), dtype=dtype)
            try:
                head_size(self._centres, layout, self.attention.head_dim)
            except NoStockForm as error:
                refuse(self, str(error))
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        """Channels and grid."""
        return f"{self.geometry.in_channels}, {self.geometry.out_channels}, grid={self.grid}"


@torch.no_grad()
def to_torch_mha(
    layer: MHSA | PatchAttention,
    grid: tuple[int, ...],
    *,
    bias: bool = True,
    null_token: bool = False,
) -> StockAttention:
    """Convert an attention layer to a stock ``nn.MultiheadAttention`` with the same function on
    inputs of one size.

    Its scores are α(2(p_q + τ_h)·p_k − ‖p_k‖²), which differ from the layer's by a term independent
    of the key; see :mod:`construct.stock.dot_products` for their precision.

    >>> import torch, construct
    >>> conv = torch.nn.Conv2d(1, 2, 3, padding=1)
    >>> stock = construct.to_torch_mha(construct.conv_to_mhsa(conv), grid=(6, 6))
    >>> x = torch.randn(1, 1, 6, 6)
    >>> type(stock.attention).__name__, torch.allclose(stock(x), conv(x), atol=1e-5)
    ('MultiheadAttention', True)

    Args:
        layer: without content terms (W_qry, W_key and u silent), quadratic encoding or parabola,
            float32 or float64; over patches, they are the stock attention's tokens.
        grid: the spatial size of the input before padding, d numbers.
        bias: whether the projections have biases (torch's default); without them the constant 1 is
            one more channel.
        null_token: whether one null token (``add_zero_attn``) stands for all padding tokens, so that
            the tokens are the image's own: for zero padding, one-hot heads, and queries that all lie
            on the image.

    Returns:
        A module that takes ``(B, D_in, *grid)`` or ``(D_in, *grid)``, with the layer's dtype, device
        and mode.  Its state dict loads into any ``nn.MultiheadAttention(embed_dim, num_heads,
        bias=bias, add_zero_attn=null_token)`` of that size; train that one under
        ``sdpa_kernel(SDPBackend.MATH)``, as this module does itself, because the rounding of large
        scores makes the gradients of fused attention wrong.  Value projections are trainable if the
        layer's are; queries and keys share a tensor with them, and at full sharpness their
        gradients are exactly zero.  Training also changes entries that were zero (groups, positions
        in the values), after which the module is not a convolution.

    Raises:
        UnsupportedLayer: (a ValueError) not such a layer, or the dtype cannot hold the scores on
            this grid.
        ValueError: the layer accepts no input of spatial size ``grid``.
        NotEnoughMemory: the projections, 4·embed_dim² numbers, or the tokens would not fit.
    """
    if isinstance(layer, PatchAttention):
        patches = layer.patching.patches_along(grid)
        stock = to_torch_mha(layer.attention, patches, bias=bias, null_token=null_token)
        stock.patching = layer.patching
        return stock
    try:
        return _stock(layer, grid, bias, null_token)
    except NoStockForm as error:
        refuse(layer, str(error))


def _stock(layer: MHSA, grid: tuple[int, ...], bias: bool, null_token: bool) -> StockAttention:
    """What :func:`to_torch_mha` returns for a layer over positions.

    Raises:
        NoStockForm: it has none; with the reason.
    """
    _check_layer(layer)
    g = layer.geometry
    layout = TokenLayout(g, padded_grid(g, grid), layer.w_val.dtype, bias, null_token)
    box = layout.padded.box
    if layer.radix is not None and not shifts_are_distinct(layer.radix, box):
        raise NoStockForm(
            f"its parabola of radix {layer.radix} cannot number the shifts {box} of this grid"
        )
    centres = _centres(layer, layout)
    carries_bias = not bias and bool(layer.b_out.any())
    if null_token and carries_bias:
        raise NoStockForm(
            "without biases a value carries b_out, and the null token's is 0; take bias=True"
        )
    heads, groups, _, d_h = layer.w_val.shape
    # one value of head 0 is the constant 1, times b_out
    values = groups * d_h + carries_bias
    least = max(values, layout.terms, -(-max(layout.channels, g.out_channels) // heads))
    head_dim = head_size(centres, layout, least, next_power(16, least))
    attention = _zero_attention(layer, layout, head_dim)
    in_proj = attention.in_proj_weight.unflatten(0, (3, heads, head_dim))
    out_proj = attention.out_proj.weight[: g.out_channels].unflatten(1, (heads, head_dim))
    _write_values(in_proj[2], out_proj, layer)
    columns = layer.w_val.new_tensor(position_columns(centres, layout, head_dim))
    if carries_bias:
        columns[2, 0, groups * d_h, -1] = 1
        out_proj[:, 0, groups * d_h] = layer.b_out
    in_proj[..., g.in_channels : layout.channels] = columns[..., : g.dims + 2 - bias]
    if bias:
        attention.in_proj_bias.copy_(columns[..., -1].flatten())
        attention.out_proj.bias[: g.out_channels] = layer.b_out
        attention.in_proj_bias.requires_grad_(layer.v.requires_grad)
        attention.out_proj.bias.requires_grad_(layer.b_out.requires_grad)
    attention.in_proj_weight.requires_grad_(layer.w_val.requires_grad)
    attention.out_proj.weight.requires_grad_(layer.w_out.requires_grad)
    return StockAttention(g, layout.padded.size, attention, centres).train(layer.training)


def _check_layer(layer: Any) -> None:
    """Check that a layer has a stock form on some grid."""
    if not isinstance(layer, MHSA):
        raise NoStockForm(
            "not an attention layer of this project; conv_to_mhsa makes one of a convolution"
        )
    if layer.w_val.is_meta:
        raise NoStockForm("it is on the meta device; load real weights first")
    if layer.has_content():
        raise NoStockForm(
            "its scores depend on the content, and only scores of positions are plain dot products here"
        )
    if type(layer.encoding) not in CLASSICAL:
        raise NoStockForm(f"a stock attention has no form of the {layer.encoding.name} encoding")
    if not all(tensor.isfinite().all() for tensor in tensors_of(layer)):
        raise NoStockForm("it has entries that are not finite")


def _zero_attention(layer: MHSA, layout: TokenLayout, head_dim: int) -> Any:
    width = layer.heads * head_dim
    require(
        (4 * width + 8) * width * layout.dtype.itemsize,
        layer.w_val.device,
        f"a stock attention of {layer.heads} heads of size {head_dim}",
    )
    # skip_init leaves the global random state alone.
    attention = nn.utils.skip_init(
        nn.MultiheadAttention,
        width,
        layer.heads,
        bias=layout.bias,
        add_zero_attn=layout.null,
        batch_first=True,
        device=layer.w_val.device,
        dtype=layout.dtype,
    )
    for tensor in attention.parameters():
        tensor.zero_()
    return attention


def _write_values(value: Tensor, out_proj: Tensor, layer: MHSA) -> None:
    """Write W_val into (heads, D, width), and W_out into (D_out, heads, D), each group beside the
    others.
    """
    for head, blocks in enumerate(zip(layer.w_val, layer.w_out, strict=True)):
        w_val, w_out = (torch.block_diag(*block) for block in blocks)
        value[head, : len(w_out), : len(w_val)] = w_val.T
        out_proj[:, head, : len(w_out)] = w_out.T


@torch.no_grad()
def from_torch_mha(
    module: nn.Module, geometry: ConvGeometry | None = None, grid: tuple[int, ...] | None = None
) -> MHSA:
    """Read the convolution that a stock attention computes from its projections: ``.weight`` and
    ``.bias`` of the result.

    Only the tensors count, and scores are checked in exact arithmetic: head h carries the tap at
    τ_h if its scores are β(2(p_q + τ_h)·p_k − ‖p_k‖²)/√D plus terms independent of the key, and
    one-hot on this grid for every input.  The matrix of a tap is the sum of W_val^h W_out^h over
    the heads at its shift.

    >>> import torch, construct
    >>> conv = torch.nn.Conv2d(1, 2, 3, padding=1)
    >>> stock = construct.to_torch_mha(construct.conv_to_mhsa(conv), grid=(6, 6))
    >>> torch.equal(construct.from_torch_mha(stock).weight, conv.weight)
    True

    Args:
        module: from :func:`to_torch_mha`, or a bare ``nn.MultiheadAttention`` with tokens as in
            :class:`~construct.stock.layer.StockAttention`.
        geometry: for a bare attention: the convolution's geometry, which fixes content channels and
            the shifts of the taps.
        grid: for a bare attention: the spatial size of the input before padding.

    Returns:
        A layer of the same dtype, device and mode; without a bias if the stock one adds none and
        learns none.  The kernel is the original one, bit for bit, if one factor of every head is
        the identity (as :func:`~construct.conv_to_mhsa` makes them); else it is rounded once.

    Raises:
        UnsupportedLayer: (a ValueError) no such kernel: some head has no fixed shift, one between
            positions or at no tap, is not one-hot, mixes groups, or uses content in scores or
            positions in values.
        ValueError: geometry and grid are missing for a bare attention, or given with a module that
            has its own.
    """
    attention: Any = module
    if isinstance(module, StockAttention):
        if module.patching is not None:
            refuse(
                module,
                "its tokens are patches; give its attention, with geometry=module.geometry and grid=module.grid, "
                "for the kernel over patches",
            )
        if geometry is not None or grid is not None:
            raise ValueError(
                "MHSA: geometry and grid belong to a bare nn.MultiheadAttention; this module has its own"
            )
        _check_stock(module)
        attention = module.attention
        geometry = module.geometry
        grid = module.grid
    elif not isinstance(module, nn.MultiheadAttention):
        refuse(module, "neither what to_torch_mha returns nor an nn.MultiheadAttention")
    if geometry is None or grid is None:
        raise ValueError(
            "MHSA: a bare nn.MultiheadAttention needs geometry=ConvGeometry(…) and grid=(…) to be read"
        )
    try:
        weight, bias = read_kernel(attention, geometry, grid)
    except NoStockForm as error:
        refuse(attention, f"no kernel can be read: {error}")
    own = attention.out_proj.bias
    if not bias.any() and (own is None or not own.requires_grad):
        bias = None
    return kernel_to_mhsa(weight, bias, geometry).train(module.training)


def _check_stock(module: StockAttention) -> None:
    """Refuse a stock layer whose tokens are not those of its geometry and grid."""
    if module.positions.is_meta:
        refuse(module, "it is on the meta device; load real weights first")
    if not getattr(module.attention, "batch_first", False):
        refuse(
            module, "its attention is not batch_first, so it would take the batch for the tokens"
        )
    buffers = _layout(module).buffers()
    same = all(torch.equal(getattr(module, name).to(own), own) for name, own in buffers.items())
    if type(module) is not StockAttention or not same:
        refuse(
            module,
            "its tokens are not those of its grid, or its class is not the one that was built",
        )
    if has_hooks(module) or any(hasattr(StockAttention, own) for own in vars(module)):
        refuse(module, "it has hooks, or a forward of its own, which may change what it computes")


def _layout(module: StockAttention) -> TokenLayout:
    return TokenLayout.of(module.attention, module.geometry, module.grid)


def _centres(layer: MHSA, layout: TokenLayout) -> tuple[HeadCentre, ...]:
    """The centre of every head, from v and Ŵ_key alone: c = −α(1, −2τ), or the number of τ for the
    parabola encoding.

    A head of the parabola must be one-hot with its key on the grid for every query; otherwise the
    nearest key by number is not the nearest by distance.  Beside a null token, what is off the grid
    is no zero.
    """
    radix = layer.radix
    centres = []
    for head, c in enumerate(layer.position_vector().tolist()):
        if c[0] == 0 or not all(map(isfinite, c)):
            raise NoStockForm(f"head {head} has no centre: its α is {-c[0]}")
        square, *linear = map(Fraction, c)
        centre = HeadCentre(-square, tuple(x / (-2 * square) for x in linear))
        if centre.is_sharp(layout):  # and computes the same at every sharpness
            centre = replace(centre, alpha=Fraction(ALPHA) * (1 + layout.null))
        if radix is not None:
            if not centre.is_sharp(layout):
                what = f"head {head} of the parabola is not one-hot"
                raise NoStockForm(f"{what}, and its numbers have no other form")
            tau = shift_of_number(int(centre.tau[0]), radix)
            centre = replace(centre, tau=tuple(map(Fraction, tau)))
        if (radix is not None or layout.null) and not stays_on(layout.padded, centre.tau):
            where = ", ".join(map(str, centre.tau))
            raise NoStockForm(f"head {head} looks at ({where}), off the padded grid for some query")
        centres.append(centre)
    return tuple(centres)
