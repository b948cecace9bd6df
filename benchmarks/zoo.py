"""Networks from popular packages, as these build them: what is converted, what is refused, how
accurate, how fast.

    python -m benchmarks.zoo [NAME ...] [--certify] [--markdown]

A network whose package is not installed is skipped by name.  All weights are random and seeded;
nothing is downloaded.  Each row says how many convolutions were converted and how many were left,
with the reason; whether the network makes the same calls; the distance of the converted network
from a float64 run of the original, next to the original's own, relative to the largest number of
the output tensor that is nearest to its limit; the verdicts on its layers; and the time of a
forward, as a ratio to the original's, one thread.

The exit code is 1 if a layer is REFUTED, the converted network does not run, a call differs, or the
distance exceeds its limit (verify/samples/accuracy.py).
"""

import argparse
import importlib
import importlib.util
import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

import construct
from benchmarks.timing import medians
from construct.attention import MHSA
from construct.command.arguments import parse
from construct.command.runs import run_both
from construct.command.terminal import phases
from construct.errors import BadModelFile
from construct.files.isolation import isolated
from construct.modules.traversal import every_module, substitute
from construct.network import layers_from_rules, survey
from verify.argument.verdicts import certify_layer
from verify.samples.network import compare_numbers
from verify.samples.sampling import called

ROUNDS = 3
Made = tuple[nn.Module, Any]
"""A network, and its input: a tensor, a tuple of arguments, or a dict of keyword arguments."""


def padded_before(conv: Any) -> nn.Module:
    """A rule for a class whose forward pads with its own layer, of fixed size, and then convolves."""
    options = {name: getattr(conv, name) for name in ("stride", "padding", "dilation", "groups")}
    plain = nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel_size, bias=conv.bias is not None, **options
    )
    plain.load_state_dict(conv.state_dict(), strict=False)
    return nn.Sequential(conv.static_padding, plain)


RULES = {"Conv2dStaticSamePadding": padded_before}
"""Name of a class → its rule, see ``construct.convert``."""


HEAD = ("network", "converted", "layers", "calls", "from float64", "the original", "time ×")
"""Columns of the table."""


@dataclass
class Result:
    """One row.

    Attributes:
        name: the network's name.
        skipped: why it was not tried; empty if it was.
        converted: how many convolutions became attention.
        left: the path of each other convolution, and the reason.
        verdicts: on the layers, by name: CHECKED on the network's activations, or those of
            certificates.
        calls: the first call that differs, or why the converted network does not run; empty if it
            makes the same.
        error: distance of the converted network from float64, relative to the tensor's largest;
            None without a float64 run.
        own: the same for the original.
        numbers: the verdict on these distances.
        ratio: the time of a forward relative to the original's; None if they were not compared.
    """

    name: str
    skipped: str = ""
    converted: int = 0
    left: list[str] = field(default_factory=list)
    verdicts: dict[str, int] = field(default_factory=dict)
    calls: str = ""
    error: float | None = None
    own: float | None = None
    numbers: str = ""
    ratio: float | None = None

    @property
    def good(self) -> bool:
        """Whether no call differs and nothing is REFUTED."""
        return not (self.calls or self.numbers == "REFUTED" or "REFUTED" in self.verdicts)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells for the columns of ``HEAD``."""
        verdicts = ", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items()))
        if self.skipped:
            return self.name, f"skipped: {self.skipped}", *[""] * 5
        distances = (
            ["no float64 run", ""]
            if self.error is None
            else [f"{self.error:.1e}", f"{self.own:.1e}"]
        )
        converted = f"{self.converted}, {len(self.left)} left" if self.left else str(self.converted)
        if self.ratio is None:
            return self.name, converted, verdicts, self.calls, *[""] * 3
        return (
            self.name,
            converted,
            verdicts,
            self.calls or "the same",
            *distances,
            f"{self.ratio:.2f}",
        )

    def __str__(self) -> str:
        text = "; ".join(
            f"{head}: {cell}" for head, cell in zip(HEAD[1:], self.cells[1:], strict=True) if cell
        )
        text = f"{self.name}: {text.removeprefix('converted: ') if self.skipped else text}"
        return "\n".join([text, *(f"    left: {reason}" for reason in self.left)])


# ---- the networks --------------------------------------------------------------------------------

ZOO: dict[str, tuple[str, Callable[[], Made]]] = {}
"""Name → its package, and a function that makes network and input."""


def entry(name: str, package: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Add a network to ``ZOO``."""

    def enter(make: Callable[[], Made]) -> Callable[[], Made]:
        assert name not in ZOO, name
        ZOO[name] = package, make
        return make

    return enter


def made_by(module: str, name: str, *args: Any, **options: Any) -> Any:
    """Call a class or function of a package, which is imported only now."""
    return attrgetter(name)(importlib.import_module(module))(*args, **options)


def noise(*shape: int) -> Tensor:
    """Seeded normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _monai(name: str, size: tuple[int, ...], **options: Any) -> None:
    @entry(f"monai {name} {len(size)}-D", "monai")
    def _() -> Made:
        return made_by("monai.networks.nets", name, **options), noise(
            1, options.get("in_channels", 1), *size
        )


_monai(
    "UNet",
    (64, 64),
    spatial_dims=2,
    in_channels=1,
    out_channels=2,
    channels=(8, 16, 32),
    strides=(2, 2),
    num_res_units=2,
)
_monai(
    "UNet",
    (32, 32, 32),
    spatial_dims=3,
    in_channels=1,
    out_channels=2,
    channels=(8, 16, 32),
    strides=(2, 2),
)
_monai(
    "BasicUNet",
    (32, 32, 32),
    spatial_dims=3,
    in_channels=1,
    out_channels=2,
    features=(8, 8, 16, 16, 32, 8),
)
_monai(
    "AttentionUnet",
    (64, 64),
    spatial_dims=2,
    in_channels=1,
    out_channels=2,
    channels=(8, 16, 32),
    strides=(2, 2),
)
_monai("SegResNet", (32, 32, 32), spatial_dims=3, in_channels=1, out_channels=2, init_filters=8)
_monai("VNet", (32, 32, 32), spatial_dims=3, in_channels=1, out_channels=2)
_monai("DenseNet121", (64, 64), spatial_dims=2, in_channels=1, out_channels=4)
_monai(
    "EfficientNetBN",
    (64, 64),
    model_name="efficientnet-b0",
    pretrained=False,
    spatial_dims=2,
    in_channels=3,
)
_monai("SEResNet50", (64, 64), spatial_dims=2, in_channels=3, num_classes=4)
_monai("DynUNet", (32, 32), spatial_dims=2, in_channels=1, out_channels=2, kernel_size=[3, 3, 3], strides=[1, 2, 2],
       upsample_kernel_size=[2, 2])  # fmt: skip
_monai("HighResNet", (24, 24, 24), spatial_dims=3, in_channels=1, out_channels=2)
_monai("UNETR", (32, 32), spatial_dims=2, in_channels=1, out_channels=2, img_size=32, feature_size=8, hidden_size=48,
       mlp_dim=96, num_heads=4)  # fmt: skip


def _smp(name: str, encoder: str, size: int = 64) -> None:
    @entry(f"segmentation-models-pytorch {name}, {encoder}", "segmentation_models_pytorch")
    def _() -> Made:
        return made_by("segmentation_models_pytorch", name, encoder, encoder_weights=None), noise(
            1, 3, size, size
        )


for _decoder in ("Unet", "FPN", "DeepLabV3Plus", "PSPNet", "Linknet", "MAnet"):
    _smp(_decoder, "resnet18")
_smp("Unet", "mobilenet_v2")
_smp("Unet", "efficientnet-b0")


def _transformers(
    config: str, model: str, *shape: int, call: str = "pixel_values", **options: Any
) -> None:
    @entry(f"transformers {model}", "transformers")
    def _() -> Made:
        network = made_by("transformers", model, made_by("transformers", config, **options))
        return network, {call: noise(*shape), "return_dict": False}


_transformers(
    "ResNetConfig",
    "ResNetModel",
    1,
    3,
    64,
    64,
    embedding_size=16,
    hidden_sizes=[16, 32],
    depths=[2, 2],
)
_transformers(
    "ConvNextConfig",
    "ConvNextModel",
    1,
    3,
    64,
    64,
    hidden_sizes=[16, 32],
    depths=[2, 2],
    num_stages=2,
)
_transformers(
    "ConvNextV2Config",
    "ConvNextV2Model",
    1,
    3,
    64,
    64,
    hidden_sizes=[16, 32],
    depths=[2, 2],
    num_stages=2,
)
_transformers("RegNetConfig", "RegNetModel", 1, 3, 64, 64, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2],
              groups_width=8)  # fmt: skip
_transformers("MobileNetV1Config", "MobileNetV1Model", 1, 3, 64, 64, image_size=64)
_transformers("MobileNetV2Config", "MobileNetV2Model", 1, 3, 64, 64, image_size=64)
_transformers("MobileViTConfig", "MobileViTModel", 1, 3, 64, 64, image_size=64)
_transformers("SegformerConfig", "SegformerModel", 1, 3, 64, 64, hidden_sizes=[16, 32], depths=[1, 1],
              num_encoder_blocks=2, sr_ratios=[8, 4], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
              mlp_ratios=[4, 4])  # fmt: skip
_transformers("ViTConfig", "ViTModel", 1, 3, 64, 64, image_size=64, patch_size=8, hidden_size=48, num_hidden_layers=2,
              num_attention_heads=4, intermediate_size=96)  # fmt: skip
_transformers("Wav2Vec2Config", "Wav2Vec2Model", 1, 4000, call="input_values", hidden_size=48, num_hidden_layers=2,
              num_attention_heads=4, intermediate_size=96, conv_dim=[32] * 7, num_conv_pos_embeddings=16,
              num_conv_pos_embedding_groups=4)  # fmt: skip
_transformers("HubertConfig", "HubertModel", 1, 4000, call="input_values", hidden_size=48, num_hidden_layers=2,
              num_attention_heads=4, intermediate_size=96, conv_dim=[32] * 7, num_conv_pos_embeddings=16,
              num_conv_pos_embedding_groups=4)  # fmt: skip
_transformers("EncodecConfig", "EncodecModel", 1, 1, 3200, call="input_values", num_filters=8, hidden_size=32,
              codebook_dim=32, num_lstm_layers=1)  # fmt: skip


@entry("transformers WhisperEncoder", "transformers")
def _whisper() -> Made:
    sizes = {
        "d_model": 48,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 96,
    }
    config = made_by(
        "transformers", "WhisperConfig", **sizes, max_source_positions=50, num_mel_bins=16
    )
    encoder = made_by("transformers.models.whisper.modeling_whisper", "WhisperEncoder", config)
    return encoder, {"input_features": noise(1, 16, 100), "return_dict": False}


def _diffusers(name: str, inputs: Callable[[], Any], **options: Any) -> None:
    @entry(f"diffusers {name}", "diffusers")
    def _() -> Made:
        return made_by("diffusers", name, **options), inputs()


_SMALL = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
_diffusers("UNet2DModel", lambda: (noise(1, 3, 32, 32), 5), sample_size=32, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
           up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8, **_SMALL)  # fmt: skip
_diffusers("UNet2DConditionModel", lambda: (noise(1, 4, 16, 16), 5, noise(1, 7, 24)), sample_size=16, cross_attention_dim=24,
           down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
           attention_head_dim=8, **_SMALL)  # fmt: skip
_diffusers("AutoencoderKL", lambda: noise(1, 3, 32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
           up_block_types=("UpDecoderBlock2D",) * 2, **_SMALL)  # fmt: skip
_diffusers("VQModel", lambda: noise(1, 3, 32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
           up_block_types=("UpDecoderBlock2D",) * 2, **_SMALL)  # fmt: skip
_diffusers("UNet1DModel", lambda: (noise(1, 14, 32), 5), block_out_channels=(16, 32), in_channels=14, out_channels=14,
           down_block_types=("DownResnetBlock1D",) * 2, up_block_types=("UpResnetBlock1D",), time_embedding_type="positional",
           mid_block_type="MidResTemporalBlock1D", out_block_type="OutConv1DBlock", use_timestep_embedding=True,
           layers_per_block=1, norm_num_groups=8, act_fn="mish", flip_sin_to_cos=False, freq_shift=1)  # fmt: skip


def _one(name: str, package: str, module: str, cls: str, *shape: int, **options: Any) -> None:
    """Add a network that one call makes."""

    @entry(f"{package.replace('_', '-')} {name}", package)
    def _() -> Made:
        return made_by(module, cls, **options), noise(*shape)


_one("InceptionResnetV1", "facenet_pytorch", "facenet_pytorch", "InceptionResnetV1", 1, 3, 160, 160, pretrained=None,
     classify=True, num_classes=10)  # fmt: skip
_one("TCN", "pytorch_tcn", "pytorch_tcn", "TCN", 1, 4, 64, num_inputs=4, num_channels=[8, 8])
_one("CCT", "vit_pytorch", "vit_pytorch.cct", "CCT", 1, 3, 64, 64, img_size=64, embedding_dim=48, n_conv_layers=2,
     num_layers=2, num_heads=4, mlp_ratio=2, num_classes=10)  # fmt: skip
_one("CvT", "vit_pytorch", "vit_pytorch.cvt", "CvT", 1, 3, 64, 64, num_classes=10)
_one("MobileViT", "vit_pytorch", "vit_pytorch.mobile_vit", "MobileViT", 1, 3, 64, 64, image_size=(64, 64), dims=[48, 56, 64],
     channels=[16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 128], num_classes=10)  # fmt: skip


@entry("denoising-diffusion-pytorch Unet", "denoising_diffusion_pytorch")
def _denoising() -> Made:
    return made_by(
        "denoising_diffusion_pytorch", "Unet", dim=16, dim_mults=(1, 2), flash_attn=False
    ), (
        noise(1, 3, 32, 32),
        torch.tensor([5]),
    )


@entry("efficientnet-pytorch b0", "efficientnet_pytorch")
def _efficientnet() -> Made:
    return made_by(
        "efficientnet_pytorch", "EfficientNet.from_name", "efficientnet-b0", image_size=64
    ), noise(1, 3, 64, 64)


@entry("ultralytics YOLOv8n", "ultralytics")
def _yolo() -> Made:
    return made_by("ultralytics.nn.tasks", "DetectionModel", "yolov8n.yaml", verbose=False), noise(
        1, 3, 64, 64
    )


# ---- a row ---------------------------------------------------------------------------------------


def lively(net: nn.Module) -> nn.Module:
    """Put a network into eval mode, with running statistics other than 0 and 1, and without other
    constant parameters.

    Scales that start at 0 or 1e-6 would hide a branch, with all its convolutions, from the output.
    """
    generator = torch.Generator().manual_seed(1)
    for _, module in every_module(net):
        mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(var, Tensor):
            mean.copy_(0.1 * torch.randn(mean.shape, generator=generator))
            var.copy_(0.5 + torch.rand(var.shape, generator=generator))
        for parameter in module.parameters(recurse=False):
            first = parameter.flatten()[:1]
            if (
                parameter.numel() > 1
                and parameter.is_floating_point()
                and bool((parameter == first).all())
            ):
                drawn = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(0.5 + drawn if bool(first) else 0.1 * (drawn - 0.5))
    return net.eval()


def row(name: str, certify: bool = False) -> Result:
    """Convert one network, run both, and compare them."""
    package, make = ZOO[name]
    if importlib.util.find_spec(package) is None:
        return Result(name, f"{package} is not installed")
    try:
        net, x = seeded(make)
    except Exception as error:  # other versions of its dependencies may make it raise anything
        return Result(name, f"it cannot be made: {type(error).__name__}: {in_one_line(error)}")
    net = with_rules(net)
    convs = survey(net)
    left = [str(refusal) for refusal in convs.refused]
    if not convs.convertible:
        return Result(name, left=left) if left else Result(name, "it has no convolution")
    try:
        with torch.no_grad():
            called(substitute(net, {}), x)
    except Exception as error:  # as above; failures of the converted network count
        return Result(name, f"it does not run: {type(error).__name__}: {in_one_line(error)}")
    result = Result(name, converted=len(convs.convertible), left=left)
    compare(result, net, [*convs.convertible], x, certify)
    return result


def in_one_line(error: object) -> str:
    """The beginning of an error's text."""
    return " ".join(str(error).split())[:200]


def seeded(make: Callable[[], Made]) -> Made:
    """A network with the weights of seed 0, and its input."""
    with torch.no_grad():
        torch.manual_seed(0)
        net, x = make()
        return lively(net), x


def with_rules(net: nn.Module) -> nn.Module:
    """The network with what ``RULES`` put in the place of its modules.

    Samples test each rule against its module.
    """
    kinds = {type(module) for _, module in every_module(net)}
    rules = {kind: RULES[kind.__name__] for kind in kinds if kind.__name__ in RULES}
    substitutes, _ = layers_from_rules(net, rules)
    return substitute(net, substitutes)


def compare(result: Result, net: nn.Module, paths: Sequence[str], x: Any, certify: bool) -> None:
    """Fill a row with how the converted network differs: in calls, numbers, verdicts and time.

    Args:
        result: the row.
        net: the network.
        paths: of the convolutions that are converted.
        x: its input.
        certify: whether each layer is certified for all inputs.
    """
    converted = construct.convert(net, strict=False)
    ours, theirs = (dict[str, Any](every_module(one)) for one in (net, converted))
    pairs: dict[str, tuple[nn.Module, MHSA]] = {path: (ours[path], theirs[path]) for path in paths}
    options = parse(["net", "--input-size", "1"])
    try:
        with phases() as progress:
            runs = run_both(net, converted, pairs, [x], "its input", options, progress)
    except BadModelFile as error:
        result.calls = in_one_line(
            f"the converted network does not run: {error.__cause__ or error}"
        )
        return
    numbers = compare_numbers(runs.original, runs.converted, runs.reference, runs.no_float64)
    result.calls = runs.calls.difference or ("outputs of other sizes" if numbers is None else "")
    if numbers is not None:
        result.numbers = numbers.verdict.name
        result.error, result.own = relative(numbers)
    checks = runs.checks.items()
    verdicts = [
        certify_layer(*pairs[path], check)[1] if certify else check.verdict
        for path, check in checks
    ]
    result.verdicts = dict(Counter(verdict.name for verdict in verdicts))
    with torch.no_grad():
        original, attention = medians(
            lambda: called(net, x), lambda: called(converted, x), rounds=ROUNDS
        )
    result.ratio = attention / original


def relative(numbers: Any) -> tuple[float | None, float | None]:
    """The distances of the converted network and of the original from float64, relative to the
    tensor's largest number.
    """
    if numbers.converted is None or numbers.original is None or not numbers.largest:
        return None, None
    return numbers.converted / numbers.largest, numbers.original / numbers.largest


def main() -> int:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description="Networks of packages that people use."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="beginnings of names, such as monai; all by default",
    )
    parser.add_argument("--certify", action="store_true", help="certify every layer for all inputs")
    parser.add_argument(
        "--markdown", action="store_true", help="print a table of Markdown, without reasons"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("construct").setLevel(logging.ERROR)  # a row says what is left
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    chosen = [name for name in ZOO if not options.names or name.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"no network is called so; there are {', '.join(ZOO)}")
    results = []
    if options.markdown:
        print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name in chosen:
        with isolated(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(row(name, options.certify))
        print(
            f"| {' | '.join(results[-1].cells)} |" if options.markdown else results[-1], flush=True
        )
    tried = [result for result in results if not result.skipped]
    layers, left = (
        sum(result.converted for result in tried),
        sum(len(result.left) for result in tried),
    )
    print(f"{len(tried)} of {len(results)} networks: {layers} convolutions converted, {left} left")
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
