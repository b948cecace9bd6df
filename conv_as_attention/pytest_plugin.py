"""The fixture ``conv_case``: hypothesis runs the tests that take it on generated convolutions.

Importing it imports neither hypothesis nor torch: a run without such tests pays nothing.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

GENERATED = object()
"""What stands for the cases until a test is called."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options on the cases."""
    group = parser.getgroup("conv_case", "generated convolutions (conv-as-attention)")
    group.addoption(
        "--conv-examples", type=int, metavar="N", help="for each test that takes conv_case"
    )
    group.addoption(
        "--conv-dims",
        type=int,
        action="append",
        choices=(1, 2, 3),
        help="draw only so many dimensions; repeatable",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line(
        "markers",
        "conv_case(max_examples=None, **options): the options of verify.strategies.cases, for conv_case",
    )


@pytest.fixture(scope="session")
def conv_case() -> Any:
    """A generated ``verify.strategies.Case``: ``conv_case.conv`` accepts ``conv_case.x``."""
    return GENERATED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Call a test that takes ``conv_case`` by hypothesis, as if it had been decorated."""
    if getattr(item, "funcargs", {}).get("conv_case") is not GENERATED:
        return (yield)
    test = item.obj
    item.obj = _given(item)
    try:
        return (yield)
    finally:
        item.obj = test


def _given(item: Any) -> Callable[..., None]:
    from hypothesis import given, settings

    from verify.strategies import cases

    marker = item.get_closest_marker("conv_case")
    options = {} if marker is None else dict(marker.kwargs)
    examples = options.pop("max_examples", None)
    if item.config.option.conv_examples is not None:
        examples = item.config.option.conv_examples
    only = item.config.option.conv_dims
    if only is not None:
        options["dims"] = [d for d in options.get("dims", (1, 2, 3)) if d in only]
        if not options["dims"]:
            pytest.skip(f"it has none of the dimensions {only}")
    test = given(conv_case=cases(**options))(item.obj)
    if examples is not None:
        test = settings(max_examples=examples)(test)

    @functools.wraps(test)
    def run(conv_case: object, **fixtures: Any) -> None:
        test(**fixtures)

    return run
