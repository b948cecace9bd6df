"""Error messages: the library's name no command-line option; the command adds those itself."""

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
import verify
from archives import archive_of
from commands import ROOT, Command
from construct.errors import BadModelFile
from construct.modules.learning import learned_quadratic
from verify.__main__ import COMMANDS

OPTION = re.compile(r"(?<![\w-])--[a-z]")


class Own(nn.Conv2d):
    def forward(self, input: Any) -> Any:
        return super().forward(input)


def program(path: Path) -> Path:
    """Imitates a torch.export file by the record that identifies it, because exporting takes seconds."""
    path.write_bytes(archive_of({"archive_format": b"pt2", "version": b"0"}))
    return path


def saved(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def text(content: str, path: Path) -> Path:
    path.write_text(content)
    return path


CONV = nn.Conv2d(1, 2, 3)
LAYER = construct.conv_to_mhsa(CONV)

BAD: dict[str, Callable[[Path], Any]] = {
    "no file": lambda f: construct.load(f / "none.pt"),
    "a folder": lambda f: construct.load(f),
    "text": lambda f: construct.load(text("hello", f / "a.pt")),
    "a program": lambda f: construct.load(program(f / "a.pt2")),
    "a state dict": lambda f: construct.load(saved(CONV.state_dict(), f / "a.pt")),
    "our state dict": lambda f: construct.load(saved(LAYER.state_dict(), f / "a.pt")),
    "another network": lambda f: construct.load(saved(LAYER.state_dict(), f / "a.pt"), model=nn.Linear(1, 1)),
    "no layers": lambda f: construct.load(saved(CONV, f / "a.pt"), layers=True),
    "a module and another": lambda f: construct.load(saved(CONV, f / "a.pt"), model=nn.Linear(1, 1)),
    "a list": lambda f: construct.load(saved([1], f / "a.pt")),
    "lazy": lambda f: construct.load(saved(nn.Sequential(nn.LazyConv2d(1, 1)), f / "a.pt")),
    "never allowed": lambda f: construct.load(saved(CONV, f / "a.pt"), allow=["os.system"]),
    "not there": lambda f: construct.load(saved(CONV, f / "a.pt"), allow=["no.such.Class"]),
    "no class": lambda f: construct.load(saved(CONV, f / "a.pt"), allow=["math.pi"]),
    "trusted": lambda f: construct.load(text("hello", f / "a.pt"), trust=True),
    "save own": lambda f: construct.save(Own(1, 1, 1), f / "a.pt"),
    "save a program": lambda f: construct.save(LAYER, f / "a.pt2"),
    "save learned": lambda f: construct.save(
        learned_quadratic(construct.conv_to_mhsa(nn.Conv1d(1, 1, 1), alpha=1.0)), f / "a.pt"
    ),
    "save nowhere": lambda f: construct.save(LAYER, f / "none" / "a.pt"),
    "convert own": lambda f: construct.convert(nn.Sequential(Own(1, 1, 1))),
    "convert by a rule": lambda f: construct.convert(Own(1, 1, 1), rules={Own: lambda m: nn.Conv2d(1, 1, 1)}),
    "conv_to_mhsa": lambda f: construct.conv_to_mhsa(nn.Linear(1, 1)),
    "alpha": lambda f: construct.conv_to_mhsa(CONV, alpha=-1),
    "memory": lambda f: construct.conv_to_mhsa(nn.Conv2d(8192, 8192, 200, device="meta")),
    "to_torch_mha": lambda f: construct.to_torch_mha(LAYER, grid=(1, 1)),
    "from_torch_mha": lambda f: construct.from_torch_mha(nn.MultiheadAttention(2, 1)),
    "execution": lambda f: setattr(LAYER, "execution", "quick"),
    "geometry": lambda f: LAYER.load_state_dict(construct.conv_to_mhsa(nn.Conv2d(1, 2, 3, padding=1)).state_dict()),
    "check": lambda f: verify.check(f / "a", f / "b", f / "c"),
    "check odd": lambda f: verify.check(text("{", f / "a"), f / "a", f / "a"),
    "certify": lambda f: verify.certify(CONV, LAYER, grid=(1,), input_bound=1.0),
    "compare": lambda f: verify.compare(CONV, LAYER, torch.ones(1)),
    "audit": lambda f: verify.audit(LAYER, (0, 0)),
    "claims": lambda f: verify.claims(only=["none"]),
    "lemmas": lambda f: verify.prove_lemma2(dims=0),
    "report": lambda f: verify.write_report(f / "none" / "a.html", CONV, LAYER),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_in_python_name_no_option_of_the_command(name: str, tmp_path: Path) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  of any class; the message matters
        BAD[name](tmp_path)
    assert not OPTION.search(str(caught.value)), str(caught.value)
    assert str(caught.value)


def test_texts_of_the_library_name_no_option_of_the_command() -> None:
    """Except where an error carries the command's own message."""
    texts = []
    for path in sorted((ROOT / "construct").rglob("*.py")):
        name, code = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if name.startswith("construct/command/") or not OPTION.search(code):
            continue
        tree = ast.parse(code)
        options = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.keyword) and node.arg == "option"
            for part in ast.walk(node.value)
        }
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts += [
            (name, node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and OPTION.search(node.value)
            if id(node) not in options | statements
        ]
    assert not texts


def test_the_command_names_its_own_options(from_conv: Command) -> None:
    path = program(Path("a.pt2"))
    ways_out = "if you know who made it, or save the nn.Module or its state"
    with pytest.raises(BadModelFile, match=rf"\(trust=True {re.escape(ways_out)}"):
        construct.load(path)
    assert f"(--trust {ways_out} dict)" in from_conv.refuses(path)
    path = saved(LAYER.state_dict(), Path("a.pt"))
    assert "give --arch pkg.module:factory or --model-file net.py:Net" in from_conv.refuses(path)


def test_an_error_has_both_ways_out() -> None:
    error = BadModelFile("a.pt: is torn", "save it again", option="give --again")
    assert (str(error), error.on_command_line) == ("a.pt: is torn (save it again)", "a.pt: is torn (give --again)")
    assert BadModelFile("a (b)").on_command_line == "a (b)"
    assert BadModelFile("a", "b").on_command_line == "a (b)"
    assert BadModelFile("a", option="--b").on_command_line == "a (--b)"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "un.pt"), "error: un.pt: Permission denied"),
        (OSError(28, "No space left on device"), "error: output: No space left on device"),
    ],
)
def test_the_errors_of_the_system_name_a_file_or_the_output(
    error: OSError, line: str, verify_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(options: Any) -> int:
        raise error

    monkeypatch.setitem(COMMANDS, "lemmas", replace(COMMANDS["lemmas"], run=fails))
    assert verify_command.refuses("lemmas") == line
