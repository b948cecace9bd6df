"""Networks of packages that people use, as the packages make them: what is converted, what is refused, how far off, how fast.

    python -m benchmarks.zoo [NAME ...] [--certify] [--json FILE]

A network whose package is not installed is skipped by name.  All weights are random and seeded; nothing is downloaded.  Each row
says how many convolutions were converted and how many were left, with the reason; whether the network makes the same calls;
the distance of the converted network from a float64 run of the original, beside the original's own, relative to the largest
output; the verdicts on its layers; and the time of a forward, as a ratio to the original's, one thread.

Exit code 1 where a convolution is left although its package is there, a call differs, or a distance is over its limit.
"""

import argparse
import importlib.util
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import construct
from benchmarks.timing import interleaved
from construct.attention import MHSA
from construct.command.arguments import parse
from construct.command.runs import run_both
from construct.command.terminal import isolated, phases
from construct.network import every_module, survey
from verify.argument.verdicts import certify_layer
from verify.samples.network import compare_calls, compare_numbers
from verify.samples.sampling import call_with

ROUNDS = 3
Made = tuple[nn.Module, Any]
"""A network, and its input: a tensor, a tuple of arguments, or a dict of keyword arguments."""


@dataclass
class Result:
    """One row.

    Attributes:
        name: of the network.
        skipped: why it was not tried; empty if it was.
        converted: how many convolutions became attention.
        left: of each other its path and the reason.
        verdicts: on the layers, by name: CHECKED on the network's activations, or those of certificates.
        calls: the first call that differs; empty if none does.
        error: distance of the converted network from float64, relative to the largest output; None without a float64 run.
        own: the same of the original.
        numbers: the verdict on these distances.
        ratio: time of a forward, to that of the original.
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
        """Whether nothing is wrong with it."""
        wrong = self.left or self.calls or self.numbers == "REFUTED" or "REFUTED" in self.verdicts
        return bool(self.skipped.endswith("not installed") or not (self.skipped or wrong))

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.name}: skipped: {self.skipped}"
        verdicts = ", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items()))
        distance = "no float64 run" if self.error is None else f"{self.error:.1e} from float64 (original {self.own:.1e})"
        text = f"{self.name}: {self.converted} converted, {len(self.left)} left; {verdicts}; "
        text += f"{self.calls or 'same calls'}; {distance}; {self.ratio:.2f} × the time"
        return "\n".join([text, *(f"    {reason}" for reason in self.left)])


# ---- the networks ------------------------------------------------------------------------------------------------------------

ZOO: dict[str, tuple[str, Callable[[], Made]]] = {}
"""By name: the package, and a function that makes network and input."""


def entry(name: str, package: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Enter a network into the table."""

    def enter(make: Callable[[], Made]) -> Callable[[], Made]:
        assert name not in ZOO, name
        ZOO[name] = package, make
        return make

    return enter


def noise(*shape: int) -> Tensor:
    """Seeded normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _monai(name: str, size: tuple[int, ...], **options: Any) -> None:
    @entry(f"monai {name} {len(size)}-D", "monai")
    def _() -> Made:
        from monai.networks import nets

        return getattr(nets, name)(**options), noise(1, options.get("in_channels", 1), *size)


_monai("UNet", (64, 64), spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2)
_monai("UNet", (32, 32, 32), spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2))
_monai("BasicUNet", (32, 32, 32), spatial_dims=3, in_channels=1, out_channels=2, features=(8, 8, 16, 16, 32, 8))
_monai("AttentionUnet", (64, 64), spatial_dims=2, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2))
_monai("SegResNet", (32, 32, 32), spatial_dims=3, in_channels=1, out_channels=2, init_filters=8)
_monai("VNet", (32, 32, 32), spatial_dims=3, in_channels=1, out_channels=2)
_monai("DenseNet121", (64, 64), spatial_dims=2, in_channels=1, out_channels=4)
_monai("EfficientNetBN", (64, 64), model_name="efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=3)
_monai("SENet154", (64, 64), spatial_dims=2, in_channels=3, num_classes=4)
_monai("DynUNet", (32, 32), spatial_dims=2, in_channels=1, out_channels=2, kernel_size=[3, 3, 3], strides=[1, 2, 2],
       upsample_kernel_size=[2, 2])  # fmt: skip
_monai("HighResNet", (24, 24, 24), spatial_dims=3, in_channels=1, out_channels=2)
_monai("UNETR", (32, 32), spatial_dims=2, in_channels=1, out_channels=2, img_size=32, feature_size=8, hidden_size=48,
       mlp_dim=96, num_heads=4)  # fmt: skip


def _smp(name: str, encoder: str, size: int = 64) -> None:
    @entry(f"segmentation-models-pytorch {name}, {encoder}", "segmentation_models_pytorch")
    def _() -> Made:
        import segmentation_models_pytorch as smp

        return getattr(smp, name)(encoder, encoder_weights=None), noise(1, 3, size, size)


for _decoder in ("Unet", "FPN", "DeepLabV3Plus", "PSPNet", "Linknet", "MAnet"):
    _smp(_decoder, "resnet18")
_smp("Unet", "mobilenet_v2")
_smp("Unet", "efficientnet-b0")


def _transformers(config: str, model: str, *shape: int, call: str = "pixel_values", **options: Any) -> None:
    @entry(f"transformers {model}", "transformers")
    def _() -> Made:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**options))
        return made, {call: noise(*shape), "return_dict": False}


_transformers("ResNetConfig", "ResNetModel", 1, 3, 64, 64, embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2])
_transformers("ConvNextConfig", "ConvNextModel", 1, 3, 64, 64, hidden_sizes=[16, 32], depths=[2, 2], num_stages=2)
_transformers("ConvNextV2Config", "ConvNextV2Model", 1, 3, 64, 64, hidden_sizes=[16, 32], depths=[2, 2], num_stages=2)
_transformers("RegNetConfig", "RegNetModel", 1, 3, 64, 64, embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2],
              groups_width=8)  # fmt: skip
_transformers("MobileNetV1Config", "MobileNetV1Model", 1, 3, 64, 64, image_size=64)
_transformers("MobileNetV2Config", "MobileNetV2Model", 1, 3, 64, 64, image_size=64)
_transformers("MobileViTConfig", "MobileViTModel", 1, 3, 64, 64, image_size=64)
_transformers("SegformerConfig", "SegformerModel", 1, 3, 64, 64, hidden_sizes=[16, 32], depths=[1, 1],
              num_encoder_blocks=2, sr_ratios=[8, 4], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
              mlp_ratios=[4, 4])  # fmt: skip
_transformers("CvtConfig", "CvtModel", 1, 3, 64, 64, embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 1, 1])
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
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}
    config = WhisperConfig(**sizes, max_source_positions=50, num_mel_bins=16)
    return WhisperEncoder(config), {"input_features": noise(1, 16, 100), "return_dict": False}


def _diffusers(name: str, inputs: Callable[[], Any], **options: Any) -> None:
    @entry(f"diffusers {name}", "diffusers")
    def _() -> Made:
        import diffusers

        return getattr(diffusers, name)(**options), inputs()


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
    """A network that one call makes."""

    @entry(f"{package.replace('_', '-')} {name}", package)
    def _() -> Made:
        return getattr(importlib.import_module(module), cls)(**options), noise(*shape)


_one("InceptionResnetV1", "facenet_pytorch", "facenet_pytorch", "InceptionResnetV1", 1, 3, 160, 160, pretrained=None,
     classify=True, num_classes=10)  # fmt: skip
_one("Crepe tiny", "torchcrepe", "torchcrepe.model", "Crepe", 2, 1024, model="tiny")
_one("TCN", "pytorch_tcn", "pytorch_tcn", "TCN", 1, 4, 64, num_inputs=4, num_channels=[8, 8])
_one("Unet", "denoising_diffusion_pytorch", "denoising_diffusion_pytorch", "Unet1D", 1, 3, 64, dim=16, dim_mults=(1, 2),
     channels=3)  # fmt: skip
_one("CCT", "vit_pytorch", "vit_pytorch.cct", "CCT", 1, 3, 64, 64, img_size=64, embedding_dim=48, n_conv_layers=2,
     num_layers=2, num_heads=4, mlp_ratio=2, num_classes=10)  # fmt: skip
_one("CvT", "vit_pytorch", "vit_pytorch.cvt", "CvT", 1, 3, 64, 64, num_classes=10)
_one("MobileViT", "vit_pytorch", "vit_pytorch.mobile_vit", "MobileViT", 1, 3, 64, 64, image_size=(64, 64), dims=[48, 56, 64],
     channels=[16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 128], num_classes=10)  # fmt: skip


@entry("efficientnet-pytorch b0", "efficientnet_pytorch")
def _efficientnet() -> Made:
    from efficientnet_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-b0", image_size=64), noise(1, 3, 64, 64)


@entry("ultralytics YOLOv8n", "ultralytics")
def _yolo() -> Made:
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel("yolov8n.yaml", verbose=False), noise(1, 3, 64, 64)


# ---- a row -------------------------------------------------------------------------------------------------------------------


def lively(net: nn.Module) -> nn.Module:
    """The network in eval mode, with running statistics and scales other than 0 and 1, so that no layer is the identity."""
    generator = torch.Generator().manual_seed(1)
    for _, module in every_module(net):
        mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(var, Tensor):
            mean.copy_(0.1 * torch.randn(mean.shape, generator=generator))
            var.copy_(0.5 + torch.rand(var.shape, generator=generator))
    return net.eval()


def row(name: str, certify: bool = False) -> Result:
    """Convert one network, run both, and compare them."""
    package, make = ZOO[name]
    if importlib.util.find_spec(package) is None:
        return Result(name, f"{package} is not installed")
    try:
        with torch.no_grad():
            torch.manual_seed(0)
            net, x = make()
            lively(net)
    except Exception as error:  # whatever its package raises, with other versions of what it needs
        return Result(name, f"it cannot be made: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    found = survey(net)
    result = Result(name, converted=len(found.convertible), left=[str(refusal) for refusal in found.refused])
    if not found.convertible:
        return Result(name, "; ".join(result.left) or "it has no convolution")
    converted = construct.convert(net, strict=False)
    theirs = dict(every_module(converted))
    pairs: dict[str, tuple[nn.Module, MHSA]] = {path: (conv, theirs[path]) for path, conv in found.convertible.items()}
    with phases() as progress:
        runs = run_both(net, converted, pairs, [x], "its input", parse([name]), progress)
    result.calls = compare_calls(runs.original, runs.converted).difference or ""
    numbers = compare_numbers(*runs[1:5])
    if numbers is None:
        result.calls = result.calls or "outputs of other sizes"
    else:
        result.numbers = numbers.verdict.name
        if numbers.converted is not None and numbers.original is not None and numbers.largest:
            result.error, result.own = numbers.converted / numbers.largest, numbers.original / numbers.largest
    verdicts = Counter(check.verdict.name for check in runs.checks.values())
    if certify:
        judged = (certify_layer(*pairs[path], check)[1] for path, check in runs.checks.items())
        verdicts = Counter(verdict.name for verdict in judged)
    result.verdicts = dict(verdicts)
    with torch.no_grad():
        original, attention = interleaved(
            torch.device("cpu"), lambda: call_with(net, x), lambda: call_with(converted, x), rounds=ROUNDS
        )
    result.ratio = attention.median / original.median
    return result


def main() -> int:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description="Networks of packages that people use.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names, such as monai; all by default")
    parser.add_argument("--certify", action="store_true", help="certify every layer for all inputs")
    parser.add_argument("--json", type=Path, help="write the rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    chosen = [name for name in ZOO if not options.names or name.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"no network is called so; there are {', '.join(ZOO)}")
    results = []
    for name in chosen:
        with isolated(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(row(name, options.certify))
        print(results[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    tried = [result for result in results if not result.skipped]
    layers, left = sum(result.converted for result in tried), sum(len(result.left) for result in tried)
    print(f"{len(tried)} of {len(results)} networks: {layers} convolutions converted, {left} left")
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
