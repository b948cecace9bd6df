"""If another distribution's package ``construct`` has overwritten ours (row 69), every command says so and what to do."""

import shutil
from pathlib import Path

import pytest

from commands import ROOT, python
from construct.command.startup import OVERWRITTEN

THEIRS = '"""Another library."""\nfrom construct.core import *\n'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the packages, as pip would install them."""
    for package in ("construct", "verify", "conv_as_attention"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(site: Path, *arguments: str) -> tuple[int, str, str]:
    """Run with ``-S``, so that nothing else is installed; noticing needs nothing else."""
    folder = site / "elsewhere"
    folder.mkdir(exist_ok=True)
    done = python(*arguments, cwd=folder, PYTHONPATH=str(site))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("how", ["overwritten", "taken along"])
@pytest.mark.nasty(69)
def test_every_way_in_says_so_in_one_line(how: str, site: Path) -> None:
    package = site / "construct"
    if how == "overwritten":
        (package / "__init__.py").write_text(THEIRS)
        (package / "core.py").write_text("Struct = dict\n")
    else:  # pip uninstall has removed the __init__.py as theirs
        (package / "__init__.py").unlink()
    ours = (["construct.from_conv"], ["verify"], ["conv_as_attention"], ["conv_as_attention", "verify"])
    for command in (*ours, ["construct.from_conv", "--help"], ["verify", "lemmas"]):
        assert run(site, "-S", "-m", *command) == (2, "", f"error: {OVERWRITTEN}\n")
    for module in ("verify", "verify.checker", "construct.from_conv"):
        code, out, err = run(site, "-S", "-c", f"import {module}")
        assert (code, out) == (1, "")
        assert err.splitlines()[-1] == f"ImportError: {OVERWRITTEN}"


@pytest.mark.nasty(69)
def test_ours_over_theirs_works(site: Path) -> None:
    """In the other order, leftovers of theirs do no harm."""
    (site / "construct" / "core.py").write_text("raise ImportError\n")
    assert run(site, "-m", "verify", "--help")[0] == 0
    assert run(site, "-m", "construct.from_conv", "--help")[0] == 0


def test_the_checker_needs_no_construct_at_all(site: Path) -> None:
    shutil.rmtree(site / "construct")
    assert run(site, "-S", "-m", "verify", "--help")[0] == 0


@pytest.mark.parametrize("form", ["{}.py", "{}/__init__.py"])
@pytest.mark.parametrize(("module", "hidden"), [("construct.from_conv", "verify"), ("verify", "construct")])
def test_a_module_of_the_user_s_hides_ours(module: str, hidden: str, form: str, tmp_path: Path) -> None:
    """In the folder where a command is run, which Python looks into first."""
    own = tmp_path / form.format(hidden)
    own.parent.mkdir(exist_ok=True)
    own.write_text("def f():\n    pass\n")
    line = f"{str(own)!r} hides our package {hidden} (rename it, or run from another folder)"
    for words in ([], ["--help"], ["none.pt"]):
        done = python("-m", module, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {line}\n")
    done = python("-c", f"import {module}", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"ImportError: {line}")
    own.rename(own.with_name("other.py"))
    assert python("-m", module, "--help", cwd=tmp_path).returncode == 0
