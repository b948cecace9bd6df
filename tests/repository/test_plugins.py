"""Installed, the project gives hypothesis its strategies and pytest a fixture; who uses neither does not notice it."""

import sys
import tomllib
from pathlib import Path

import hypothesis.strategies
import pytest
from torch import nn

from commands import ROOT, python
from conv_as_attention import hypothesis_plugin

FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: conv-as-attention\nVersion: 9\n",
    "entry_points.txt": "",
}


@pytest.fixture
def installed(tmp_path: Path):
    """A function that runs Python in a folder with a file ``test_user.py``, where the project is installed."""
    metadata = tmp_path / "site" / "conv_as_attention-9.dist-info"
    metadata.mkdir(parents=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group, entries in project["entry-points"].items():
        FILES["entry_points.txt"] += "\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in entries.items()), ""])
    for name, text in FILES.items():
        (metadata / name).write_text(text)
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(*words: str, test: str = ""):
        (folder / "test_user.py").write_text(test)
        # CI: hypothesis draws the same examples, times none and stores none
        return python(*words, cwd=folder, PYTHONPATH=f"{metadata.parent}:{ROOT}", CI="true")

    return run


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_user.py")


def test_where_torch_is_imported_first_they_are_registered_at_once(monkeypatch: pytest.MonkeyPatch):
    registered, finders = {}, [*sys.meta_path]
    monkeypatch.setattr(hypothesis.strategies, "register_type_strategy", registered.__setitem__)
    hypothesis_plugin.register()
    assert registered == dict.fromkeys(
        (getattr(nn, name) for name in hypothesis_plugin.KINDS), hypothesis_plugin.strategy_for
    )
    assert sys.meta_path == finders
    assert hypothesis_plugin.strategy_for(nn.modules.conv._ConvNd) is NotImplemented  # as it was


def test_who_does_not_use_them_loads_nothing_and_a_name_of_their_own_stays_theirs(installed):
    test = """
import pytest

def test_modules():
    import hypothesis, sys
    assert "conv_as_attention.pytest_plugin" in sys.modules
    assert not {"torch", "construct", "verify"} & {*sys.modules}

@pytest.fixture
def conv_case(): return 7

def test_own(conv_case): assert conv_case == 7
"""
    done = installed(*PYTEST, test=test)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


TESTS = """
import sys
import hypothesis, pytest
assert "torch" not in sys.modules
import torch
assert "verify.strategies" not in sys.modules
assert not [finder for finder in sys.meta_path if "conv_as_attention" in type(finder).__module__]

few = {"max_examples": 30, "phases": [hypothesis.Phase.generate, hypothesis.Phase.shrink]}
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("ci"), **few)
hypothesis.settings.load_profile("few")
calls = []
KINDS = [getattr(torch.nn, f"Conv{form}{dims}d") for form in ("", "Transpose") for dims in (1, 2, 3)]

@pytest.mark.parametrize("kind", KINDS)
def test_types(kind, monkeypatch):
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    strides = set()
    @hypothesis.settings(max_examples=6)
    @hypothesis.given(hypothesis.strategies.from_type(kind))
    def collect(conv):
        assert type(conv) is kind and conv.weight.dtype == torch.float64
        strides.add(conv.stride)
    collect()
    assert len(strides) > 1

def exact(case):
    return torch.equal(case.conv(case.x), case.conv(case.x.clone()))

def test_any(conv_case):
    calls.append(conv_case)
    assert exact(conv_case)

@pytest.mark.conv_case(dims=[1], integers=[True], max_examples=7)
@pytest.mark.parametrize("n", [1, 2])
def test_some(n, conv_case, tmp_path_factory):
    assert conv_case.integers and conv_case.x.dim() < 4 and n in (1, 2)

class TestClass:
    def test_method(self, conv_case):
        assert isinstance(self, TestClass) and conv_case.conv is not None

@pytest.mark.conv_case(paddings=["none"], channels=["one"], transposed=[False])
def test_stride(conv_case):
    assert conv_case.conv.stride[0] == 1

def test_count(request):
    assert len(calls) == (request.config.option.conv_examples or 30)
    only = request.config.option.conv_dims
    assert not only or {case.conv.weight.dim() - 2 for case in calls} == {*only}
"""


def test_a_test_that_takes_conv_case_is_run_on_generated_ones_and_hypothesis_knows_convolutions(installed):
    done = installed(*PYTEST, "-W", "ignore:Using padding", test=TESTS)
    assert "1 failed, 11 passed" in done.stdout, done.stdout
    assert "Conv1d(1, 1, kernel_size=(1,), stride=(2,), bias=False) in torch.float32 on (1, 1, 1)" in done.stdout
    assert "Failing test case: test_stride(" in done.stdout


def test_the_options_say_how_many_and_which(installed):
    words = (*PYTEST, "-rs", "-W", "ignore:Using padding", *"--conv-examples 9 --conv-dims 2 --conv-dims 3".split())
    done = installed(*words, test=TESTS)
    assert "1 failed, 9 passed, 2 skipped" in done.stdout, done.stdout
    assert "Conv2d(1, 1, kernel_size=(1, 1), stride=(2, " in done.stdout
    assert "it has none of the dimensions [2, 3]" in done.stdout
    shown = installed("-c", "import pytest; pytest.main(['--help']); pytest.main(['--markers'])").stdout
    assert "--conv-examples=N" in shown
    assert "conv_case(" in shown
