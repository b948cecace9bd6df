"""Each wrong argument of ``verify.write_report`` raises one explanatory error, and nothing is written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
import verify
from report_layers import seeded


def pair(**options: Any) -> tuple[nn.Conv2d, Any]:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    return conv, construct.conv_to_mhsa(conv, **options)


def test_a_certificate_of_numbers_that_have_changed_is_refused(tmp_path: Path) -> None:
    conv, layer = seeded(pair)
    old = verify.certify(conv, layer, grid=(8, 8))
    with torch.no_grad():
        layer.v[4] = layer.v[0]
    with pytest.raises(ValueError, match=r"'the model' is of another attention layer \(certify"):
        verify.write_report(tmp_path / "page.html", conv, layer, certificates=old)
    conv.dilation = (2, 2)  # the same tensors
    with pytest.raises(ValueError, match="'the model' is of another geometry of the convolution"):
        verify.write_report(tmp_path / "page.html", conv, layer, certificates=old)
    _, (other, its) = pair(), pair()  # the first has the numbers of ``seeded``
    with pytest.raises(ValueError, match="is of another convolution"):
        verify.write_report(tmp_path / "page.html", other, its, certificates={"": old})
    assert not list(tmp_path.iterdir())


def test_a_certificate_of_no_layer_is_refused(tmp_path: Path) -> None:
    conv, layer = seeded(pair)
    certificate = verify.certify(conv, layer, grid=(8, 8))
    with pytest.raises(ValueError, match=r"a certificate of 'typo', but no such layer; there is ''"):
        verify.write_report(tmp_path / "page.html", conv, layer, certificates={"typo": certificate})
    with pytest.raises(ValueError, match=r"a certificate of '', but no such layer; there is '0', '1'"):
        verify.write_report(
            tmp_path / "page.html", nn.Sequential(conv, conv), nn.Sequential(layer, layer), certificates=certificate
        )
    for wrong in ("no", {"": "no"}, 3, [certificate]):
        with pytest.raises(TypeError, match="certificate"):
            verify.write_report(tmp_path / "page.html", conv, layer, certificates=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no layer at all"):
        verify.write_report(tmp_path / "page.html", attention={"a": torch.ones(1, 2, 2) / 2}, certificates=certificate)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": "hello"}, TypeError, "x must be a tensor, .*not a str"),
        ({"x": [1.0]}, TypeError, "x must be a tensor, .*not a list"),
        ({"x": torch.ones(2, 5, 9, 9)}, ValueError, "the network does not take x: .*channels"),
        ({"x": torch.ones(1, 3, 9, 9).int()}, ValueError, "the network does not take x: "),
        (
            {"attention": torch.ones(2, 4, 4)},
            TypeError,
            "attention must be a mapping from names to probabilities, not a Tensor",
        ),
        ({"attention": {"a": "text"}}, TypeError, "the attention of 'a' must be an array of numbers"),
        ({"attention": {"a": torch.ones(2, 4, 4)}}, ValueError, "'a'.*not made of probabilities"),
        ({"attention": {"a": torch.full((2, 4, 4), float("nan"))}}, ValueError, "'a'.*not made of probabilities"),
        ({"attention": {"a": torch.ones(2, 4, 3) / 3}}, ValueError, r"'a'.*shape \(2, 4, 3\)"),
        ({"attention": {"a": torch.ones(4, 5, 4, 5) / 20}}, ValueError, r"'a'.*shape \(4, 5, 4, 5\)"),
        ({"converted": "net"}, TypeError, "converted must be a torch.nn.Module, not a str"),
        ({"converted": None}, ValueError, "both networks, or neither"),
        ({"converted": nn.Conv2d(1, 1, 1)}, ValueError, "no convolution of the original"),
        ({"original": None, "converted": None}, ValueError, "nothing to show"),
        ({"original": nn.Identity()}, ValueError, "no convolution in the original"),
    ],
)
def test_one_error_says_what_is_wrong(arguments: dict[str, Any], error: type[Exception], message: str, tmp_path: Path):
    conv, layer = seeded(pair)
    with pytest.raises(error, match=message) as raised:
        verify.write_report(tmp_path / "page.html", **{"original": conv, "converted": layer} | arguments)
    assert "\n" not in str(raised.value).split(": ")[0]
    assert not list(tmp_path.iterdir())


def test_layers_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    conv = nn.Conv2d(3, 4, 3)
    _, layer = pair()
    before, after = nn.Module(), nn.Module()
    before.add_module("first", conv)
    after.add_module("first", layer)
    with pytest.raises(ValueError, match=r"layer 'first': the outputs have shapes"):
        verify.write_report(tmp_path / "page.html", before, after)
    before.first, after.first = nn.Conv2d(2, 4, 3, padding=1), layer
    with pytest.raises(ValueError, match="layer 'first': "):
        verify.write_report(tmp_path / "page.html", before, after)


def test_a_place_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    maps = {"a": torch.ones(1, 2, 2) / 2}
    with pytest.raises(FileNotFoundError, match=r"nowhere/page\.html") as raised:
        verify.write_report(tmp_path / "nowhere" / "page.html", attention=maps)
    assert ".tmp" not in str(raised.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as folder:
        verify.write_report(tmp_path / "folder", attention=maps)
    assert ".tmp" not in str(folder.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
