"""What is released: one version, types, commands that exist, and files that name no host; .ci/run builds and installs it."""

import json
import re
import shutil
import subprocess
import tomllib
from importlib import import_module

import pytest
import yaml

from commands import ROOT
from construct.command.startup import DISTRIBUTION, VERSION
from verify.__main__ import main

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def test_there_is_one_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"
    assert f"{DISTRIBUTION} {PROJECT['version']}" == VERSION
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["authors"] == PROJECT["authors"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_entry_points_name_what_exists():
    for group in (PROJECT["scripts"], *PROJECT["entry-points"].values()):
        for place in group.values():
            module, _, name = place.partition(":")
            assert not name or callable(getattr(import_module(module), name))


def test_every_package_is_shipped():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"} == set(PACKAGES)


def test_the_hooks_are_local():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].split()[0] in " ".join(PROJECT["optional-dependencies"]["dev"])


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "CITATION.cff", "SECURITY.md", ".pre-commit-config.yaml", ".ci/run"]
)
def test_no_host_is_named(name):
    path = ROOT / name
    if path.exists():  # the last two are not part of an sdist
        assert not re.search(r"https?://|\w@\w", path.read_text(encoding="utf-8"))


USER = """\
import construct, torch, verify
layer = construct.conv_to_mhsa(torch.nn.Conv2d(1, 2, 3))
reveal_type(layer); reveal_type(construct.load("f", layers=True)); reveal_type(verify.compare(layer, layer, torch.ones(1)))
"""


def test_a_user_s_program_sees_types(tmp_path):
    """With a type checker; mypy reads those of an installed package only where py.typed lies."""
    assert all((ROOT / package / "py.typed").read_bytes() == b"" for package in ("construct", "verify"))
    if shutil.which("pyright") is None:
        pytest.skip("the extra dev is not installed: there is no pyright")
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    done = subprocess.run(
        ["pyright", "--outputjson", "-p", str(tmp_path)], capture_output=True, text=True, check=False, timeout=600
    )
    messages = [row["message"] for row in json.loads(done.stdout)["generalDiagnostics"]]
    types = [re.findall('is "(.*)"$', message) for message in messages]
    assert types == [["MHSA"], ["dict[str, MHSA]"], ["Discrepancy"]], messages
