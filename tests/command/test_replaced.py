"""What the command replaces without ``--force``: a file whose digest stands in the certificate beside it, and nothing else."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from commands import Command, contents, names
from construct.command import output
from construct.command.arguments import FORMATS, certificate_beside


@pytest.fixture
def model(from_conv: Command) -> str:
    torch.save(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), "model.pt")
    return "model.pt"


@pytest.fixture
def exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's network is traced and converted in its first run alone, for what is replaced is the same file."""
    programs: dict[str, Any] = {}

    def kept(name: str, export: Any) -> Any:
        return lambda *given: programs.get(name) or programs.setdefault(name, export(*given))

    for name in ("to_pt2", "to_onnx"):
        monkeypatch.setattr(output, name, kept(name, getattr(output, name)))


def fine_tuned(form: str, path: Path) -> None:
    """Overwrite an output with what a user may have made of it."""
    if form == "pt":
        layer: Any = construct.load(path)
        with torch.no_grad():
            layer[0].w_val.mul_(1.01)
        optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9).state_dict()
        torch.save({"epoch": 90, "model": layer.state_dict(), "optimizer": optimizer}, path)
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"!")


@pytest.mark.usefixtures("exported_once")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.nasty(52, 71)
def test_an_output_is_replaced_as_long_as_it_is_what_the_certificate_says(form: str, model: str, from_conv: Command):
    options = (model, "--format", form, *(("--input-size", 1, 6, 6) if form in ("pt2", "onnx") else ()))
    path = Path(f"model.mhsa.{form}")
    document = certificate_beside(path)
    for bound in (1, 2):
        from_conv.prints(*options, "--input-bound", bound)
    fine_tuned(form, path)
    line = f"error: {path}: exists and is not our own output: no certificate beside it names its digest"
    assert from_conv.refuses(*options).startswith(line)
    from_conv.prints(*options, "--force")
    from_conv.prints(*options)
    document.unlink()
    assert from_conv.refuses(*options).startswith(line)
    os.mkfifo(document)
    assert from_conv.refuses(*options).startswith(line)


@pytest.mark.parametrize("change", ["a note", "a number", "an earlier version", "another output's", "the user's own"])
@pytest.mark.nasty(52)
def test_a_certificate_is_replaced_as_long_as_nobody_has_changed_it(change: str, model: str, from_conv: Command):
    from_conv.prints(model)
    document = json.loads(Path("model.mhsa.json").read_bytes())
    if change == "a note":
        document["note"] = "mine"
    elif change == "a number":
        document["layers"][0]["grid"] = [1, 1]
    elif change == "an earlier version":
        document = {"format": document["format"], "version": 3}
    elif change == "the user's own":
        document = {"precious": True}
    else:
        document["mhsa_file"]["sha256"] = "0" * 64
    Path("model.mhsa.json").write_text(json.dumps(document))
    assert "is not our own output" in from_conv.refuses(model)
    Path("model.mhsa.pt").unlink()
    line = from_conv.refuses(model)
    assert "model.mhsa.json: exists and is not our own output: it is not a certificate, or was changed (give" in line
    from_conv.prints(model, "--force")


def test_an_output_without_a_certificate_is_replaced_by_force(model: str, from_conv: Command) -> None:
    from_conv.prints(model, "--no-certify")
    assert "names its digest (give another name with -o, or --force)" in from_conv.refuses(model, "--no-certify")
    from_conv.prints(model, "--no-certify", "--force")
    from_conv.prints(model, "--force")
    from_conv.prints(model)
    assert names() == {"model.pt", "model.mhsa.pt", "model.mhsa.json"}


def test_a_page_is_replaced_as_long_as_nobody_has_changed_it(model: str, from_conv: Command) -> None:
    options = (model, "--report", "page.html")
    for _ in range(2):
        from_conv.prints(*options)
    before = contents()
    page = before["page.html"]
    for changed in (page + b"\n", page.replace(b"as attention", b"as I see it", 1), b"<!doctype html><p>mine"):
        Path("page.html").write_bytes(changed)
        assert "page.html: exists and is not our own output: it is not the page" in from_conv.refuses(*options)
    from_conv.prints(*options, "--force")
    assert b"--report page.html --force</code>" in contents()["page.html"]  # it says how it was made
