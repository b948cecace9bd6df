"""Convolutions whose tensors torch computes from others: ``certify`` accepts what ``convert`` accepts, and says what it judges."""

import copy
import warnings
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from construct import MHSA, UnsupportedLayer, conv_to_mhsa, convert
from construct.modules.folding import parametrization_names
from construct.modules.folding import plain_convolution as plain
from verify.argument.certification import certify
from verify.layers.fields import digests
from verify.oracle import Unreadable


class Renamed(nn.Conv2d):
    """Harmless: no call uses these attributes."""

    kind = "mine"

    def __init__(self, *sizes: Any):
        super().__init__(*sizes)
        self.kind = "yours"

    def extra_repr(self) -> str:
        return "mine"

    def helper(self) -> int:
        return 1

    def train(self, mode: bool = True) -> Any:
        return super().train(mode)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)


class Doubling(nn.Module):
    """A user-defined parametrization."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


class EveryOther(prune.BasePruningMethod):
    """A user-defined pruning method, which only says what to keep."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: torch.Tensor, default_mask: torch.Tensor) -> torch.Tensor:
        mask = default_mask.clone()
        mask.view(-1)[::2] = 0
        return mask


def old(function: str, **options: Any) -> Callable[[Any], Any]:
    """One of torch's deprecated functions."""

    def reparametrized(conv: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return getattr(nn.utils, function)(conv, **options)

    return reparametrized


def both_pruned(conv: Any) -> Any:
    prune.random_unstructured(conv, "weight", 0.3)
    prune.ln_structured(conv, "weight", 0.3, 2, 0)
    return prune.random_unstructured(conv, "bias", 0.3)


def doubled(conv: Any) -> Any:
    parametrize.register_parametrization(conv, "weight", Doubling())
    return parametrize.register_parametrization(conv, "bias", Doubling())


def held_as_a_tensor(conv: Any) -> Any:
    weight = conv.weight.detach()
    del conv.weight
    conv.weight = weight
    return conv


def with_the_other_sign(conv: Any) -> Any:
    conv.weight = nn.Parameter(torch.ops.aten._neg_view(conv.weight.detach()))
    return conv


def materialised(conv: Any) -> Any:
    lazy = nn.LazyConv2d(conv.out_channels, conv.kernel_size)
    lazy(torch.zeros(1, conv.in_channels, 5, 5))
    return lazy


WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda conv: conv, ""),
    "a subclass": (lambda conv: Renamed(3, 4, 3), ""),
    "a tensor": (held_as_a_tensor, ""),
    "a negative view": (with_the_other_sign, ""),
    "lazy": (materialised, ""),
    "weight_norm": (old("weight_norm"), "WeightNorm of weight"),
    "weight_norm of all": (old("weight_norm", dim=None), "WeightNorm of weight"),
    "weight_norm of the bias": (old("weight_norm", name="bias"), "WeightNorm of bias"),
    "spectral_norm": (old("spectral_norm"), "SpectralNorm of weight"),
    "spectral_norm in training": (lambda conv: old("spectral_norm")(conv).train(), "SpectralNorm of weight"),
    "pruning": (lambda conv: prune.l1_unstructured(conv, "weight", 0.5), "L1Unstructured of weight"),
    "pruning of both": (both_pruned, "PruningContainer of weight, RandomUnstructured of bias"),
    "pruning of factors": (
        lambda conv: prune.random_unstructured(old("weight_norm")(conv), "weight_v", 0.3),
        "WeightNorm of weight, RandomUnstructured of weight_v",
    ),
    "pruning by a rule": (lambda conv: EveryOther.apply(conv, "weight") and conv, "EveryOther of weight"),
    "parametrized weight_norm": (parametrizations.weight_norm, "WeightNorm of weight"),
    "parametrized spectral_norm": (parametrizations.spectral_norm, "SpectralNorm of weight"),
    "parametrized spectral_norm in training": (
        lambda conv: parametrizations.spectral_norm(conv).train(),
        "SpectralNorm of weight",
    ),
    "orthogonal": (parametrizations.orthogonal, "Orthogonal of weight"),
    "parametrized": (doubled, "Doubling of weight, Doubling of bias"),
    "a chain": (
        lambda conv: parametrizations.spectral_norm(doubled(conv), "weight").eval(),
        "Doubling of weight, SpectralNorm of weight, Doubling of bias",
    ),
}


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of a module's state dict."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: nn.Conv2d(3, 4, 3),
    "grouped, circular": lambda: nn.Conv2d(4, 4, 2, groups=2, padding=1, padding_mode="circular"),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 3),
}


@pytest.mark.nasty(26)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_convert_takes_certify_takes(way: str, kind: str, caplog: pytest.LogCaptureFixture):
    """With the same numbers, those of eval mode; both say what was folded, and the module is unchanged."""
    reparametrize, worked_out = WAYS[way]
    conv = reparametrize(KINDS[kind]())
    before, training = state(conv), conv.training
    with torch.no_grad():  # what learned in the convolution learns in the layer all the same
        layer: Any = convert(nn.ModuleDict({"block": conv})).get_submodule("block")
    certificate = certify(conv, layer, grid=(5, 5))
    assert certificate.verdict.name == "PROVED", certificate
    assert certificate.conv_sha256 == digests(plain(conv), ("weight", "bias"))
    lines = [line for line in certificate.assumptions if line.startswith("eval mode: ")]
    line = f"eval mode: the convolution's numbers are those of eval mode, worked out by {worked_out}"
    assert lines == ([line] if worked_out else [])
    names = parametrization_names(conv)
    of_container = "RandomUnstructured of weight, LnStructured of weight"
    assert ", ".join(names) == worked_out.replace("PruningContainer of weight", of_container)
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"block: parametrization folded into its eval-mode weight: {', '.join(names)}"] * bool(names)
    assert layer.training == conv.training == training
    assert before.keys() == state(conv).keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(conv).items())
    with torch.no_grad():
        layer.b_out[0] += 1e-3
    assert certify(conv, layer, grid=(5, 5)).verdict.name == "REFUTED"
    conv.eval()
    alike, x = plain(conv), torch.randn(1, conv.in_channels, 5, 5)
    assert torch.equal(alike(x), conv(x))
    assert (parametrization_names(alike), plain(alike)) == ((), alike)
    assert layer.w_val.requires_grad or not worked_out
    conv.requires_grad_(False)
    frozen: Any = convert(conv)
    assert not frozen.w_val.requires_grad or way == "pruning of factors"  # its weight_v is of an earlier call
    assert not frozen.b_out.requires_grad


@pytest.mark.nasty(26)
@pytest.mark.parametrize("remedy", ["call it once", "make its parameters plain"])
def test_a_weight_that_the_next_call_changes_is_refused_and_the_remedy_works(remedy: str):
    """weight_norm reads weight_v before the pruning writes it: after a training step the first call is a step late."""
    conv = prune.random_unstructured(old("weight_norm")(nn.Conv2d(3, 4, 3)), "weight_v", 0.3)
    with torch.no_grad():
        conv.weight_v_orig.mul_(torch.rand(4, 3, 3, 3))
    with pytest.raises(UnsupportedLayer, match=f"its weight is another one at each of its next two calls.*{remedy}"):
        convert(conv)
    x = torch.randn(1, 3, 5, 5)
    if remedy == "call it once":
        conv(x)
    else:
        prune.remove(conv, "weight_v")
    layer: Any = convert(conv)
    for _ in range(2):
        assert certify(conv, layer, grid=(5, 5)).verdict.name == "PROVED"
        conv(x)


def a_weight_of_an_earlier_call(conv: Any) -> MHSA:
    """The attribute that weight_norm stores is not what the next call uses."""
    old("weight_norm")(conv)
    stale: Any = nn.Conv2d(3, 4, 3)
    stale.load_state_dict({"weight": conv.weight.detach(), "bias": conv.bias.detach()})
    with torch.no_grad():
        conv.weight_g *= 2
    assert torch.equal(conv.weight, stale.weight)
    return conv_to_mhsa(stale)


def a_weight_put_in_by_hand(conv: Any) -> MHSA:
    old("weight_norm")(conv)
    conv.weight = conv.weight.detach() + 1
    other = nn.Conv2d(3, 4, 3)
    other.load_state_dict({"weight": conv.weight, "bias": conv.bias.detach()})
    return conv_to_mhsa(other)


@pytest.mark.parametrize("lie", [a_weight_of_an_earlier_call, a_weight_put_in_by_hand])
def test_what_an_earlier_call_left_behind_is_not_certified(lie: Callable[[Any], MHSA]):
    conv = nn.Conv2d(3, 4, 3)
    layer = lie(conv)
    assert certify(conv, layer, grid=(5, 5)).verdict.name == "REFUTED"
    assert certify(conv, conv_to_mhsa(conv), grid=(5, 5)).verdict.name == "PROVED"


def hook_of(conv: Any) -> Any:
    (hook,) = conv._forward_pre_hooks.values()
    return hook


def a_method_replaced(conv: Any) -> None:
    hook = hook_of(old("weight_norm")(conv))
    right = hook.compute_weight
    hook.compute_weight = lambda module: right(module) * 2


def a_subclass_of_the_hook(conv: Any) -> None:
    hook = hook_of(old("spectral_norm")(conv))

    class Doubled(type(hook)):
        def compute_weight(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return 2 * super().compute_weight(*args, **kwargs)

    hook.__class__ = Doubled


def a_pruning_that_adds(conv: Any) -> None:
    prune.random_unstructured(conv, "weight", 0.3)
    hook_of(conv).apply_mask = MethodType(lambda self, module: module.weight_orig + 1, hook_of(conv))


def a_pruning_of_another_class(conv: Any) -> None:
    class Adding(EveryOther):
        def apply_mask(self, module: Any) -> torch.Tensor:
            return module.weight_orig + 1

    Adding.apply(conv, "weight")


def a_pruning_of_whatever_a_property_says(conv: Any) -> None:
    class Aiming(EveryOther):
        @property
        def _tensor_name(self) -> str:  # type: ignore[override]
            return self.aim

        @_tensor_name.setter
        def _tensor_name(self, name: str) -> None:
            self.aim = name

    Aiming.apply(conv, "weight")


def a_pruned_stride(conv: Any) -> None:
    prune.random_unstructured(conv, "weight", 0.3)
    hook_of(conv)._tensor_name = "stride"


def a_hook_that_says_its_arguments(conv: Any) -> None:
    old("weight_norm")(conv)
    (number,) = conv._forward_pre_hooks
    conv._forward_pre_hooks_with_kwargs[number] = True


def another_hook_besides(conv: Any) -> None:
    old("weight_norm")(conv)
    conv.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def a_property_of_ones_own(conv: Any) -> None:
    parametrize.register_parametrization(conv, "weight", nn.Identity())
    right = type(conv).weight.fget
    type(conv).weight = property(lambda self: right(self))


class Liar(torch.Tensor):
    """A tensor subclass that might do anything."""


def a_list_of_parametrizations(conv: Any) -> None:
    """A dictionary that imitates torch's does not make the weight a parametrized one."""
    conv.parametrizations = nn.ModuleDict({"weight": nn.Identity()})
    conv._parameters["weight"] = conv.weight.detach().as_subclass(Liar)


def a_parametrization_that_throws(conv: Any) -> None:
    class Thrower(nn.Module):
        ready = True

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            if not self.ready:
                raise RuntimeError("not\ntoday")
            return value

    parametrize.register_parametrization(conv, "weight", Thrower())
    conv.parametrizations.weight[0].ready = False


def a_parametrization_by_chance(conv: Any) -> None:
    class Chance(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value + torch.rand(())

    parametrize.register_parametrization(conv, "weight", Chance(), unsafe=True)


HOOKS = [
    a_method_replaced,
    a_subclass_of_the_hook,
    a_pruning_that_adds,
    a_pruning_of_another_class,
    a_pruning_of_whatever_a_property_says,
    a_pruned_stride,
]


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        *((plant, "has hooks") for plant in (*HOOKS, a_hook_that_says_its_arguments, another_hook_besides)),
        (a_property_of_ones_own, "has a weight of its own"),
        (a_list_of_parametrizations, "weight of Conv2d is a Liar"),
        (a_parametrization_that_throws, "cannot be worked out: RuntimeError: not today"),
        (a_parametrization_by_chance, "is another whenever it is read"),
    ],
)
def test_what_works_a_tensor_out_in_a_way_of_its_own_is_refused(plant: Callable[[Any], None], complaint: str):
    conv = nn.Conv2d(3, 4, 3)
    layer = conv_to_mhsa(copy.deepcopy(conv))
    plant(conv)
    with pytest.raises(Unreadable, match=complaint) as caught:
        certify(conv, layer, grid=(5, 5))
    assert "\n" not in str(caught.value)
