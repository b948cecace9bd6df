"""The help of both commands: three examples first, which parse; every option documented; 80 columns."""

import argparse
import re
import shlex

import pytest

from construct.command import arguments
from verify.__main__ import parser_of_commands


def parsers():
    """Every parser, with the command words that lead to it."""
    verify = parser_of_commands()
    (commands,) = (action for action in verify._actions if isinstance(action, argparse._SubParsersAction))
    return {"construct.from_conv": arguments._parser(), "verify": verify} | {
        f"verify {name}": parser for name, parser in commands.choices.items()
    }


@pytest.mark.parametrize("name", parsers())
def test_help_is_in_80_columns_and_begins_with_three_examples(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    parser = parsers()[name]
    text = parser.format_help()
    assert max(map(len, text.splitlines())) <= 80
    usage, examples, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: python -m {name}")
    assert examples.startswith("examples:\n")
    lines = re.findall(r"^  python -m (\S+) ?(.*)$", examples, re.MULTILINE)
    assert len(lines) == 3
    for program, words in lines:
        assert f"{program} {words} ".startswith(f"{name} ")
        read = arguments.parse if program == "construct.from_conv" else parser_of_commands().parse_args
        assert read(shlex.split(words))


@pytest.mark.parametrize("name", parsers())
def test_every_option_is_documented(name):
    assert all(action.help for action in parsers()[name]._actions if action.dest not in ("command", "action"))
