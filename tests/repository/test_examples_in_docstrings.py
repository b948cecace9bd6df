"""The ``>>>`` examples in docstrings run, and every public function has one."""

import doctest
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import pytest
import torch

import construct
import verify
from construct.modules import learning

ROOT = Path(__file__).parents[2]


def collect() -> Iterator[doctest.DocTest]:
    for package in ("construct", "verify"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):  # other modules need not be imported
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = import_module(".".join(part for part in parts if part != "__init__"))
                yield from (test for test in doctest.DocTestFinder().find(module) if test.examples)


EXAMPLES = {test.name: test for test in collect()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = runner.run(EXAMPLES[name], out=report.append)
    assert results.failed == 0, "".join(report)


def test_every_public_function_has_an_example() -> None:
    functions = [getattr(package, name) for package in (construct, verify) for name in package.__all__]
    functions += [value for name, value in vars(learning).items() if name[0] != "_"]
    own = [f for f in functions if isinstance(f, FunctionType) and f.__module__.startswith(("construct.", "verify."))]
    names = {f"{f.__module__}.{f.__qualname__}" for f in own}
    assert len(names) > 15
    assert names <= EXAMPLES.keys()
