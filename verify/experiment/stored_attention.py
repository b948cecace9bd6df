"""Reads an attention layer, ours or a stock one, from a file, without running anything that the
file holds.

A stock layer is an ``nn.MultiheadAttention``, or the image-to-image module around one that
``construct.to_torch_mha`` makes.
"""

from torch import nn

from construct.attention import ConvGeometry
from construct.files.reading import read
from construct.stock.layer import StockAttention
from verify.plots.stored_layer import layer_in
from verify.recheck.strict_input import AnyPath, opened


def attention_in(path: AnyPath, name: str | None = None) -> nn.Module:
    """Read an attention layer as `verify.plots.stored_layer.layer_in` does, or a stock one that was
    saved by itself.

    Raises:
        ValueError: the file cannot be read, or holds no such layer.
        OSError: it cannot be opened.
    """
    opened(path).close()
    content = read(path, inert=True).content
    if name is None and isinstance(content, nn.MultiheadAttention):
        return content
    # a stand-in with the fields of one
    if name is None and type(content).__name__ == StockAttention.__name__:
        inner, geometry = (getattr(content, part, None) for part in ("attention", "geometry"))
        if type(inner) is not nn.MultiheadAttention or type(geometry) is not ConvGeometry:
            raise ValueError(
                f"{path}: its stock attention is not put together as construct.to_torch_mha does"
            )
        stock = StockAttention.__new__(StockAttention)
        # Two fields are of classes that are not imported.  Centres tell whether another dtype holds
        # the scores: float64, in which it is audited, does.  Patches are its tokens, as in layer_in.
        vars(stock).update(vars(content), _centres=(), patching=None)
        return stock
    try:
        return layer_in(path, name)
    except ValueError as error:
        if isinstance(content, nn.Module) and any(
            isinstance(m, nn.MultiheadAttention) for m in content.modules()
        ):
            raise ValueError(
                f"{error}; a stock nn.MultiheadAttention is read if it was saved by itself"
            ) from error
        raise
