"""The variants that are compared: kinds of attention, their starts, and the controls; and the layer
of each.
"""

from dataclasses import dataclass

from torch import nn

from construct import MHSA
from examples.learned.data import BadInput
from examples.learned.starting import attention_to_learn, convolution_to_learn


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    Attributes:
        label: its name in the table.
        encoding: an argument of :func:`examples.learned.starting.attention_to_learn`; "resnet" for
            the baseline.
        content: whether there is content attention.
        start: "paper", "local" or "convolution".
        absolute: whether learned positions are added to the tokens of the first layer.
        frozen: what of where heads look stays as it starts, a control: "all", so that only values
            learn, or "centres", so that α learns too; nothing by default.
        matrices: the scale of W_val W_out at the start: "xavier", or "convolution" as torch draws a
            convolution's kernel.
        heads: N_h, if not the network's.
        wide_keys: whether content has keys of the width of the tokens, as position attention has,
            and not of width / heads.
        kernel: the side of a convolution in place of attention: a control; 0 for attention.
        cutmix: whether it trains on pictures in which a rectangle comes from another picture.
    """

    label: str
    encoding: str
    content: bool = False
    start: str = "paper"
    absolute: bool = False
    frozen: str = ""
    matrices: str = ""
    heads: int = 0
    wide_keys: bool = False
    kernel: int = 0
    cutmix: bool = False


VARIANTS = {
    "quadratic": Variant("quadratic, learned α and τ (isotropic)", "quadratic"),
    "covariance": Variant("quadratic, learned Σ and τ (non-isotropic)", "covariance"),
    "local": Variant("quadratic, local start", "quadratic", start="local"),
    "from-conv": Variant("quadratic, from a convolution", "quadratic", start="convolution"),
    "relative": Variant("learned relative embedding", "relative"),
    "relative-content": Variant("learned relative embedding + content", "relative", content=True),
    "absolute": Variant("absolute embedding + content", "none", content=True, absolute=True),
    "resnet18": Variant("ResNet-18", "resnet"),
    "frozen": Variant("quadratic, heads frozen at the paper's start", "quadratic", frozen="all"),
    "frozen-local": Variant(
        "quadratic, heads frozen at the local start", "quadratic", start="local", frozen="all"
    ),
    "frozen-centres": Variant(
        "quadratic, centres frozen at the paper's start, α learned", "quadratic", frozen="centres"
    ),
    "local-scaled": Variant(
        "quadratic, local start, matrices as small as a convolution's",
        "quadratic",
        start="local",
        matrices="convolution",
    ),
    "local-padded": Variant(
        "quadratic, local start with padding tokens",
        "quadratic",
        start="convolution",
        matrices="xavier",
    ),
    "quadratic-16": Variant("quadratic, 16 heads", "quadratic", heads=16),
    "quadratic-cutmix": Variant("quadratic, with CutMix", "quadratic", cutmix=True),
    "relative-content-wide": Variant(
        "learned relative embedding + content, keys as wide as without",
        "relative",
        content=True,
        wide_keys=True,
    ),
    "conv3": Variant("a 3 × 3 convolution in the block", "convolution", kernel=3),
    "conv7": Variant("a 7 × 7 convolution in the block", "convolution", kernel=7),
    "conv9": Variant("a 9 × 9 convolution in the block", "convolution", kernel=9),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a network.

    Attributes:
        layers: the number of attention layers.
        heads: the heads of each layer.
        width: the width of the tokens, D_in = D_h = D_out.
        intermediate: the width of the dense layers that follow.
        dropout: the share of numbers dropped.
        key_dim: D_k of content attention; 0 for width / heads.
        alpha: the sharpness of local starts and of those from a convolution.
        resnet: the channels of the ResNet's first stage.
    """

    layers: int
    heads: int
    width: int
    intermediate: int
    dropout: float
    key_dim: int
    alpha: float
    resnet: int


CENTRES = "parametrizations.v.original1"
"""The parameter of a layer with learned α and τ that is τ."""


def positions_of(layer: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters that say where the heads of an attention layer look: τ and log α, Σ
    and τ, or offsets and v.
    """
    if not isinstance(layer, MHSA):
        return []
    names = ("v", *layer.offsets)
    return [
        p
        for name, p in layer.named_parameters()
        if p.requires_grad and (name in names or name.startswith("parametrizations.v."))
    ]


def layer_of(variant: Variant, shape: Shape, grid: tuple[int, int]) -> MHSA | nn.Conv2d:
    """One attention layer, or the convolution that stands for it in a control."""
    if variant.kernel:
        return nn.Conv2d(shape.width, shape.width, variant.kernel, padding=variant.kernel // 2)
    layer = (
        _from_convolution(variant, shape)
        if variant.start == "convolution"
        else _from_centres(variant, shape, grid)
    )
    if variant.frozen == "centres":
        layer.get_parameter(CENTRES).requires_grad_(False)
    elif variant.frozen:
        for p in positions_of(layer):
            p.requires_grad_(False)
    return layer


def _from_convolution(variant: Variant, shape: Shape) -> MHSA:
    width, heads = shape.width, variant.heads or shape.heads
    side = round(heads**0.5)
    if side * side != heads:
        raise BadInput(f"{heads} heads are no square kernel (take 9 or 16)")
    conv = nn.Conv2d(width, width, side, padding="same")
    conv.padding = (side // 2, side // 2) if side % 2 else conv.padding
    if variant.matrices == "xavier":
        largest = (6 / (heads * width + width)) ** 0.5
        nn.init.uniform_(conv.weight, -largest, largest)
        if conv.bias is not None:
            nn.init.zeros_(conv.bias)
    return convolution_to_learn(conv, alpha=shape.alpha)


def _from_centres(variant: Variant, shape: Shape, grid: tuple[int, int]) -> MHSA:
    width, heads = shape.width, variant.heads or shape.heads
    key_dim = None
    if variant.content:
        if not shape.key_dim and width % heads:
            raise BadInput(
                f"{heads} heads do not divide the width {width} (keys of content are width / heads wide)"
            )
        key_dim = width if variant.wide_keys else shape.key_dim or width // heads
        # Here too, the keys leave room for the position score of the quadratic encoding.
        key_dim = max(key_dim, 3) if variant.encoding == "none" else key_dim
    try:
        layer = attention_to_learn(
            width,
            width,
            heads,
            encoding=variant.encoding,
            content=variant.content,
            start=variant.start,
            alpha=shape.alpha if variant.start == "local" else 1.0,
            key_dim=key_dim,
            reach=tuple(n - 1 for n in grid),
        )
    except ValueError as error:
        raise BadInput(f"{error} (choose other --heads)") from None
    if variant.matrices == "convolution":
        largest = (heads * width) ** -0.5  # torch's rule for a convolution of as many taps
        nn.init.uniform_(layer.w_out, -largest, largest)
    return layer
