"""Error messages: the library's name no command-line option; the command adds those itself."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from archives import archive_of
from commands import ROOT, Command
from construct.errors import BadModelFile
from verify.__main__ import COMMANDS

OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMANDS_OWN = re.compile(
    r"construct/(command|files/command_line)/|"
    r"verify/(.*command\.py|__(init|main)__\.py|experiment/sweep/|coq/building|plots/stored_layer)"
)
"""Files whose messages only a command shows: sweep and plots have no other way to choose a layer or a network."""


def program(path: Path) -> Path:
    """Imitates a torch.export file by the record that identifies it, because exporting takes seconds."""
    path.write_bytes(archive_of({"archive_format": b"pt2", "version": b"0"}))
    return path


def saved(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def is_option(node: ast.AST) -> bool:
    """Whether a piece of code is what an error says on the command line, or a part of it."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Name) and target.id in ("option", "flags") for target in targets)
    return isinstance(node, ast.keyword) and node.arg == "option"


def test_texts_of_the_library_name_no_option_of_the_command() -> None:
    """Except where an error carries the command's own message."""
    texts = []
    for path in sorted(path for package in ("construct", "verify") for path in (ROOT / package).rglob("*.py")):
        name, code = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if COMMANDS_OWN.match(name) or not OPTION.search(code):
            continue
        tree = ast.parse(code)
        options = {id(part) for node in ast.walk(tree) if is_option(node) for part in ast.walk(node)}
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
    path = saved(construct.conv_to_mhsa(nn.Conv2d(1, 2, 3)).state_dict(), Path("a.pt"))
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
