"""``python -m verify conformance``: what is wrong with a layer is named by the row that it breaks, and a right one holds."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from construct.attention import EXECUTIONS
from verify.experiment.conformance import ROWS, conformance

ALL = set(ROWS)


class Doubled(torch.autograd.Function):
    """The identity, with twice its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * gradients[0]


def with_fields(conv: Any, **fields: Any) -> Any:
    """The convolution with other fields, where it has these."""
    for name, value in fields.items():
        setattr(conv, name, value(getattr(conv, name)))
    return conv


def ones(values: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * len(values)


def replicating(conv: Any) -> Any:
    """Borders as the softmax makes them where nobody pads with tokens: copies of the nearest pixel, not zeros."""
    if conv.padding_mode == "zeros" and not conv.transposed and conv.padding != "valid":
        return with_fields(type(conv)(
            conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups,
            conv.bias is not None, "replicate", dtype=conv.weight.dtype,
        ), weight=lambda _: conv.weight, bias=lambda _: conv.bias)  # fmt: skip
    return conv


def flipped(conv: Any) -> Any:
    return with_fields(conv, weight=lambda w: nn.Parameter(w.flip(-1))) if conv.transposed else conv


def narrow(conv: Any) -> Any:
    """Computes in float32 what has more digits, and returns the right type."""
    if conv.weight.dtype == torch.float64:
        single = conv.float()
        return lambda x: single(x.float()).double()
    return conv


def in_place(conv: Any) -> Any:
    def layer(x: torch.Tensor) -> torch.Tensor:
        y = conv(x.clone())
        x.detach().zero_()
        return y

    return layer


FAULTS: dict[str, tuple[Any, set[str]]] = {
    "nothing": (lambda conv: conv, set()),
    "the bias dropped": (partial(with_fields, bias=lambda _: None), {"bias"}),
    "the stride ignored": (partial(with_fields, stride=ones), {"stride", "transposed"}),
    "the dilation ignored": (partial(with_fields, dilation=ones), {"dilation"}),
    "a border of copies": (replicating, {"padding"}),
    "a border of zeros": (partial(with_fields, padding_mode=lambda _: "zeros"), {"padding_mode"}),
    "groups mixed": (
        lambda conv: with_fields(conv, weight=lambda w: nn.Parameter(w.flip(0))) if conv.groups > 1 else conv,
        {"groups"},
    ),
    "transposed as if it were flipped": (flipped, {"transposed"}),
    "digits lost": (narrow, {"dtype"}),
    "another type": (lambda conv: lambda x: conv(x).float(), {"dtype"}),
    "memory for numbers": (
        lambda conv: lambda x: conv(x.as_strided(x.shape, torch.empty(x.shape).stride()) if x.numel() else x),
        {"layout"},
    ),
    "a batch required": (lambda conv: lambda x: conv(x.view(len(x), conv.in_channels, *x.shape[2:])), {"batch"}),
    "a wrong gradient": (lambda conv: lambda x: conv(Doubled.apply(x)), {"gradient"}),
    "no gradient": (lambda conv: lambda x: conv(x.detach()), {"gradient"}),
    "its input changed": (in_place, ALL),
    "not a number": (lambda conv: lambda x: conv(x) * float("nan"), ALL),
    "identity": (lambda conv: nn.Identity(), ALL),
}
"""Layers with one fault each, and the rows that show it, beside ``together``, which varies everything."""


@pytest.mark.parametrize("name", list(FAULTS))
def test_every_fault_is_named_by_the_rows_that_it_breaks(name: str):
    make_layer, rows = FAULTS[name]
    tried = ["kernel", "gradient"] if rows == ALL else [row for row in ROWS if row != "together"]
    verdicts = {row: conformance(make_layer, row, dims=[1], examples=12) for row in tried}
    refuted = {row for row, verdict in verdicts.items() if verdict.name == "REFUTED"}
    assert refuted == rows & {*tried}, verdicts
    for row in refuted:
        assert verdicts[row].sentence.startswith(("Conv1d(", "ConvTranspose1d("))  # the simplest shows it


@pytest.mark.parametrize("execution", list(EXECUTIONS))
def test_our_own_layer_holds_in_every_execution(execution: str):
    make_layer = partial(construct.conv_to_mhsa, execution=execution)
    verdicts = {row: conformance(make_layer, row, examples=6) for row in ROWS}
    assert all(verdict.name == "CHECKED" for verdict in verdicts.values()), verdicts


def test_the_command_prints_a_row_for_each_property(verify_command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    out = verify_command.prints("conformance", "construct:conv_to_mhsa", "--dims", "1", "--examples", "3")
    assert [line.split()[:2] for line in out.splitlines()] == [[row, "CHECKED:"] for row in ROWS]
    assert not [*tmp_path.iterdir()]


def test_the_command_ends_in_1_where_a_row_does_not_hold(verify_command, tmp_path, monkeypatch: pytest.MonkeyPatch):
    code = "def make(conv):\n    if conv.bias is not None:\n        raise NotImplementedError('no \\x1b[31m')\n    return conv\n"
    (tmp_path / "their_layers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("conformance", "their_layers:make", "--dims", "1", "--examples", "5", "--rows", "kernel", "bias")
    kernel, bias = verify_command.prints(*words, code=1).splitlines()
    assert kernel == "kernel       CHECKED: equal bit for bit in 5 calls"
    assert bias.startswith("bias         REFUTED: Conv1d(1, 1, kernel_size=(1,), stride=(1,)) in torch.float32 ")
    assert bias.endswith(r"NotImplementedError: no \x1b[31m")


WRONG = {
    "none_such:make": "none_such:make: ModuleNotFoundError",
    "construct:none_such": "construct:none_such: AttributeError",
    "construct": "construct: is no function that makes a layer",
    "construct:conv_to_mhsa --rows strides": "no row is called 'strides'; there are kernel, bias",
    "construct:conv_to_mhsa --dims 4": "torch has convolutions of 1, 2 and 3 dimensions, not 4",
    "sys:exit --rows kernel --dims 1": "SystemExit: Conv1d(1, 1",
    "construct:conv_to_mhsa --examples 0": "--examples is 1 or more, not 0",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_the_command_cannot_do_is_one_line(words: str, verify_command):
    assert WRONG[words] in verify_command.refuses("conformance", *words.split())
