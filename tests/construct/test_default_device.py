"""The public functions compute where the layer is, in its type, whatever torch's default device and default type are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
import verify
from construct.attention import EXECUTIONS
from construct.modules import learning

with torch.random.fork_rng(devices=[]):
    torch.manual_seed(0)
    CONV, TRANSPOSED = nn.Conv2d(2, 3, 3, padding=1), nn.ConvTranspose2d(2, 3, 3, stride=2)
    CIRCULAR, X = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), torch.randn(1, 2, 6, 6)
LAYER, SOFT = construct.conv_to_mhsa(CONV), construct.conv_to_mhsa(CONV, alpha=3.0)
STOCK = construct.to_torch_mha(LAYER, (6, 6))


def saved(path: Path) -> torch.Tensor:
    construct.save(LAYER, path)
    return construct.load(path)(X)


def audited(attention: Any) -> str:
    return str(verify.audit(attention, (6, 6), in_channels=2)).splitlines()[0]


CALLS: dict[str, Callable[[Path], Any]] = {
    **{name: lambda _, name=name: construct.conv_to_mhsa(CONV, execution=name)(X) for name in EXECUTIONS},
    "transposed": lambda _: construct.conv_to_mhsa(TRANSPOSED)(X),
    "circular": lambda _: construct.conv_to_mhsa(CIRCULAR)(X),
    "parabola": lambda _: construct.conv_to_mhsa(CONV, encoding="parabola")(X),
    "rank": lambda _: construct.conv_to_mhsa(CONV, head_dim="rank")(X),
    "soft": lambda _: SOFT(X),
    "convert": lambda _: construct.convert(nn.Sequential(CONV))(X),
    "probabilities": lambda _: LAYER.attention_probabilities(X),
    "weight": lambda _: LAYER.weight,
    "learned": lambda _: learning.learned_quadratic(construct.conv_to_mhsa(CONV, alpha=1.0))(X),
    "covariance": lambda _: learning.with_covariance(construct.conv_to_mhsa(CONV))(X),
    "to_torch_mha": lambda _: construct.to_torch_mha(LAYER, (6, 6))(X),
    "from_torch_mha": lambda _: construct.from_torch_mha(STOCK).weight,
    "save": lambda folder: saved(folder / "layer.pt"),
    "safetensors": lambda folder: saved(folder / "layer.safetensors"),
    "compare": lambda _: verify.compare(CONV, LAYER, X),
    "certify": lambda _: verify.certify(CONV, LAYER, grid=(6, 6)).verdict,
    "certify soft": lambda _: verify.certify(CONV, SOFT, grid=(6, 6)).bound.tolist(),
    "certify transposed": lambda _: verify.certify(TRANSPOSED, construct.conv_to_mhsa(TRANSPOSED), grid=(4, 4)).verdict,
    "audit": lambda _: audited(LAYER),
    "audit of a stock layer": lambda _: audited(STOCK),
    "audit of a function": lambda _: audited(lambda x: x + torch.zeros(x.shape, dtype=x.dtype)),
    "lemma 2": lambda _: str(verify.prove_lemma2(1)),
    "report": lambda folder: bool(verify.write_report(folder / "page.html", CONV, LAYER)),
}


@contextmanager
def set_to(setter: Callable[[Any], None], value: Any, usual: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(usual)


DEFAULTS: dict[str, Callable[[], Any]] = {
    "inside a device": lambda: torch.device("meta"),
    "a default device": lambda: set_to(torch.set_default_device, "meta", None),
    "float64": lambda: set_to(torch.set_default_dtype, torch.float64, torch.float32),
    "float16": lambda: set_to(torch.set_default_dtype, torch.float16, torch.float32),
}


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("name", CALLS)
def test_defaults_change_nothing(name: str, default: str, tmp_path: Path) -> None:
    output = []
    for block in (nullcontext, DEFAULTS[default]):
        with block(), torch.no_grad():
            output.append(CALLS[name](tmp_path))
    expected, actual = output
    if isinstance(expected, torch.Tensor):
        assert (actual.device, actual.dtype) == (expected.device, expected.dtype)
        assert torch.equal(actual, expected)
    else:
        assert actual == expected
