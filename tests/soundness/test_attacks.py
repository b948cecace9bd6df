"""Attacks that once obtained a false PROVED or broke the certifier are all refused."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from broken import break_execution
from construct import MHSA, MHSAWeights, conv_to_mhsa
from construct.attention import EXECUTIONS
from construct.encoding.encodings import Parabola
from construct.execution.shifts import maps
from construct.execution.shifts.windows import Block
from rechecked import Files
from truths import permuted, sharp_bound
from verify.argument.certification import certify
from verify.layers.fields import TENSORS, Unreadable


def frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def pair(outputs: int = 3) -> tuple[nn.Conv2d, MHSA]:
    conv = nn.Conv2d(2, outputs, 3, padding=1)
    return conv, conv_to_mhsa(conv)


class Doubled(nn.Conv2d):
    """Computes another result on one input in a million."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * (2 if bool((input == 0.123).any()) else 1)


def _replaced(conv: Any) -> None:
    right = conv._conv_forward
    conv._conv_forward = lambda *args: right(*args) * 2


class Called(nn.Conv2d):
    """Torch's forward, but with its own ``__call__``."""

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().__call__(input) * 2


class Mixin(nn.Module):
    """Precedes torch's Module in the method resolution order."""

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().__call__(input) * 2


class Mixed(nn.Conv2d, Mixin):
    """Its own class body overrides nothing."""


class Stretched(nn.ConvTranspose2d):
    """Uses another output padding than its field says."""

    def _output_padding(self, *args: Any, **kwargs: Any) -> list[int]:
        return [1, 1]


def test_an_output_padding_of_its_own_is_refused():
    conv, layer = (kind(2, 2, 3, stride=2) for kind in (Stretched, nn.ConvTranspose2d))
    with pytest.raises(Unreadable, match="_output_padding"):
        certify(conv, conv_to_mhsa(layer), grid=(4, 4))


class Later(nn.Conv2d):
    """Another padding from the thousandth reading on; what is set lies elsewhere."""

    reads = 0

    @property
    def padding(self) -> tuple[int, int]:  # type: ignore[override]
        Later.reads += 1
        return self.first if Later.reads < 1000 else (0, 2)

    @padding.setter
    def padding(self, value: tuple[int, int]) -> None:
        self.first = value


class Undeletable:
    """Python takes what can delete for a property, which comes before the instance's own, also if it cannot set."""

    def __get__(self, conv: Any, kind: Any = None) -> tuple[int, int]:
        return (1, 1)

    def __delete__(self, conv: Any) -> None: ...


class Hidden(nn.Conv2d):
    """Its padding is not the one that was set."""

    padding = Undeletable()  # type: ignore[assignment]


def _later(conv: Any) -> None:
    conv.first = vars(conv).pop("padding")
    conv.__class__ = Later


OTHER_CONVOLUTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "forward": lambda conv, layer: setattr(conv, "__class__", Doubled),
    "hook": lambda conv, layer: conv.register_forward_hook(
        lambda module, args, y: y * (1 + bool((args[0] == 0.123).any()))
    ),
    "pre-hook": lambda conv, layer: conv.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "_conv_forward": lambda conv, layer: _replaced(conv),
    "pads": lambda conv, layer: vars(conv).update(
        padding_mode="circular", _reversed_padding_repeated_twice=[0, 2, 0, 2]
    ),
    "transposed": lambda conv, layer: vars(conv).update(transposed=True, padding_mode="zeros"),
}


def test_a_property_that_no_call_reads_is_no_override():
    class Measured(nn.Conv2d):
        @property
        def fan_in(self) -> int:
            return self.weight[0].numel()

    conv = Measured(2, 3, 3)
    assert certify(conv, conv_to_mhsa(conv), grid=(4, 4)).verdict.name == "PROVED"


def _own_detach(module: Any, name: str) -> None:
    """A tensor that tells another number than is in its memory."""
    tensor = getattr(module, name)
    before = tensor.detach().clone()
    tensor.data.view(-1)[0] += 1
    tensor.detach = lambda: before


def _other_bias(conv: Any, **bias: Any) -> None:
    del conv.bias
    vars(conv).update(bias)


METHODS, NO_BIAS, GEOMETRY = "has methods of its own", "Conv2d has no tensor for a bias, nor None", "padding is "
OTHER_FIELDS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a call of its own": (lambda conv, layer: setattr(conv, "__class__", Called), "__call__"),
    "a call of a class before torch's": (lambda conv, layer: setattr(conv, "__class__", Mixed), "__call__"),
    "a padding that changes": (lambda conv, layer: _later(conv), "Later has a padding of its own"),
    "a hidden padding": (lambda conv, layer: setattr(conv, "__class__", Hidden), "Hidden has a padding of its own"),
    "a method of the weight": (lambda conv, layer: _own_detach(conv, "weight"), f"weight of .* {METHODS}"),
    "a method of w_out": (lambda conv, layer: _own_detach(layer, "w_out"), f"w_out of .* {METHODS}"),
    "no bias": (lambda conv, layer: _other_bias(conv), NO_BIAS),
    "a number as bias": (lambda conv, layer: _other_bias(conv, bias=3.0), "bias of Conv2d is a float"),
    "an array as bias": (lambda conv, layer: _other_bias(conv, bias=np.zeros(3)), "bias of Conv2d is a ndarray"),
    "an array as padding": (lambda conv, layer: vars(conv).update(padding=np.array([1, 1])), GEOMETRY),
    "a tensor as transposed": (lambda conv, layer: vars(conv).update(transposed=torch.tensor([0, 0])), GEOMETRY),
    "a number as transposed": (lambda conv, layer: vars(conv).update(transposed=0), GEOMETRY),
    "a bias that changes when it is read": (
        lambda conv, layer: parametrize.register_parametrization(conv, "bias", Drifting()),
        "bias of ParametrizedConv2d is another",
    ),
}


class OnOneImage(MHSA):
    """Correct on every batch except those of one image."""

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        return super().forward(input, output_size) + (len(input) == 1)


def _own_forward(layer: MHSA) -> None:
    right = layer.forward
    layer.forward = lambda input, output_size=None: right(input) + (len(input) == 1)


def _own_scores(layer: MHSA) -> None:
    right = layer.position_vector
    layer.position_vector = lambda: right() * 1


class OtherTensor(torch.Tensor):
    """A tensor subclass that might do anything."""


class Elsewhere(MHSA):
    """May take another geometry at any reading."""

    @property
    def geometry(self) -> Any:  # type: ignore[override]
        return self.first


def _a_property(layer: MHSA) -> None:
    layer.first = vars(layer).pop("geometry")
    layer.__class__ = Elsewhere


PLANTED: dict[str, Callable[[Any, Any], Any]] = {
    "a subclass": lambda conv, layer: setattr(layer, "__class__", OnOneImage),
    "a forward of its own": lambda conv, layer: _own_forward(layer),
    "scores of its own": lambda conv, layer: _own_scores(layer),
    "a hook": lambda conv, layer: layer.register_forward_hook(lambda module, args, y: y * (1 + (len(args[0]) == 1))),
    "a pre-hook": lambda conv, layer: layer.register_forward_pre_hook(
        lambda module, args: (args[0].roll(1, -1) if len(args[0]) == 1 else args[0],)
    ),
    "a head less": lambda conv, layer: setattr(layer, "heads", 8),
    "another anchor": lambda conv, layer: vars(layer.geometry).update(anchor=(0, 0)),
    "a tensor subclass": lambda conv, layer: layer._parameters.update(
        w_val=layer.w_val.detach().as_subclass(OtherTensor)
    ),
    "a shadowed tensor": lambda conv, layer: vars(layer).update(b_out=layer.b_out.detach().clone()),
    "a property": lambda conv, layer: _a_property(layer),
    "an encoding of its own": lambda conv, layer: vars(layer).update(
        own_encoding=Parabola((7, 1))
    ),  # a call takes it before a radix
    "no heads": lambda conv, layer: delattr(layer, "heads"),
    "no geometry": lambda conv, layer: delattr(layer, "geometry"),
    "no execution": lambda conv, layer: delattr(layer, "_execution"),
    "no v": lambda conv, layer: setattr(layer, "v", None),
}


class Lying(OrderedDict[Any, Any]):
    """Python's own look-up, and torch's call, find more than it tells."""

    def __iter__(self) -> Any:
        return iter(())

    def values(self) -> Any:
        return ()


class Reticent(type):
    """Its classes do not tell all classes that they derive from."""

    __mro__ = property(lambda cls: nn.Conv2d.__mro__)  # type: ignore[assignment]


class Key(str):
    """Is another name whenever it likes."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class Index(int):
    """May be another number to each who asks."""


class Text(str):
    """As :class:`Index`."""


class Pair(tuple[int, int]):
    """As :class:`Index`."""


class Shy:
    """A property that only the interpreter sees."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__set__", "__delete__"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def __get__(self, conv: Any, kind: Any = None) -> tuple[int, int]:
        return (1, 1)

    def __set__(self, conv: Any, value: Any) -> None: ...


def _derived(conv: Any, kind: type = type, **own: Any) -> None:
    conv.__class__ = kind("Derived", (nn.Conv2d,), own)


def _forged(conv: Any, kind: type = property) -> None:
    parametrize.register_parametrization(conv, "weight", nn.Identity())
    code = (lambda self: self.parametrizations.weight.original).__code__
    forged = FunctionType(code, vars(parametrize))  # type: ignore[arg-type]
    type(conv).weight = kind(forged if kind is property else vars(type(conv))["weight"].fget)


def _lying_prehooks(conv: Any) -> None:
    conv._forward_pre_hooks[0] = lambda module, args: (args[0] * 2,)
    conv._forward_pre_hooks.values = lambda: ()


def _own_mask(conv: Any) -> None:
    prune.identity(conv, "weight")
    kind: Any = type("Mask", (torch.Tensor,), {"to": lambda self, **_: torch.ones(3, 2, 3, 3)})
    conv._buffers["weight_mask"] = conv.weight_mask.as_subclass(kind)


def _lying_norm(conv: Any) -> None:
    nn.utils.weight_norm(conv)
    (hook,) = conv._forward_pre_hooks.values()
    hook.__dict__ = Lying(vars(hook))


def _odd_norm(conv: Any) -> None:
    nn.utils.spectral_norm(conv)
    (hook,) = conv._forward_pre_hooks.values()
    hook.dim = Index(0)


UNSEEN: dict[str, Callable[[Any, Any], Any]] = {
    "a property for all attributes": lambda conv, layer: _derived(conv, __dict__=property(lambda self: {})),
    "another dict of attributes": lambda conv, layer: setattr(conv, "__dict__", Lying(vars(conv))),
    "another dict of parameters": lambda conv, layer: vars(conv).update(_parameters=Lying(conv._parameters)),
    "another dict of hooks": lambda conv, layer: vars(conv).update(_forward_pre_hooks=Lying({0: print})),
    "hooks with methods of their own": lambda conv, layer: _lying_prehooks(conv),
    "a name that is none": lambda conv, layer: conv._parameters.update({Key("weight"): conv.bias}),
    "a metaclass": lambda conv, layer: _derived(conv, Reticent, forward=lambda self, x: x),
    "a shy property": lambda conv, layer: _derived(conv, padding=Shy()),
    "torch's property, forged": lambda conv, layer: _forged(conv),
    "torch's property, derived": lambda conv, layer: _forged(conv, type("Derived", (property,), {})),
    "another dict of a tensor": lambda conv, layer: setattr(conv.weight, "__dict__", Lying(detach=print)),
    "another dict of a hook": lambda conv, layer: _lying_norm(conv),
    "a hook that turns by the day": lambda conv, layer: _odd_norm(conv),
    "a mask of another class": lambda conv, layer: _own_mask(conv),
    "an odd dilation": lambda conv, layer: setattr(conv, "dilation", (1, Index(1))),
    "an odd stride": lambda conv, layer: setattr(conv, "stride", Pair((1, 1))),
    "an odd mode": lambda conv, layer: setattr(conv, "padding_mode", Text("zeros")),
    "odd pads": lambda conv, layer: vars(layer.geometry).update(stride=Pair((1, 1))),
    "another dict of the geometry": lambda conv, layer: vars(layer).update(
        geometry=_with_fields(layer.geometry, Lying(vars(layer.geometry)))
    ),
    "odd heads": lambda conv, layer: setattr(layer, "heads", Index(9)),
}


def _with_fields(geometry: Any, fields: Any) -> Any:
    object.__setattr__(geometry, "__dict__", fields)
    return geometry


REFUSED = OTHER_FIELDS | {name: (change, ".") for name, change in (OTHER_CONVOLUTIONS | PLANTED | UNSEEN).items()}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*_norm:FutureWarning")
def test_what_may_compute_something_else_is_refused(name: str):
    conv, layer = pair()
    change, reason = REFUSED[name]
    change(conv, layer)
    with pytest.raises(Unreadable, match=reason) as caught:
        certify(conv, layer, grid=(4, 4))
    assert "\n" not in str(caught.value)


class Negating(TorchFunctionMode):
    """Tells other numbers than are in memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.Tensor.detach else result


class Watching(TorchDispatchMode):
    """May change the result of any operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Negating, Watching])
def test_what_is_read_within_a_mode_of_torch_is_refused(mode: Any):
    conv, layer = pair()
    with mode(), pytest.raises(Unreadable, match="a mode of torch is active"):
        certify(conv, layer, grid=(4, 4))
    with torch.device("cpu"):  # a mode too, but torch's own
        assert certify(conv, layer, grid=(4, 4)).verdict.name == "PROVED"


def test_global_hooks_are_refused():
    conv, layer = pair()
    for register in (register_module_forward_hook, register_module_forward_pre_hook):
        handle = register(lambda *args: None)
        try:
            with pytest.raises(Unreadable, match="global forward hooks"):
                certify(conv, layer, grid=(4, 4))
        finally:
            handle.remove()
    assert certify(conv, layer, grid=(4, 4)).verdict.name == "PROVED"


class Drifting(nn.Module):
    """Returns another number from the n-th reading on, or at every reading."""

    def __init__(self, after: int = 0):
        super().__init__()
        self.after, self.reads = after, 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.reads += 1
        return value + 1e-6 * max(0, self.reads - self.after)


class Stepping(Drifting):
    """Returns one number up to the n-th reading, and another afterwards."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.reads += 1
        return value + (self.reads > self.after)


class Moody(nn.Module):
    """The identity in eval mode, another map in training mode."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value if self.training else value


@pytest.mark.parametrize("kind", [Drifting, Moody, nn.Identity])
@pytest.mark.parametrize("name", TENSORS)
def test_an_attention_layer_that_is_worked_out_from_others_is_refused(name: str, kind: type[nn.Module]):
    conv, layer = pair()
    parametrize.register_parametrization(layer, name, kind())
    reason = f"{name} of ParametrizedMHSA is worked out from other parameters; settle it first"
    with pytest.raises(Unreadable, match=reason):
        certify(conv, layer.eval(), grid=(4, 4))


def test_numbers_that_change_during_the_runs_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Also between runs: the hashed numbers are the judged ones, and are unchanged after the last run."""
    conv, layer = pair()
    stepping = Stepping(after=10**6)
    parametrize.register_parametrization(conv, "weight", stepping)
    stepping.after = stepping.reads + 4
    with pytest.raises(Unreadable, match="changed while"):
        certify(conv, layer, grid=(4, 4))
    for change in (
        lambda layer: layer.w_val.data.mul_(1 + 2.0**-20),
        lambda layer: layer.u.data.fill_(-0.0),  # it was 0
    ):

        def changing(run: Any, layer: MHSA, *args: Any, change: Any = change) -> torch.Tensor:
            y = run(layer, *args)
            change(layer)
            return y

        with monkeypatch.context() as patch:
            break_execution(patch, "dense", changing)
            with pytest.raises(Unreadable, match="changed while"):
                certify(*pair(), grid=(4, 4))


def test_numbers_that_the_layer_would_round_first_are_refused():
    """W_out is float64 and W_val float32: the product of the stored numbers is the tap, that of the rounded ones is 0."""
    conv = nn.Conv1d(1, 1, 1, bias=False)
    conv.weight.data.fill_(2.0**-40)
    layer = conv_to_mhsa(conv)
    layer.w_val = frozen(torch.full_like(layer.w_val, 2.0**110))
    layer.w_out = frozen(torch.full(layer.w_out.shape, 2.0**-150, dtype=torch.float64))
    with pytest.raises(Unreadable, match=r"w_out is torch\.float64"):
        certify(conv, layer, grid=(4,))
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 1))
    layer.b_out = frozen(layer.b_out.double())
    with pytest.raises(Unreadable, match=r"b_out is torch\.float64"):
        certify(nn.Conv1d(1, 1, 1), layer, grid=(4,))


def test_content_terms_that_are_zero_times_infinity_are_refused():
    """u of one head and W_key of another are nonzero: every term is 0, but X W_key may overflow on one input in a million.

    Ours evaluates no term of these heads; an execution that did would make NaN of 0·∞.
    """
    conv = nn.Conv1d(20, 1, 2, bias=False)
    layer = conv_to_mhsa(conv)
    signs = torch.where(torch.rand(20, generator=torch.Generator().manual_seed(5)) < 0.5, -1.0, 1.0)
    layer.u.data[0], layer.w_key.data[1] = 1, 3e37 * signs[:, None]
    with pytest.raises(ValueError, match="beyond the largest float32"):
        certify(conv, layer, grid=(4,))
    layer.w_key.data /= 1e6  # harmless
    assert certify(conv, layer, grid=(4,)).verdict.name == "PROVED"


@pytest.mark.parametrize(
    ("on", "loud"),
    [
        (["w_qry"], True),  # it multiplies the positions
        (["w_qry", "w_key"], True),
        (["u", "w_key"], True),
        (["w_key"], False),
        (["u"], False),
    ],
    ids=str,
)
def test_content_too_small_for_any_run_to_show_is_not_proved(on: list[str], loud: bool):
    """Content in the second head alone is detected; content that is multiplied only by zeros is silent."""
    conv = nn.Conv1d(2, 3, 3, padding=1)
    layer = conv_to_mhsa(conv)
    for name in on:
        getattr(layer, name).data[1] = 2.0**-40
    verdict = certify(conv, layer, grid=(5,)).verdict
    assert verdict.name == ("UNDECIDED" if loud else "PROVED")
    assert loud == ("attention by content in head 1" in verdict.sentence)


@pytest.mark.parametrize("name", ["w_val", "w_qry"])
def test_what_overflows_on_the_way_is_refused(name: str):
    """Values that w_out makes small again; queries, multiplied only by zeros, of a head that carries nothing."""
    conv = nn.Conv1d(1, 1, 1, bias=False)
    conv.weight.data.fill_(name == "w_val")
    layer = conv_to_mhsa(conv)
    for part, power in (("w_val", 0), ("w_out", -120), (name, 120)):
        getattr(layer, part).data.fill_(2.0**power)
    if name == "w_qry":
        layer.w_out.data.zero_()
        layer.w_key_pos.data.zero_()
    assert certify(conv, layer, grid=(2,), input_bound=2.0**6).verdict.name == "PROVED"
    with pytest.raises(ValueError, match="beyond the largest float32"):
        certify(conv, layer, grid=(2,), input_bound=2.0**8)


@pytest.mark.parametrize("power", [60, 64])
def test_factors_that_overflow_when_they_are_folded_are_refused(power: int):
    """Two cancelling heads: folded, each exceeds the largest number, and their difference is NaN."""
    conv = nn.Conv1d(1, 1, 1, bias=False)
    conv.weight.data.fill_(0)
    layer = permuted(conv_to_mhsa(conv), [0, 0])
    layer.w_val.data[:] = 2.0**power
    layer.w_out.data[:] = 2.0**power
    layer.w_out.data[1] *= -1
    if power == 60:
        assert certify(conv, layer, grid=(2,), input_bound=2.0**-60).verdict.name == "PROVED"
        return
    with pytest.raises(ValueError, match="beyond the largest float32"):
        certify(conv, layer, grid=(2,), input_bound=2.0**-60)


def test_scores_that_overflow_are_undecided():
    """α = 2^1010 is exact and one-hot, but α‖δ‖² is not finite on a long grid; small probes cannot see it."""
    conv = nn.Conv1d(1, 1, 21, padding=10, dtype=torch.float64)
    layer = conv_to_mhsa(conv, alpha=2.0**1010)
    certificate = certify(conv, layer, grid=(4000,))
    assert certificate.verdict.name == "UNDECIDED"
    assert "overflow" in certificate.verdict.sentence
    assert certify(conv, conv_to_mhsa(conv, alpha=2.0**900), grid=(400,)).verdict.name == "PROVED"


@pytest.mark.parametrize(
    "change", [{"dilation": (4, 4)}, {"padding": (3, 3), "padding_mode": "reflect"}, {"stride": (2, 1)}]
)
def test_a_layer_that_cannot_run_is_judged_and_not_stumbled_over(change: dict):
    conv, layer = pair(2)
    layer.geometry = replace(layer.geometry, **change)
    assert certify(conv, layer, grid=(4, 4)).verdict.name == "REFUTED"


def test_an_execution_that_raises_leaves_it_undecided(monkeypatch: pytest.MonkeyPatch):
    def raises(*args: Any) -> Any:
        raise RuntimeError("no kernel for this")

    break_execution(monkeypatch, "dense", raises)
    certificate = certify(*pair(2), grid=(4, 4))
    assert certificate.verdict.name == "UNDECIDED"
    assert "step 6 (runs)" in certificate.verdict.sentence
    assert "no kernel for this" in certificate.verdict.sentence


@pytest.mark.parametrize(
    ("radix", "refused"),
    [
        *[(radix, True) for radix in ((9,), (7.0, 1.0), (9, 1, 1), "91", (9, True))],
        *[(radix, False) for radix in ([9, 1], (0, 0), (2**70 + 1, 1))],
    ],
    ids=str,
)
def test_a_radix_that_is_none_is_refused_and_one_with_which_nothing_runs_undecided(radix: Any, refused: bool):
    conv = nn.Conv2d(1, 1, 3, padding=1)
    layer = conv_to_mhsa(conv, encoding="parabola")
    layer.radix = radix
    if refused:
        with pytest.raises(Unreadable, match="radix"):
            certify(conv, layer, grid=(4, 4))
    else:
        assert certify(conv, layer, grid=(4, 4)).verdict.name == "UNDECIDED"


def test_want_of_memory_is_noted_but_nothing_run_is_undecided(monkeypatch: pytest.MonkeyPatch):
    def full(*args: Any) -> Any:
        raise MemoryError("needs 1 TiB")

    break_execution(monkeypatch, "dense", full)
    certificate = certify(*pair(2), grid=(4, 4))
    assert certificate.verdict.name == "PROVED"
    assert any(probe["note"] == "needs 1 TiB" for probe in certificate.probes)
    assert not any("dense" in assumption for assumption in certificate.assumptions)
    for name in EXECUTIONS:
        break_execution(monkeypatch, name, full)
    assert certify(*pair(2), grid=(4, 4)).verdict.name == "UNDECIDED"


def test_a_record_without_executions_is_undecided():
    conv = nn.Conv1d(1, 1, 3)
    layer = conv_to_mhsa(conv)
    names = "geometry radix in_channels out_channels kernel_size stride padding padding_mode dilation groups".split()
    names += ["transposed", "output_padding", *dict(layer.named_parameters())]
    bare = type("Bare", (), {name: getattr(layer, name) for name in names})()
    certificate = certify(conv, bare, grid=(5,))
    assert certificate.verdict.name == "UNDECIDED"
    assert "no executions" in certificate.verdict.sentence


@pytest.mark.parametrize("shift", [-1, 0, 1, 2])
def test_a_head_too_many_counts_wherever_it_looks(shift: int):
    """An extra head at another head's tap, or between the taps of a dilated kernel, with weights too small for any run to show."""
    conv = nn.Conv1d(2, 3, 3, dilation=2, padding=2)
    plain = conv_to_mhsa(conv)
    layer = permuted(plain, [*range(plain.heads), 1])  # the last head copies the middle one
    assert certify(conv, plain, grid=(7,)).verdict.name == "PROVED"
    layer.v.data[-1, 1] = -2 * shift * layer.v.data[-1, 0]
    layer.w_out.data[-1] *= 2.0**-40
    certificate = certify(conv, layer, grid=(7,))
    assert certificate.verdict.name == "REFUTED"
    assert certificate.counterexample is not None
    difference = certify(conv, layer, grid=(7,), within=1.0).taps
    assert (0 < difference).all()
    assert (difference < 2.0**-36).all()


@pytest.mark.parametrize(("alpha", "verdict"), [(1024.0, "REFUTED"), (1.0, "UNDECIDED")])
def test_a_counterexample_is_only_given_of_heads_that_are_one_hot(alpha: float, verdict: str):
    """A sharp head off the kernel reads one input; the outputs of a soft head are not rational numbers."""
    conv = nn.Conv1d(1, 1, 3)
    layer = conv_to_mhsa(conv, alpha=alpha)
    layer.v.data[0, 1] = -2 * 3 * layer.v.data[0, 0]
    certificate = certify(conv, layer, grid=(7,))
    assert certificate.verdict.name == verdict
    assert (certificate.counterexample is not None) == (verdict == "REFUTED")


@pytest.mark.parametrize(("alpha", "refuted"), [(1024.0, True), (1.0, False)])
def test_nor_is_one_given_of_soft_heads_that_see_other_padding(alpha: float, refuted: bool):
    """In both layers an output is a sum over all inputs, so no single input can be named."""
    conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)
    circular = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular", bias=False)
    certificate = certify(conv, conv_to_mhsa(circular, alpha=alpha), grid=(7,))
    assert certificate.verdict.name != "PROVED"
    assert (certificate.counterexample is not None) == refuted


@pytest.mark.parametrize(
    ("on", "refuted"), [([], True), (["w_qry"], False), (["u", "w_key"], False), (["w_key"], True)]
)
def test_nor_is_one_given_of_heads_that_attend_by_content(on: list[str], refuted: bool):
    """Positional heads reveal different padding; for content heads it is unknown what they read."""
    conv = nn.Conv1d(1, 1, 3, padding=1)
    layer = conv_to_mhsa(nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"))
    for name in on:
        getattr(layer, name).data.fill_(1)
    layer.b_out.data.copy_(conv.bias)  # type: ignore[arg-type]
    assert (certify(conv, layer, grid=(7,)).counterexample is not None) == refuted


def test_a_head_off_the_kernel_is_on_some_grids_only():
    """With stride 3, a grid of 6 leaves two inputs over; on a grid of 4 the key that these heads want does not exist."""
    conv = nn.Conv1d(1, 1, 1, stride=3, bias=False)
    layer = permuted(conv_to_mhsa(conv), [0, 0, 0])
    layer.v.data[1:, 1] = 2 * 2 * 1024.0
    layer.w_val.data[2] *= -1
    certificate = certify(conv, layer, grid=(6,))
    assert certificate.verdict.name == "UNDECIDED"
    assert "off the padded grid" in certificate.verdict.sentence


def test_in_half_precision_what_rounding_would_excuse_is_still_seen(monkeypatch: pytest.MonkeyPatch):
    """With 75 taps in bfloat16 the rounding bound exceeds the whole bias, but not on the zero input."""
    conv = nn.Conv1d(1, 1, 75, padding=37, dtype=torch.bfloat16)
    conv.bias.data.fill_(0.125)  # type: ignore[union-attr]
    layer = conv_to_mhsa(conv)
    assert certify(conv, layer, grid=(75,)).bound.max() > 0.125
    break_execution(monkeypatch, "dense", lambda run, layer, x, grid: run(layer, x, grid) - layer.b_out.to(x.dtype))
    assert certify(conv, layer, grid=(75,)).verdict.name == "REFUTED"


@pytest.mark.parametrize("grid", [(4, 4), (16, 16), (500, 500)])
def test_a_fault_from_the_second_block_on_is_seen_on_every_grid(grid: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    """On grids that fit into one block, blocks are made smaller."""
    right = maps.blocks

    def late(*args: Any) -> tuple[Block, ...]:
        first, *others = right(*args)
        moved = [replace(b, source=(slice(b.source[0].start - 1, b.source[0].stop - 1), *b.source[1:])) for b in others]
        return first, *(new if new.source[0].start >= 0 else old for new, old in zip(moved, others, strict=True))

    monkeypatch.setattr(maps, "blocks", late)
    assert certify(*pair(2), grid=grid).verdict.name == "REFUTED"


@pytest.mark.parametrize("silent", ["w_val", "w_out"])
@pytest.mark.parametrize("aimed", ["nowhere", "away", "off the grid"])
def test_a_head_that_carries_nothing_may_look_anywhere(silent: str, aimed: str, tmp_path: Path):
    conv = nn.Conv2d(2, 3, 3, padding=1)
    conv.weight.data[:, :, 0, 0] = 0
    layer = conv_to_mhsa(conv)
    getattr(layer, silent).data[0] = 0
    layer.v.data[0] *= {"nowhere": 0, "away": -1, "off the grid": 1}[aimed]
    layer.v.data[0, 1] += {"nowhere": 0, "away": 0, "off the grid": 2**14}[aimed]
    certificate = certify(conv, layer, grid=(4, 5))
    assert certificate.verdict.name == "PROVED", certificate
    assert Files(tmp_path).rechecked(certificate, conv, layer) == "PROVED"
    layer.v.data[0] = torch.finfo(torch.float32).max  # finite in float64; but not twice that far
    layer.w_key_pos.data = layer.w_key_pos.data.double()
    layer.w_key_pos.data[0] = 1e300
    with np.errstate(all="ignore"):
        assert certify(conv, layer, grid=(4, 5)).verdict.name == "UNDECIDED"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_both_orders_of_summation_are_covered(dtype: torch.dtype):
    """Folding the factors first, with rounding at each step, takes D_h + N_h·D_in/groups operations, in NumPy and one by one."""
    rng = np.random.default_rng(0)
    for d_in, d_h, d_out, heads in ((64, 2, 1, 3), (1, 32, 1, 9), (24, 24, 5, 1)):
        conv = nn.Conv1d(d_in, d_out, heads, dtype=dtype, bias=False)
        real = conv_to_mhsa(conv)
        shape = {n: tuple(t.shape) for n, t in real.state_dict().items()}
        w_val = torch.from_numpy(rng.normal(size=(heads, 1, d_in, d_h))).to(dtype)
        w_out = torch.from_numpy(rng.normal(size=(heads, 1, d_h, d_out))).to(dtype)
        tensors = {n: t.clone() for n, t in real.state_dict().items()} | {"w_val": w_val, "w_out": w_out}
        layer = MHSA(real.geometry, MHSAWeights(**tensors))
        assert shape["w_key_pos"] == tuple(layer.w_key_pos.shape)
        x = torch.from_numpy(rng.choice([-1.0, 1.0], size=(1, d_in, heads))).to(dtype)
        bound = sharp_bound(layer, conv, x)[0, :, 0]
        folded = torch.zeros(heads, d_in, d_out, dtype=dtype)
        for k in range(d_h):  # one addition after another
            folded = folded + w_val[:, 0, :, k, None] * w_out[:, 0, None, k]
        y = torch.zeros(d_out, dtype=dtype)
        for h in range(heads):
            for i in range(d_in):
                y = y + x[0, i, h] * folded[h, i]
        fractions = [np.vectorize(Fraction, otypes="O")(t.double().numpy()) for t in (x[0], w_val[:, 0], w_out[:, 0])]
        exact = np.einsum("ih,hik,hko->o", *fractions)
        for o in range(d_out):
            assert abs(Fraction(float(y[o])) - exact[o]) <= Fraction(float(bound[o]))


def test_underflow_in_a_folded_matrix_is_counted():
    """Every product of the two factors is just below half the smallest number, and B is large."""
    conv = nn.Conv1d(1, 1, 1, bias=False, dtype=torch.float32)
    conv.weight.data.fill_(0)
    layer = conv_to_mhsa(conv, head_dim=64)
    layer.w_val.data.fill_(2.0**-75)
    layer.w_out.data.fill_(2.0**-75)
    bound, size = 2.0**100, 64 * 2.0**-150 * 2.0**100
    certificate = certify(conv, layer, grid=(1,), input_bound=bound, within=1.0)
    assert certificate.verdict.name == "PROVED"
    assert certificate.rounding[0] >= size  # the products folded to 0 are lost


class Added(nn.Module):
    """A parametrization that multiplies matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.randn(3, 2), torch.randn(2, 18)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + (self.left @ self.right).view_as(weight)


def test_autocast_does_not_come_into_a_weight_that_is_worked_out():
    """It would round the product to half precision, and what is claimed of is the convolution outside of it."""
    conv, _ = pair()
    parametrize.register_parametrization(conv, "weight", Added())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = conv_to_mhsa(conv)
        certificate = certify(conv, layer, grid=(4, 4))
    assert certificate.verdict.name == "PROVED"
    assert torch.equal(layer.weight, conv.weight)
    assert certificate.to_json() == certify(conv, layer, grid=(4, 4)).to_json()


@pytest.mark.parametrize("name", ["w_out", "w_val"])
def test_numpy_that_raises_changes_nothing(name: str):
    conv, layer = pair()
    with torch.no_grad():
        getattr(layer, name).mul_(1 if name == "w_out" else 2)
    expected = certify(conv, layer, grid=(4, 4)).to_json()
    with np.errstate(all="raise"):
        assert certify(conv, layer, grid=(4, 4)).to_json() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_flushing_to_zero_is_noticed(dtype: torch.dtype):
    """The assumption that nothing is flushed is tested, not only printed."""
    conv = nn.Conv1d(1, 1, 1, dtype=dtype)
    layer = conv_to_mhsa(conv)
    assert torch.set_flush_denormal(True)
    try:
        with pytest.raises(ValueError, match="flushed to zero"):
            certify(conv, layer, grid=(4,))
    finally:
        torch.set_flush_denormal(False)
    assert certify(conv, layer, grid=(4,)).verdict.name == "PROVED"


def test_winograd_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """Sums in any order are covered, but Winograd and FFT are not: NNPACK takes over if oneDNN is off."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for conv, taken in (
        (nn.Conv2d(1, 1, 3), True),
        (nn.Conv1d(1, 1, 3), True),  # which torch evaluates as one in 2-D
        (nn.Conv3d(1, 1, 3), False),
        (nn.Conv2d(1, 1, 3).double(), False),
    ):
        layer, grid = conv_to_mhsa(conv), (4,) * (conv.weight.dim() - 2)
        if taken and torch.backends.nnpack.is_available():
            with pytest.raises(ValueError, match="NNPACK's Winograd"):
                certify(conv, layer, grid=grid)
        with torch.backends.nnpack.flags(enabled=False):
            assert certify(conv, layer, grid=grid).verdict.name == "PROVED"


def test_reduced_precision_is_switched_off_for_the_runs_and_back_on():
    switched = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, during = torch.get_float32_matmul_precision(), []

    def watched(run: Any, *args: Any) -> torch.Tensor:
        during.append(switched.fp32_precision)
        return run(*args)

    torch.set_float32_matmul_precision("medium")
    try:
        reduced = switched.fp32_precision
        with pytest.MonkeyPatch.context() as patch:
            break_execution(patch, "dense", watched)
            certificate = certify(*pair(2), grid=(4, 4))
        assert switched.fp32_precision == reduced != "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(during) == {"ieee"}
    assert any("reduced precision switched off" in assumption for assumption in certificate.assumptions)
