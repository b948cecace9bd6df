"""Settings of every test: one thread, deterministic property tests, warnings as errors."""

import gc
import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import commands
from commands import Command

# Tests compare with torch's own convolution.  With the instructions that this leaves out (AVX512-FP16, AMX), torch 2.13 crashes,
# or computes other sums, for some tiny convolutions in float16 and bfloat16 (docs/numerics.md).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The same examples on every run and every machine, also in CI; nothing is stored, no example is timed.
settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=24,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# CI runs every property on more examples, with the deep tests: HYPOTHESIS_PROFILE=more pytest -m "deep or hypothesis"
settings.register_profile("more", settings.get_profile("deterministic"), max_examples=40)
# For looking for bugs: HYPOTHESIS_PROFILE=search pytest tests/construct/test_properties.py
settings.register_profile("search", settings.get_profile("deterministic"), derandomize=False, max_examples=2000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "deterministic")
settings.load_profile(PROFILE)

# A shell that starts this in the background ignores Ctrl-C, also in all child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run all tests, if no number of workers is given, in one worker per core where pytest-xdist is installed."""
    if hasattr(config, "workerinput"):  # a worker starts no workers
        return
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if everything and config.pluginmanager.hasplugin("xdist") and config.getoption("numprocesses") is None:
        if not (config.getoption("collectonly") or config.getoption("usepdb")):
            config.option.numprocesses = "auto"
            config.option.dist = "worksteal"


LINES = Path(__file__).with_name("deep_cases.txt").read_text(encoding="utf-8").splitlines()
DEEP = re.compile("|".join(line for line in LINES if not line.startswith("#")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases of ``deep_cases.txt``, before ``-m`` chooses."""
    for item in items:
        case = item.nodeid.partition("::")
        if DEEP.fullmatch(case[0].rpartition("/")[2] + "::" + case[2]):
            item.add_marker("deep")


def pytest_configure(config: pytest.Config) -> None:
    """Ignore torch's warning about even kernels under padding='same', which concerns only its speed."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):  # this process runs tests itself
        import torch

        torch.set_num_threads(1)  # pytest-xdist already uses every core
        gc.disable()  # until all is collected, of which nothing is garbage
    commands.STDERR = os.dup(2)
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same' with even kernel lengths")


def pytest_collection_finish() -> None:
    """Let no later search for garbage go through modules and tests: each would take half a second."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """Every test draws from the same seed, and none is given other examples by a module that loads its own profile."""
    import torch

    torch.manual_seed(0)
    assert settings.get_current_profile_name() == PROFILE


@pytest.fixture
def from_conv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m construct.from_conv`` in an empty folder, from which it may import."""
    from construct.from_conv import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Command(main, capsys)


@pytest.fixture
def verify_command(capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m verify``."""
    from verify.__main__ import main

    return Command(main, capsys)
