"""Files that would run code: rows 1 to 3 of docs/nasty_inputs.md.

Each payload creates a file ``trace`` in the current folder, and a separate test shows that the plain reader would run it.
"""

import io
import pickle
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

import construct
from archives import called, legacy, named, program, records_in, saved, text, with_pickle
from commands import Command, names
from construct.errors import BadModelFile


@pytest.fixture
def refusal(from_conv: Command) -> Callable[..., str]:
    """The one line with which the command refuses such a file; nothing runs and nothing is written.

    Nor with a network, for which what is beside its tensors is passed over.
    """

    def refuse(content: bytes, name: str = "m.pt", *options: str) -> str:
        Path(name).write_bytes(content)
        line = from_conv.refuses(name, *options)
        assert line.startswith(f"error: {name}: ")
        before = names()
        with suppress(BadModelFile):
            construct.load(name, model=nn.Conv2d(1, 1, 3, bias=False))
        assert names() == before
        return line

    return refuse


def whole(*instructions: bytes) -> bytes:
    """The pickle of a state dict whose only value comes from these instructions."""
    return program(b"}", text("weight"), *instructions, b"s")


def bare(data: bytes) -> bytes:
    return data


PACKED = [bare, with_pickle, legacy]
"""The bare pickle, packed by torch.save, and packed as before torch 1.6."""
TOUCH, WRITE = text("touch trace"), text("open('trace', 'w').close()")
SYSTEM = called(named("os", "system"), TOUCH)
EMPTY = b"}"
NESTED = called(named("_codecs", "encode"), text((b"\x80\x02" + SYSTEM + b".").decode("latin-1")), text("latin1"))
GETATTR, IMPORT = named("builtins", "getattr"), named("builtins", "__import__")

# The payload, and the name in the refusal.
GADGETS = {
    "os": (SYSTEM, "os.system"),
    "posix": (called(named("posix", "system"), TOUCH), "posix.system"),
    "subprocess": (called(named("subprocess", "getoutput"), TOUCH), "subprocess.getoutput"),
    "eval": (called(named("builtins", "eval"), WRITE), "builtins.eval"),
    "Python 2": (called(named("__builtin__", "eval"), WRITE), "builtins.eval"),
    "exec": (called(named("builtins", "exec"), WRITE), "builtins.exec"),
    "getattr chain": (called(called(GETATTR, called(IMPORT, text("os")), text("system")), TOUCH),
                      "builtins.__import__, builtins.getattr"),
    "getattr of what may be named": (
        called(called(GETATTR, called(GETATTR, named("torch", "Tensor"), text("__init__")), text("__doc__")), TOUCH),
        "builtins.getattr"),
    "partial": (called(called(named("functools", "partial"), named("os", "system"), TOUCH)), "functools.partial"),
    "map": (called(named("builtins", "list"), called(named("builtins", "map"), named("os", "system"), b"(" + TOUCH + b"t")),
            "builtins.list, builtins.map, os.system"),
    "methodcaller": (called(called(named("operator", "methodcaller"), text("system"), TOUCH), called(IMPORT, text("os"))),
                     "operator.methodcaller"),
    "a pickle in a pickle": (called(named("_pickle", "loads"), NESTED), "_pickle.loads"),
    "numpy runs a string": (called(named("numpy.testing._private.utils", "runstring"), WRITE, EMPTY),
                            "numpy.testing._private.utils.runstring"),
    "torch runs a command": (called(named("torch.utils.collect_env", "run"), TOUCH), "torch.utils.collect_env.run"),
    "torch runs a string": (called(named("torch.jit.unsupported_tensor_ops", "execWrapper"), WRITE, EMPTY, EMPTY),
                            "torch.jit.unsupported_tensor_ops.execWrapper"),
    "torch loads a file": (called(named("torch", "load"), text("other.pt")), "torch.load"),
    "torch loads bytes": (called(named("torch.storage", "_load_from_bytes"), TOUCH), "torch.storage._load_from_bytes"),
    "torch compiles": (called(named("torch.utils.cpp_extension", "load_inline"), TOUCH), "torch.utils.cpp_extension.load_inline"),
    "torch.hub": (called(named("torch.hub", "load"), TOUCH, TOUCH), "torch.hub.load"),
    "torch.compile": (called(named("torch._dynamo.eval_frame", "optimize"), TOUCH), "torch._dynamo.eval_frame.optimize"),
    "runpy": (called(named("runpy", "run_path"), text("evil.py")), "runpy.run_path"),
    "INST": (b"(" + TOUCH + b"ios\nsystem\n", "os.system"),
    "OBJ": (b"(" + named("os", "system") + TOUCH + b"o", "os.system"),
    "NEWOBJ": (named("evil", "Evil") + b")\x81", "evil.Evil"),
    "BUILD": (named("evil", "Evil") + b")\x81" + EMPTY + b"b", "evil.Evil"),
}  # fmt: skip
RUN = ["os", "posix", "subprocess", "eval", "exec", "getattr chain", "partial", "methodcaller", "a pickle in a pickle"]
RUN += ["INST", "OBJ", "map", "numpy runs a string", "torch runs a command", "torch runs a string"]


@pytest.mark.parametrize("name", RUN)
def test_row_01_the_payloads_would_run(name: str, from_conv: Command) -> None:
    pickle.loads(whole(GADGETS[name][0]))
    assert Path("trace").exists()


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("name", GADGETS)
def test_row_01_and_02_a_payload_is_named_and_never_run(name: str, packed: Any, refusal: Any) -> None:
    payload, names_in_it = GADGETS[name]
    assert names_in_it in refusal(packed(whole(payload)))
    before_a_model = b"\x80\2" + payload + b"0" + records_in(saved(KERNEL))["data.pkl"][2:]
    assert names_in_it in refusal(with_pickle(before_a_model, b"\0" * 36))


class Reduced:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('trace', 'w').close()",)


def in_a_module() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 1, 3))
    model[0].extra = Reduced()  # type: ignore[assignment]
    return model


REDUCED = {
    "bare": Reduced(),
    "state dict": {"weight": torch.ones(1, 1, 3, 3), "extra": Reduced(), "later": Reduced()},
    "checkpoint": {"state_dict": {}, "args": [Reduced()]},
    "module": in_a_module(),
}
DUMPS: dict[str, Callable[[Any], bytes]] = {
    "torch.save": saved,
    "protocol 4": lambda content: saved(content, pickle_protocol=4),
    "before 1.6": lambda content: saved(content, _use_new_zipfile_serialization=False),
    "pickle": pickle.dumps,
    "pickle 2": lambda content: pickle.dumps(content, protocol=2),
    "torn": lambda content: pickle.dumps(content, protocol=2)[:-1],
}


@pytest.mark.parametrize("dump", DUMPS)
@pytest.mark.parametrize("content", REDUCED)
def test_row_01_a_reduce_that_runs_code(content: str, dump: str, refusal: Any, from_conv: Command) -> None:
    file = DUMPS[dump](REDUCED[content])
    assert "not allowed: " in refusal(file)
    # A file of network inputs runs nothing either.
    Path("in.pt").write_bytes(file)
    torch.save(nn.Conv2d(1, 1, 3), "m.pt")
    for line in (refusal(file, "n.pt"), from_conv.refuses("m.pt", "--example-inputs", "in.pt")):
        assert "not allowed: " in line
        assert "builtins.exec" in line
    assert names() == {"m.pt", "n.pt", "in.pt"}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("end", [b"", b"\xff\xff", b"\x93.", b"0", b"X\xff\xff\xff\x7f"], ids=repr)
def test_row_02_a_payload_before_a_broken_stream(end: bytes, packed: Any, refusal: Any) -> None:
    assert "os.system" in refusal(packed(b"\x80\x02" + SYSTEM + end))


def test_row_02_a_payload_behind_the_end_of_the_stream(refusal: Any) -> None:
    refusal(with_pickle(whole(b"K\x01") + b"\x80\x02" + SYSTEM + b"."))
    refusal(legacy(whole(b"K\x01")) + b"\x80\x02" + SYSTEM + b".")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.serialization", "os.system"),
        ("torch", "serialization.os.system"),
        ("torch.nn.modules.conv", "torch.serialization.os.system"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch.nn.modules.conv", "Conv2d.__init__.__globals__"),
        ("collections", "OrderedDict.__reduce__"),
        ("collections", "_sys.modules"),
    ],
)
@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("protocol", [2, 4])
def test_row_02_names_with_dots(module: str, name: str, packed: Any, protocol: int, refusal: Any) -> None:
    """From protocol 4 on, pickle follows dots in a name, which lead from a harmless module to ``os``."""
    function = named(module, name) if protocol == 2 else text(module) + text(name) + b"\x93"
    payload = b"\x80" + bytes([protocol]) + whole(called(function, TOUCH))[2:]
    if protocol == 4 and name == "os.system":
        with pytest.MonkeyPatch.context() as patch:
            Path("would").mkdir()
            patch.chdir("would")
            pickle.loads(payload)
            assert Path("trace").exists()
    assert f"not allowed: {module}.{name}" in refusal(packed(payload))


EVIL = "open('trace', 'w').close()\nclass Evil: pass\ndef go(*_): return Evil()\n"


@pytest.mark.parametrize("packed", PACKED)
def test_row_02_a_module_beside_the_file_is_not_imported(packed: Any, refusal: Any) -> None:
    Path("evil.py").write_text(EVIL)
    assert "evil.go" in refusal(packed(whole(called(named("evil", "go")))))
    assert "evil" not in sys.modules
    assert names() == {"evil.py", "m.pt"}


KERNEL = {"weight": torch.ones(1, 1, 3, 3)}
OPTIONS = ("--stride", "1")
"""Options with which the harmless half of each file below would be converted."""


def test_row_02_the_harmless_half_would_be_converted(from_conv: Command) -> None:
    for number, content in enumerate((saved(KERNEL), save(KERNEL))):
        Path(f"{number}.pt").write_bytes(content)
        from_conv.prints(f"{number}.pt", *OPTIONS)


def test_row_02_a_pickle_that_is_a_zip_too(refusal: Any) -> None:
    """Zip readers start at a file's end and pickle readers at its beginning, so the file is ambiguous."""
    evil, good = whole(SYSTEM), saved(KERNEL)
    assert zipfile.is_zipfile(io.BytesIO(evil + good))
    assert "os.system" in refusal(evil + good, "m.pt", *OPTIONS)
    assert "os.system" in refusal(legacy(evil) + good, "m.pt", *OPTIONS)


def test_row_02_a_zip_with_something_before_or_behind(refusal: Any) -> None:
    evil, good = with_pickle(whole(SYSTEM)), saved(KERNEL)
    for content in (evil + good, good + evil, b"PK\x03\x04" + good, good[:100] + good, b"#!/bin/sh\n" + good):
        refusal(content, "m.pt", *OPTIONS)
    file = io.BytesIO(good)
    with zipfile.ZipFile(file, "a") as zipped:
        zipped.comment = evil  # readers that search backwards find another directory in it
    refusal(file.getvalue(), "m.pt", *OPTIONS)


def test_row_02_a_zip_behind_safetensors(refusal: Any, from_conv: Command) -> None:
    for name in ("m.safetensors", "m.pt"):
        assert "safetensors" in refusal(save(KERNEL) + with_pickle(whole(SYSTEM)), name, *OPTIONS)
    hidden = save({**KERNEL, "z": torch.frombuffer(bytearray(with_pickle(whole(SYSTEM))), dtype=torch.uint8)})
    Path("n.safetensors").write_bytes(hidden)  # as a tensor's numbers it is harmless
    assert zipfile.is_zipfile("n.safetensors")
    from_conv.prints("n.safetensors", *OPTIONS)
    assert not Path("trace").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(
    "other", ["m/data.pkl", "m/DATA.PKL", "m/Data.pkl", "M/data.pkl", "n/data.pkl", "m/m/data.pkl", "m\\data.pkl"]
)
@pytest.mark.parametrize("first", [True, False])
def test_row_02_two_records_that_could_be_meant(other: str, first: bool, refusal: Any) -> None:
    """Torch's reader ignores the case of names, so which of the two it finds is unspecified."""
    with zipfile.ZipFile(io.BytesIO(saved(KERNEL))) as zipped:
        kept = {entry.filename.replace("archive", "m"): zipped.read(entry) for entry in zipped.infolist()}
    pickles = [("m/data.pkl", kept.pop("m/data.pkl")), (other, whole(SYSTEM))]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        for name, content in (*(pickles if first else pickles[::-1]), *kept.items()):
            zipped.writestr(name, content)
    refusal(file.getvalue(), "m.pt", *OPTIONS)


@pytest.mark.parametrize("record", ["data/weights/weight_0", "data/sample_inputs/model.pt", "data/constants/c.pt"])
def test_row_03_a_program_with_a_pickle_in_it(record: str, refusal: Any) -> None:
    program = torch.export.export(nn.Conv2d(1, 1, 3).eval(), (torch.ones(1, 1, 5, 5),))
    torch.export.save(program, "good.pt2")
    file = io.BytesIO()
    with zipfile.ZipFile("good.pt2") as source, zipfile.ZipFile(file, "w") as out:
        for entry in source.infolist():
            out.writestr(entry.filename, source.read(entry))
        out.writestr(f"good/{record}.evil", whole(SYSTEM))
    assert "a program of torch.export" in refusal(file.getvalue(), "m.pt2")
    assert "--trust" in refusal(file.getvalue(), "m.pt2", "--stride", "1")
