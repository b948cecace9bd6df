"""The independent checker confirms correct certificates, and no edited file or certificate passes."""

import copy
import json
import os
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import construct
from broken import break_execution
from commands import python
from faults_code import FAULTS
from rechecked import Files
from runs import is_quick
from truths import with_content_heads
from verified import pair_of
from verify import checker
from verify.argument.certification import certify
from verify.argument.documents import document, write_document
from verify.coq.verified.judging import questions_of
from verify.layers.fields import digests, stated_geometry
from verify.layers.reading import GridRefused
from verify.recheck.certificate_file import read_document, record_digest
from verify.recheck.exact import NoCentre, centre_of, exponential, finite_scores, product_gap, selected, tail
from verify.recheck.grids import geometry_of
from verify.recheck.layer_pair import LayerPair
from verify.recheck.stored_layers import TENSORS, layers_in
from verify.recheck.strict_input import Rejected
from verify.strategies import convolutions, sizes_for


def case(make, *grid, within=None, **built):
    """A convolution with its grid, the options of its attention layer, and the claim."""
    return make, grid, built, {} if within is None else {"within": within}


REFLECTED = "1-D even, strided, dilated, reflected"
LAYERS = {
    "2-D": case(lambda: nn.Conv2d(2, 3, 3, padding=1), 5, 6),
    REFLECTED: case(lambda: nn.Conv1d(2, 3, 4, 2, padding=3, dilation=2, padding_mode="reflect", bias=False), 19),
    "same, circular, groups": case(
        lambda: nn.Conv2d(4, 6, (3, 2), padding="same", padding_mode="circular", groups=2), 6, 5
    ),
    "3-D, replicated": case(lambda: nn.Conv3d(1, 2, 2, padding=1, padding_mode="replicate"), 3, 4, 3),
    "depthwise": case(lambda: nn.Conv2d(4, 4, 3, groups=4), 5, 5),
    "transposed": case(lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), 4, 3),
    "transposed, cropped": case(lambda: nn.ConvTranspose1d(2, 2, 3, padding=4), 12),
    "float64": case(lambda: nn.Conv2d(2, 3, 3, padding=1).double(), 5, 6),
    "float16": case(lambda: nn.Conv2d(2, 3, 3, padding=1).half(), 5, 6),
    "bfloat16": case(lambda: nn.Conv1d(2, 3, 3, padding=1).bfloat16(), 9),
    "parabola": case(lambda: nn.Conv2d(2, 3, 3, padding=2, dilation=2), 5, 6, encoding="parabola"),
    "silent content": case(lambda: nn.Conv2d(2, 3, 3, padding=1), 5, 6),
    "padded heads": case(lambda: nn.Conv2d(2, 3, 3), 5, 6, head_dim=5),
    "soft": case(lambda: nn.Conv2d(2, 3, 3), 5, 6, alpha=5.0, within=1.0),
    "soft parabola": case(lambda: nn.Conv2d(2, 3, 3), 5, 6, alpha=5.0, encoding="parabola", within=1.0),
    "softest": case(lambda: nn.Conv1d(2, 3, 3), 5, alpha=1e-7, within=100.0),
    "truncated": case(lambda: nn.Conv2d(4, 4, 3), 5, 6, head_dim=2, within=100.0),
}


def built(name):
    make, grid, options, claimed = LAYERS[name]
    torch.manual_seed(0)
    conv = make().requires_grad_(False)
    mhsa = construct.conv_to_mhsa(conv, **options)
    if name == "silent content":
        mhsa = with_content_heads(mhsa)
    return conv, mhsa.requires_grad_(False), grid, claimed


@cache
def certified(name):
    conv, mhsa, grid, claimed = built(name)
    return certify(conv, mhsa, grid=grid, **claimed)


class Tampered(Files):
    def write_case(self, name):
        """Write a case of the table with its certificate, and return its two layers."""
        conv, mhsa, _, _ = built(name)
        self.write([("", certified(name))], conv, mhsa)
        return conv, mhsa

    def edit(self, change, sign=True):
        document = json.loads(self.certificate.read_text())
        change(document)
        if sign:
            document["record_sha256"] = record_digest(document)
        self.certificate.write_text(json.dumps(document))

    def forge(self, conv, mhsa):
        """Replace the certified layers by others, and make every digest agree."""
        self.save(conv, mhsa)

        def change(document):
            (record,) = document["layers"]
            document["conv_file"] = document["mhsa_file"] = None
            record["conv_geometry"], record["mhsa_geometry"] = stated_geometry(conv), stated_geometry(mhsa)
            for key, layer in (("conv_sha256", conv), ("mhsa_sha256", mhsa)):
                record[key] = digests(layer, TENSORS if hasattr(layer, "w_val") else ("weight", "bias"))

        self.edit(change)

    def refused(self, words="."):
        with pytest.raises(Rejected, match=words) as caught:
            self.check()
        assert "\n" not in str(caught.value)


@pytest.fixture
def files(tmp_path):
    return Tampered(tmp_path)


def test_nothing_is_confirmed_where_subnormal_numbers_are_flushed_to_zero(files):
    """There, taps of 2^−1060 and 2^−1050 are the same."""
    files.write_case("2-D")
    assert torch.set_flush_denormal(True)
    try:
        files.refused("flushed to zero")
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", LAYERS)
def test_what_was_proved_is_confirmed(name, files):
    files.write_case(name)
    assert certified(name).verdict.name == "PROVED"
    result = files.check()
    assert result.verdict.name == "PROVED", str(result)
    assert result.layers[""].name == "PROVED"
    assert not result.uncovered


@pytest.mark.parametrize("within", [None, 0.123456789])
def test_no_printed_bound_is_too_small_and_no_condition_too_wide(within, files):
    conv, most = nn.Conv2d(2, 3, 3, padding=1), 1.99999999
    layer = construct.conv_to_mhsa(conv, alpha=1024.0 if within is None else 20.0)
    certificate = certify(conv, layer, grid=(5, 5), input_bound=most, within=within)
    (shown,) = files.write([("", certificate)], conv, layer).check().layers.values()
    assert "|x| ≤ 1.99999999 " in shown.sentence
    assert within is None or "at most 0.123456789 " in shown.sentence
    assert float(shown.sentence.rpartition("≤ ")[2]) >= certificate.bound.max()
    pair = pair_of(conv, layer, (5, 5), within)
    pair = replace(pair, stated=pair.stated._replace(input_bound=most))
    asked = questions_of(pair)[-1].claim
    assert f"|x| ≤ 1.99999999{' on inputs up to (5, 5)' * (within is not None)}," in asked
    assert within is None or "at most 0.123456789 " in asked


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()), nn.ConvTranspose2d(4, 2, 2, 2)])
        self.again = self.stem


@cache
def network():
    torch.manual_seed(0)
    net = Net()
    mhsa = construct.convert(net)
    layers = [
        (name, certify(m, mhsa.get_submodule(name), grid=(5, 6)))
        for name, m in net.named_modules()
        if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)
    ]
    return net, mhsa, layers


def test_a_network_is_confirmed_layer_by_layer(files):
    net, mhsa, layers = network()
    result = files.write(layers, net, mhsa).check()
    assert result.verdict.name == "PROVED"
    assert list(result.layers) == ["stem", "blocks.0.0", "blocks.1"]
    assert "what runs of the whole network showed is not repeated" in str(result)


def test_a_layer_that_no_certificate_covers_is_not_passed_over(files):
    net, mhsa, layers = network()
    result = files.write(layers[:-1], net, mhsa).check()
    assert result.verdict.name == "UNDECIDED"
    assert result.uncovered == ("blocks.1",)
    assert "no certificate covers 'blocks.1'" in str(result)
    assert files.write([], net, mhsa).check().verdict.name == "UNDECIDED"
    assert files.write([], nn.ReLU(), nn.ReLU()).check().verdict.name == "UNDECIDED"


def test_a_layer_that_no_path_reaches_is_not_passed_over(files):
    net, mhsa, layers = network()
    other = copy.deepcopy(net)
    assert files.write(layers, {"model": net, "ema": other}, mhsa).check().verdict.name == "PROVED"
    vars(other)["held"] = {nn.Conv2d(1, 1, 1): "whose forward may call it"}
    result = files.write(layers, other, mhsa).check()
    assert result.verdict.name == "UNDECIDED"
    assert "no certificate covers '(0: reached by no path)'" in str(result)


def alone(model):
    """The state dict without the second name of the shared module."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("again")}


def test_state_dicts_and_safetensors_are_confirmed(files):
    net, mhsa, layers = network()
    result = files.write(layers, net.state_dict(), mhsa.state_dict()).check()
    assert result.uncovered == ("again",)  # a state dict does not say that this is the stem
    result = files.write(layers, alone(net), alone(mhsa)).check()
    assert result.verdict.name == "PROVED"
    remarks = [note for note in result.notes if "states no geometry; assumed" in note]
    assert [note.partition(":")[0] for note in remarks] == ["3 of 3 layers"] * 2  # one line per file, not per layer
    # The verdict states its own limitation.
    assert "of 3 the files state no geometry" in result.verdict.sentence
    assert all("with the geometry that the certificate states" in str(v) for v in result.layers.values())
    for path, model in ((files.conv, net), (files.mhsa, mhsa)):
        described = {
            name: {"kind": type(model.get_submodule(name)).__name__, **stated_geometry(model.get_submodule(name))}
            for name, _ in layers
        }
        save_file(alone(model), path, {"geometry": json.dumps(described)})
    write_document(files.certificate, layers, files.conv, files.mhsa)
    result = files.check()
    assert result.verdict.name == "PROVED"
    assert not any("assumed" in note for note in result.notes)
    assert "geometry" not in str(result)


def test_safetensors_need_neither_torch_nor_the_builder(files):
    conv, mhsa = files.write_case("soft")
    words = ["check", str(files.certificate)]
    for name, layer in (("conv", conv), ("mhsa", mhsa)):
        save_file(layer.state_dict(), path := files.certificate.with_name(f"{name}.safetensors"))
        words += [f"--{name}", str(path)]
    code = f"""
import runpy, sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "construct", "mpmath", "sympy", "hypothesis", "scipy"):
            raise AssertionError(f"the checker imports {{name}}")
sys.meta_path.insert(0, Forbidden())
sys.argv = ["verify", *{words!r}]
runpy.run_module("verify", run_name="__main__", alter_sys=True)
"""
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("PROVED: 1 of 1 layers PROVED and recomputed")
    assert "conv.safetensors: not the very file that was certified, but it has the tensors of all" in done.stdout


def test_exit_codes(files, verify_command):
    words = ("check", files.certificate, "--conv", files.conv, "--mhsa", files.mhsa)
    conv, mhsa = files.write_case("2-D")
    verify_command.prints(*words)
    other = copy.deepcopy(mhsa)
    other.w_out[0, 0, 0, 0] += 1
    files.write([("", certify(conv, other, grid=(5, 6)))], conv, other)
    assert "REFUTED" in verify_command.prints(*words, code=1)
    files.write_case("2-D")
    files.edit(put(bound=[(2.0**-60).hex()] * 3))
    assert verify_command.refuses(*words).startswith("error: layer '': says PROVED, but ")
    files.mhsa.write_bytes(b"")
    verify_command.refuses(*words)


@pytest.mark.parametrize("place", ["certificate", "conv", "mhsa"])
def test_pipes_and_devices_are_refused_at_once(place, files, verify_command):
    files.write_case("2-D")
    os.mkfifo(pipe := files.certificate.with_name("pipe"))
    for path in (pipe, Path("/dev/zero")):
        setattr(files, place, path)
        words = ("check", files.certificate, "--conv", files.conv, "--mhsa", files.mhsa)
        assert verify_command.refuses(*words) == f"error: {path}: is not a regular file"


def test_numpy_that_raises_changes_nothing(files):
    files.write_case("soft")
    with np.errstate(all="raise"):
        assert files.check().verdict.name == "PROVED"


@pytest.mark.parametrize("arguments", [("chekc",), ("check",), ("check", "a", "--conv", "b", "--mhsa", "\n\x1bc")])
def test_bad_arguments_are_refused_in_one_line(arguments, verify_command):
    verify_command.refuses(*arguments)


def ulp(tensor):
    """Move the last nonzero number to the next one of its type."""
    flat = tensor.view(-1)
    place = int(flat.nonzero()[-1]) if flat.any() else 0
    flat[place] = torch.nextafter(flat[place], torch.tensor(torch.inf, dtype=tensor.dtype))


@pytest.mark.parametrize("tensor", ["weight", "bias", *TENSORS])
def test_one_number_changed_by_an_ulp_is_rejected(tensor, files):
    conv, mhsa = files.write_case("2-D")
    ulp(getattr(conv if tensor in ("weight", "bias") else mhsa, tensor))
    files.save(conv, mhsa)
    files.refused(f"^layer '': {tensor} of the .* is not the tensor that was certified")


@pytest.mark.parametrize("tensor", ["weight", "bias", "w_val", "w_out", "b_out"])
@pytest.mark.parametrize("name", ["2-D", "transposed", "float64", "float16", "padded heads", "depthwise"])
def test_an_ulp_is_seen_even_if_every_digest_is_forged(name, tensor, files):
    conv, mhsa = files.write_case(name)
    if tensor == "bias" and conv.bias is None:
        pytest.skip("no bias")
    ulp(getattr(conv if tensor in ("weight", "bias") else mhsa, tensor))
    files.forge(conv, mhsa)
    files.refused("its taps is below|below what its weights give")


GEOMETRIES = {
    **{"padding": (0, 1), "stride": (2, 1), "dilation": (1, 2), "padding_mode": "replicate"},
    **{"groups": 2, "transposed": True},
}


@pytest.mark.parametrize("side", ["conv", "mhsa"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_another_geometry_is_rejected(name, side, files):
    conv, mhsa = files.write_case("2-D")
    vars(conv if side == "conv" else mhsa.geometry)[name] = GEOMETRIES[name]
    files.save(conv, mhsa)
    files.refused("geometry of the .* is not the one|no plain convolution|do not fit together")
    files.forge(conv, mhsa)
    files.refused()


def test_pads_that_contradict_the_geometry_are_rejected(files):
    conv, mhsa = files.write_case(REFLECTED)
    conv._reversed_padding_repeated_twice = (3, 2)
    files.forge(conv, mhsa)
    files.refused("of no plain convolution")


def test_heads_moved_or_made_soft_are_rejected(files):
    conv, mhsa = files.write_case("2-D")
    for change, words in (
        (lambda a: a.v.data.copy_(a.v[[1, 0, *range(2, 9)]]), "below what"),  # two heads exchange targets
        (lambda a: a.v.data.mul_(0.05), "below what"),  # α = 51
        (lambda a: a.v[0].mul_(-1), "has no sharpness"),
        (lambda a: a.v[0, 1:].add_(1024.0), "has a gap of 0"),  # half-way
        (lambda a: a.v[0, 1:].sub_(2048.0), "off the grid"),
        (lambda a: (a.u[0, 0].add_(1), a.w_key[0, 0, 0].add_(1)), "by content"),
        (lambda a: a.w_val.mul_(float("nan")), "not finite"),
        (lambda a: a.w_out.mul_(1e38), "overflow"),
    ):
        other = copy.deepcopy(mhsa)
        change(other)
        files.forge(conv, other)
        files.refused(words)


def test_silent_changes_stay_proved(files):
    """Permuted heads, factors rescaled by powers of two, and heads that carry nothing leave the function unchanged."""
    conv, mhsa, grid, _ = built("2-D")
    order = torch.randperm(9)
    for name in TENSORS[:-1]:
        getattr(mhsa, name).data = getattr(mhsa, name)[order]
    mhsa.w_val[0] *= 4
    mhsa.w_out[0] /= 4
    twice = [torch.cat([getattr(mhsa, name), getattr(mhsa, name)[:2]]) for name in TENSORS[:-1]]
    for name, tensor in zip(TENSORS[:-1], twice, strict=True):
        getattr(mhsa, name).data = tensor
    mhsa.heads = 11
    mhsa.w_val[9] = 0
    mhsa.v[9, 1] = 1e5
    mhsa.w_val[10] /= 2
    mhsa.w_val[1] /= 2  # two heads at one shift, half each
    certificate = certify(conv, mhsa, grid=grid)
    assert certificate.verdict.name == "PROVED"
    result = files.write([("", certificate)], conv, mhsa).check()
    assert result.verdict.name == "PROVED"
    assert any("exact integer products" in note for note in result.notes)


def test_files_exchanged_or_damaged_are_rejected(files):
    _, mhsa = files.write_case("2-D")
    files.conv, files.mhsa = files.mhsa, files.conv
    files.refused()
    files.conv, files.mhsa = files.mhsa, files.conv
    content = files.mhsa.read_bytes()
    files.mhsa.write_bytes(content[:-30])
    files.refused("truncated")
    place = content.index(mhsa.w_out.numpy().tobytes())
    files.mhsa.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    files.refused("CRC")
    files.mhsa.unlink()
    files.refused("No such file")


def test_a_layer_of_another_class_is_rejected(files):
    conv, mhsa = files.write_case("2-D")
    files.forge(mhsa, mhsa)
    files.refused()
    files.forge(conv, conv)
    files.refused()


def one(document):
    return document["layers"][0]


def scaled(name, factor):
    def change(document):
        values = one(document)[name]
        values[-1] = (float.fromhex(values[-1]) * factor).hex()

    return change


def put(**fields):
    return lambda document: one(document).update(fields)


EDITS = {
    "an extra field": (lambda d: d.update(more=1), "missing or unknown: more"),
    "an extra field of a layer": (put(more=1), "missing or unknown: more"),
    "an extra field of a step": (lambda d: one(d)["steps"][0].update(more=1), "missing or unknown: more"),
    "a missing field": (lambda d: d.pop("network"), "missing or unknown: network"),
    "a missing field of a layer": (lambda d: one(d).pop("taps"), "missing or unknown: taps"),
    "another format": (lambda d: d.update(format="something"), "no certificate"),
    "another version": (lambda d: d.update(version=1), "no certificate of version 5"),
    "a version of another type": (lambda d: d.update(version=True), "version is of the wrong type"),
    "another version of a layer": (put(version=1), "version"),
    "another name of a step": (lambda d: one(d)["steps"][2].update(name="taps"), "a step of its own fails"),
    "observed with a space": (
        lambda d: put(observed=[f"{x} " for x in one(d)["observed"]])(d),
        "must be a number in its range",
    ),
    "no layers": (lambda d: d.update(layers=None), "layers is of the wrong type"),
    "a layer twice": (lambda d: d["layers"].append(one(d)), "stands twice"),
    "another verdict": (put(verdict="CHECKED"), "unknown verdict"),
    "a verdict that is no word": (put(verdict=1), "wrong type"),
    "a bound that is no number": (put(bound=["nan"] * 3), "must be a number"),
    "an infinite bound": (put(bound=["inf"] * 3), "must be a number"),
    "a bound written otherwise": (put(bound=["1.0"] * 3), "must be a number"),
    "a negative bound": (put(bound=["-0x1.0p+0"] * 3), "must be a number"),
    "a bound of decimals": (put(bound=[1.0] * 3), "malformed"),
    "a missing channel": (lambda d: one(d)["bound"].pop(), "different lengths"),
    "missing channels": (lambda d: [one(d)[part].pop() for part in CHANNELS], "what its weights"),
    "bound lowered": (scaled("bound", 0.9999), "bound is below"),
    "bound raised": (scaled("bound", 1.01), "bound is not what"),
    "rounding lowered": (scaled("rounding", 0.9999), "rounding is below"),
    "rounding raised": (scaled("rounding", 1.01), "rounding is not what"),
    "leakage invented": (put(leakage=[(0.1).hex()] * 3), "leakage is not what"),
    "taps invented": (put(taps=[(0.1).hex()] * 3), "taps is not what"),
    "a larger input": (put(input_bound=(2.0).hex()), "below what"),
    "no input": (put(input_bound=(0.0).hex()), "must be positive"),
    "another claim": (put(claim="difference within"), "contradict"),
    "another tolerance": (put(claim="difference within", within=(1e-9).hex()), "does not follow"),
    "another type": (put(dtype="float64"), "not float64"),
    "an unknown type": (put(dtype="float8"), "not float8"),
    "another number of heads": (put(heads=8), "there are not 8 heads"),
    "a grid of one axis": (put(grid=[5]), "does not fit"),
    "a grid too small": (put(grid=[5, 0]), "must be counts"),
    "a grid of other numbers": (put(grid=[5.0, 6]), "must be counts"),
    "a step that fails": (lambda d: one(d)["steps"][4].update(holds=False), "a step of its own fails"),
    "a step left out": (lambda d: one(d)["steps"].pop(3), "a step of its own fails"),
    "a run over the bound": (lambda d: one(d)["probes"][0].update(ratio=1.5), "a run exceeds"),
    "a run that is no number": (lambda d: one(d)["probes"][0].update(ratio="nan"), "a run exceeds"),
    "observed over the bound": (put(observed=[(1.0).hex()] * 3), "a run exceeds"),
    "a tightness of its own": (put(tightness=(3.0).hex()), "missing or unknown: tightness"),
    "a run over the bound that is none": (put(overrun=[]), "wrong type"),
    "a network that is none": (lambda d: d.update(network=[]), "wrong type"),
    "another digest of a tensor": (
        lambda d: one(d)["conv_sha256"].update(bias="0" * 64),
        "bias of the Conv2d is not the tensor that was certified",
    ),
    "no digest of a tensor": (lambda d: one(d)["mhsa_sha256"].pop("v"), "not those of a convolution and"),
    "no digest of a bias": (lambda d: one(d)["conv_sha256"].pop("bias"), "only one of certificate and file has bias"),
    "a digest of something else": (lambda d: one(d)["conv_sha256"].update(more="0" * 64), "not those of a convolution"),
    "one digest of all": (put(conv_sha256="0" * 64), "wrong type"),
    "another geometry": (lambda d: one(d)["conv_geometry"].update(stride=[2, 2]), "geometry of the Conv2d"),
    "an extra field of the geometry": (lambda d: one(d)["mhsa_geometry"].update(more=1), "geometry of the MHSA"),
}
CHANNELS = ("bound", "rounding", "leakage", "taps", "observed")


@pytest.mark.parametrize(("change", "words"), EDITS.values(), ids=EDITS.keys())
def test_an_edited_certificate_is_rejected(change, words, files):
    files.write_case("2-D")
    files.edit(change, sign=False)
    files.refused("edited|missing or unknown|no certificate")
    files.edit(lambda document: None)  # now it is signed
    files.refused(words)


NOT_STRICT = (b'{"a": 1, "a": 2}', b"[NaN]", b"[Infinity]", b"[-Infinity]", b"[1e999]", b"{", b"\xff", b"[" * 100000)
NO_OBJECT = (b"null", b"[]", b"3", b'"x"')


@pytest.mark.parametrize("text", NOT_STRICT + NO_OBJECT, ids=lambda text: repr(text[:20]))
def test_a_certificate_that_is_no_object_in_strict_json_is_rejected(text, files):
    files.write_case("2-D")
    files.certificate.write_bytes(text)
    files.refused("must be strict JSON" if text in NOT_STRICT else "must be a certificate, but it holds no JSON object")


@pytest.mark.parametrize("power", [-110, -60, 40, 90, 100])
@pytest.mark.parametrize("name", ["2-D", "soft"])
@pytest.mark.parametrize("bound", [1.0, 2.0**-20])
def test_layers_rescaled_by_powers_of_two_are_judged_alike(power, name, bound, files):
    """η times a W_out of 2^100 is not negligible: certifier and checker count underflow alike."""
    conv, mhsa, grid, claimed = built(name)
    mhsa.w_val.mul_(2.0**power)
    mhsa.w_out.mul_(2.0**-power)
    certificate = certify(conv, mhsa, grid=grid, input_bound=bound, **claimed)
    assert files.rechecked(certificate, conv, mhsa) == certificate.verdict.name


def test_a_refutation_of_a_difference_that_the_claim_allows_is_rejected(files):
    conv, mhsa, grid, _ = built("2-D")
    mhsa.b_out[0] += 1e-6
    refutation = certify(conv, mhsa, grid=grid).record()["counterexample"]
    for within, words in ((1.0, "by no more than what the claim allows"), (2.0**-40, "")):
        files.write([("", certify(conv, mhsa, grid=grid, within=within))], conv, mhsa)
        files.edit(put(verdict="REFUTED", counterexample=refutation))
        if words:
            files.refused(words)
        else:
            assert files.check().verdict.name == "REFUTED"


@pytest.mark.parametrize("part", ["leakage", "taps", "bound"])
def test_the_parts_of_a_soft_claim_are_recomputed(part, files):
    for name in ("soft", "truncated"):
        files.write_case(name)
        if float.fromhex(certified(name).record()[part][-1]):
            files.edit(scaled(part, 0.9999))
            files.refused(f"{part} is below")


def refuted(files):
    """A certificate with a counterexample: one weight is off by an ulp."""
    conv, mhsa, grid, _ = built("2-D")
    ulp(mhsa.w_out)
    certificate = certify(conv, mhsa, grid=grid)
    assert certificate.verdict.name == "REFUTED"
    return files.write([("", certificate)], conv, mhsa)


def test_a_counterexample_is_evaluated_again(files):
    result = refuted(files).check()
    assert (result.verdict.name, result.layers[""].name) == ("REFUTED", "REFUTED")
    for change in (
        lambda c: c.update(attention=c["convolution"]),
        lambda c: c.update(convolution="1/3"),
        lambda c: c.update(output=[0, 4, 4] if c["output"] != [0, 4, 4] else [0, 0, 0]),
        lambda c: c.update(output=[9, 9, 9]),
        lambda c: c["input"][0].__setitem__(1, "2"),
        lambda c: c["input"][0].__setitem__(0, [9, 9, 9]),
        lambda c: c.update(more=1),
        lambda c: c.update(attention="1.5"),
    ):
        refuted(files).edit(lambda document, change=change: change(one(document)["counterexample"]))
        files.refused()


@pytest.mark.parametrize(
    ("name", "fault"),
    [("2-D", "another padding mode"), ("2-D", "values of two heads swapped"), ("transposed", "a bias one ulp off")],
)
def test_what_is_refuted_is_refuted_again(name, fault, files):
    conv, mhsa, grid, _ = built(name)
    mhsa = FAULTS[fault].plant(conv, mhsa, np.random.default_rng(0))
    certificate = certify(conv, mhsa, grid=grid)
    assert certificate.verdict.name == "REFUTED"
    assert files.rechecked(certificate, conv, mhsa) == "REFUTED"


def all_steps_hold(document):
    for step in one(document)["steps"]:
        step.update(holds=True)


def test_what_is_not_proved_stays_so(files):
    conv, mhsa, grid, _ = built("soft")
    certificate = certify(conv, mhsa, grid=grid)
    assert certificate.verdict.name == "UNDECIDED"
    assert files.rechecked(certificate, conv, mhsa) == "UNDECIDED"
    files.edit(put(verdict="PROVED"))
    files.refused()
    files.edit(all_steps_hold)
    files.refused("does not follow")


def test_a_refuted_layer_cannot_be_called_proved(files):
    refuted(files).edit(put(verdict="PROVED", counterexample=None))
    files.refused()
    files.edit(all_steps_hold)
    files.refused("does not follow")
    files.edit(put(verdict="REFUTED"))
    assert files.check().verdict.name == "UNDECIDED"  # no counterexample, no refutation


def test_a_difference_in_shape_is_worked_out_again(files):
    for conv, other, sizes in (
        (nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3), ((5, 5), (3, 3))),
        (nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3, dilation=4), ((3, 3), None)),
    ):
        mhsa = construct.conv_to_mhsa(other)
        certificate = certify(conv, mhsa, grid=(5, 5))
        assert certificate.verdict.name == "REFUTED"
        assert certificate.counterexample is not None
        assert certificate.counterexample.shapes == sizes
        assert str(sizes[0]) in str(certificate)
        assert files.rechecked(certificate, conv, mhsa) == "REFUTED"
        for wrong in ([[5, 5], [5, 5]], [[4, 4], [3, 3]], [None, [3, 3]]):
            files.write([("", certificate)], conv, mhsa)
            files.edit(lambda d, wrong=wrong: one(d)["counterexample"].update(shapes=wrong))
            files.refused("names other sizes")
    files.write_case("2-D")  # does not refute layers with equal geometry
    shapes = {"input": [], "output": [], "convolution": "None", "attention": "None", "shapes": [[5, 6], [5, 5]]}
    files.edit(put(verdict="REFUTED", counterexample=shapes))
    files.refused("names other sizes")


def test_a_run_over_the_bound_is_written_down_with_its_input(files, monkeypatch):
    conv, mhsa, grid, _ = built("2-D")
    with monkeypatch.context() as patch:
        break_execution(patch, "dense", lambda run, *args: run(*args) * (1 + 2.0**-8))
        certificate = certify(conv, mhsa, grid=grid)
    over = certificate.overrun
    assert certificate.verdict.name == "REFUTED"
    assert over is not None
    assert over.execution == "dense"
    x = torch.from_numpy(over.input)
    exact = conv.double()(x[None])[(0, *over.output)]
    conv.float()
    assert float(over.convolution) == pytest.approx(float(exact), rel=1e-12)
    assert over.attention == pytest.approx(float(exact) * (1 + 2.0**-8), rel=1e-5)
    assert abs(over.attention - over.convolution) > 0.9 * certificate.bound[over.output[0]]
    files.write([("", certificate)], conv, mhsa)
    assert files.check().verdict.name == "UNDECIDED"  # repeating a run needs torch


def test_the_tightness_is_said_to_be_measured():
    certificate = certified("2-D")
    assert "tightness" not in certificate.record()  # bound and observed are
    assert 1 <= certificate.tightness < np.inf
    assert "measured, not proved" in str(certificate)


@st.composite
def pairs(draw):
    """A convolution and its attention layer, sharp or soft, full or truncated, and a grid."""
    conv = draw(convolutions())
    grid = draw(sizes_for(conv, 40))
    assume(is_quick(conv, grid))
    encoding = draw(st.sampled_from(["quadratic", "parabola"]))
    alpha = draw(st.sampled_from([1024.0, 1024.0, 600.0, 90.0, 3.0, 0.01, 1e-5]))
    head_dim = draw(st.sampled_from([None, None, 1, 7]))
    return conv, tuple(grid), construct.conv_to_mhsa(conv, alpha=alpha, encoding=encoding, head_dim=head_dim)


@settings(max_examples=settings().max_examples // 4)
@given(pair=pairs(), bound=st.sampled_from([1.0, 1e-3, 77.7]))
def test_both_implementations_find_the_same_bounds(pair, bound, tmp_path_factory):
    conv, grid, mhsa = pair
    within = 1e6
    try:
        certificate = certify(conv, mhsa, grid=grid, input_bound=bound, within=within)
    except (GridRefused, ValueError):
        assume(False)
        return
    files = Files(tmp_path_factory.mktemp("pair")).write([("", certificate)], conv, mhsa)
    result = files.check()
    assert result.verdict.name == ("PROVED" if certificate.verdict.name == "PROVED" else "UNDECIDED")
    (claim,), _ = read_document(files.certificate)
    pair = LayerPair.read(claim, *(layers_in(path).layers[""] for path in (files.conv, files.mhsa)))
    if certificate.verdict.name == "PROVED":
        own, _ = checker.parts_of(pair)
        for name in ("rounding", "leakage", "taps", "bound"):
            claimed = getattr(certificate, name)
            assert (claimed >= own[name]).all()
            assert (claimed <= 1.001 * own[name] + 1e-25).all()


@given(x=st.fractions(0, 800, max_denominator=10**6), bits=st.integers(64, 1400))
def test_exponentials_are_above_and_close(x, bits):
    enclosure = exponential(x, bits)
    with mpmath.workprec(bits + 2000):
        true = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** bits
        assert enclosure >= true
        assert enclosure <= true * (1 + mpmath.mpf(2) ** -50) + 2


@settings(max_examples=20)
@example(alpha=0.5, offset=Fraction(3, 20))
@given(alpha=st.floats(1e-9, 700), offset=st.fractions(0, Fraction(49, 100), max_denominator=1000))
def test_tails_are_above_and_close(alpha, offset):
    a = Fraction(alpha)
    bound = tail(a, offset, 1300)
    with mpmath.workprec(1600):
        x, f = mpmath.mpf(alpha), mpmath.mpf(offset.numerator) / offset.denominator
        if alpha > 0.5:
            true = sum(mpmath.exp(-x * (n * n + 2 * s * n * f)) for n in range(1, 60) for s in (1, -1))
        else:  # Poisson's formula turns the slow sum over all n into a fast one: Jacobi's theta function
            theta = mpmath.jtheta(3, mpmath.pi * f, mpmath.exp(-(mpmath.pi**2) / x))
            true = mpmath.exp(x * f * f) * mpmath.sqrt(mpmath.pi / x) * theta - 1
        bound = mpmath.mpf(bound.numerator) / bound.denominator
        assert bound >= true
        assert bound / (1 + bound) <= true / (1 + true) * (1 + mpmath.mpf(2) ** -21)


@settings(max_examples=30)
@given(data=st.data())
def test_products_are_judged_exactly(data):
    size = st.integers(1, 4)
    g, i, e, o = (data.draw(size) for _ in range(4))
    number = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, 1.0, -1.0, 0.5, 2.0**-300, 3.0, 1e-30]))

    def draw(*shape):
        return np.array(
            data.draw(st.lists(number, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        ).reshape(shape)

    a, b, tap = draw(g, i, e), draw(g, e, o), draw(g, i, o)
    if data.draw(st.booleans()):
        a = a * np.eye(i, e)
    exact = np.array(
        [
            [[sum(Fraction(a[n, r, k]) * Fraction(b[n, k, c]) for k in range(e)) for c in range(o)] for r in range(i)]
            for n in range(g)
        ],
        dtype=object,
    )
    product = selected(a, b)
    if product is not None:
        assert all(Fraction(float(p)) == x for p, x in zip(product.flat, exact.flat, strict=True))
    gap = product_gap([(a, b)], tap)
    for difference, x, t in zip(gap.flat, exact.flat, tap.flat, strict=True):
        true = abs(x - Fraction(float(t)))
        assert (difference == 0) == (true == 0)
        assert true <= Fraction(float(difference)) <= true * (1 + Fraction(1, 2**51)) + Fraction(1, 2**1073)


def test_a_head_is_read_back():
    centre = centre_of(np.array([-8.0, 18.0, -16.0]), np.eye(3), None, [3, 3])
    assert centre[:4] == ((1, -1), 8, (Fraction(1, 8), 0), 6)
    with pytest.raises(NoCentre, match="gap of 0"):
        centre_of(np.array([-8.0, 8.0, 0.0]), np.eye(3), None, [3, 3])
    centre = centre_of(np.array([-8.0, 16.0 * (7 * 2 - 3)]), np.eye(2), [7, 1], [5, 3])
    assert centre[:4] == ((2, -3), 8, (0,), 8)
    for radix in ([6, 1], [7, 2], [5, 1], [0, 1], [-7, 1]):
        with pytest.raises(NoCentre, match="radix"):
            centre_of(np.array([-8.0, 16.0]), np.eye(2), radix, [5, 3])


def test_the_only_key_of_a_head_may_not_be_zero_times_infinity():
    """Where a grid has one token, r_δ is 0, but c = Ŵ_keyᵀ v may have overflowed, and every output is NaN."""
    for read in (centre_of, finite_scores):
        read(np.array([-1e150]), np.array([[1e150, 0.0]]), None, [0])
        with pytest.raises(NoCentre, match="overflow"):
            read(np.array([-1e200]), np.array([[1e200, 0.0]]), None, [0])


@pytest.mark.parametrize(
    "radix", ["71", ["7", 1], ["7 1 0", "1"], [7.0, 1], [7, True], [7], [7, 1, 1], [], None, {"7": 1}], ids=str
)
def test_a_radix_is_a_whole_number_an_axis(radix: Any):
    """Else a certificate could put its own text before that of the weights."""
    conv = nn.Conv2d(1, 1, 3)
    stated = pair_of(conv, construct.conv_to_mhsa(conv, encoding="parabola"), (5, 5)).stated.geometries[1]
    assert geometry_of(stated | {"radix": [7, 1]})
    with pytest.raises(Rejected, match="must be the geometry of a convolution"):
        geometry_of(stated | {"radix": radix})


def test_documents_hold_no_infinity():
    probe = certified("2-D").probes[0] | {"ratio": np.inf}
    text = document([("", replace(certified("2-D"), probes=(probe,)))])
    (record,) = json.loads(text, parse_constant=pytest.fail)["layers"]
    assert record["probes"][0]["ratio"] == "inf"
