"""Difficult environments, by their row in docs/nasty_inputs.md: disks, signals, other runs, no GPU, terminals, little memory.

Rows 50 to 56; 57 and 58 are in test_nasty_files.  Many runs here are separate processes with warnings as errors.
"""

import errno
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import construct
from archives import archive_of, records_in, saved
from commands import ROOT, Command, bounded, contents, interrupted, limited, names, process, python
from construct.files.reading import read


@pytest.fixture
def model(from_conv: Command) -> Path:
    """A small network in the current folder, which is otherwise empty."""
    torch.save(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 1)), "m.pt")
    return Path("m.pt").resolve()


def test_row_50_a_folder_that_is_missing_or_takes_no_file_is_told_before_the_long_work(
    model: Path, from_conv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long_work(*_: Any, **__: Any) -> Any:
        pytest.fail("the model was read before the folder was looked at")

    monkeypatch.setattr("construct.command.conversion.source_of", long_work)
    assert "there is no folder none" in from_conv.refuses(model, "-o", "none/o.pt")
    assert "there is no folder" in from_conv.refuses(model, "-o", "m.pt/o.pt")
    opened = os.open

    def read_only(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    line = from_conv.refuses(model, "-o", "o.pt")
    assert "o.pt: cannot be written: Read-only file system (give another place with -o)" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_row_50_a_folder_without_the_right_to_write(model: Path, from_conv: Command) -> None:
    Path("locked").mkdir(mode=0o500)
    assert "cannot be written: Permission denied" in from_conv.refuses(model, "-o", "locked/o.pt")


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_row_50_a_disk_that_is_full_keeps_the_earlier_output(ending: str, model: Path, from_conv: Command) -> None:
    """As real as possible without a small disk: the system refuses to let a file grow."""
    from_conv.prints("m.pt", "-o", f"o.{ending}")
    with limited(resource.RLIMIT_FSIZE, 1500):  # room for only the first records
        line = from_conv.refuses("m.pt", "-o", f"o.{ending}", "--alpha", "256")
    assert line.startswith(f"error: o.{ending}: cannot be written: File too large")


@pytest.mark.parametrize("which", [1, 2], ids=["the layers", "the certificate"])
def test_row_50_no_space_left(which: int, model: Path, from_conv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, synced = [], os.fsync

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == which:
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(descriptor)

    from_conv.prints("m.pt", "-o", "o.pt")
    monkeypatch.setattr(os, "fsync", full)
    line = from_conv.refuses("m.pt", "-o", "o.pt", "--alpha", "256")
    ending = "pt" if which == 1 else "json"
    assert line.startswith(f"error: o.{ending}: cannot be written: No space left on device")


def test_row_50_no_layer_stands_beside_the_certificate_of_others(model: Path, from_conv: Command) -> None:
    """A run without a certificate removes an earlier run's certificate and says so; files that are not ours stay."""
    options = ("m.pt", "-o", "o.pt")
    from_conv.prints(*options)
    from_conv.prints(*options, "--no-certify", "--alpha", "3", code=1)
    assert names() == {"m.pt", "o.pt", "o.json"}  # REFUTED: nothing is written, and nothing deleted
    out = from_conv.prints(*options, "--no-certify")
    assert "o.json was deleted: the certificate of an earlier run" in out
    assert names() == {"m.pt", "o.pt"}
    for foreign in ("notes", '{"format": "of somebody"}'):
        Path("o.json").write_text(foreign)
        assert "was deleted" not in from_conv.prints(*options, "--no-certify", "--force")
        assert Path("o.json").read_text() == foreign


def test_row_50_an_output_in_place_of_a_certificate_stays(model: Path, from_conv: Command) -> None:
    from_conv.prints("m.pt", "-o", "o.pt")
    assert "was deleted" not in from_conv.prints("m.pt", "-o", "o.json", "--no-certify", "--force")
    assert isinstance(read("o.json").content, torch.nn.Module)


def test_row_50_no_layers_leave_their_certificate(model: Path, from_conv: Command, monkeypatch: pytest.MonkeyPatch):
    """If an earlier certificate cannot be deleted, the earlier layers stay with it."""
    from_conv.prints("m.pt", "-o", "o.pt")
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.name == "o.json":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    line = from_conv.refuses("m.pt", "-o", "o.pt", "--alpha", "256", "--no-certify")
    assert line == "error: o.json: cannot be written: Operation not permitted (nothing was changed)"


@pytest.mark.parametrize(("options", "state"), [((), "written"), (("--no-certify",), "deleted")])
def test_row_50_a_network_that_cannot_be_renamed(
    options: tuple[str, ...], state: str, model: Path, from_conv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then its certificate is in place, or deleted, and the line says so."""
    from_conv.prints("m.pt", "-o", "o.pt")
    replace = Path.replace

    def refused(path: Path, target: Path) -> Path:
        if target.name == "o.pt":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refused)
    line = f"error: o.pt: cannot be written: Operation not permitted (o.json is {state})\n"
    assert from_conv("m.pt", "-o", "o.pt", "--alpha", "256", *options) == (2, "", line)
    assert names() == {"m.pt", "o.pt"} | ({"o.json"} if state == "written" else set())


@pytest.mark.parametrize(
    "options", [(), ("--json",), ("--alpha", "3", "--no-certify")], ids=["table", "json", "refuted"]
)
def test_row_50_a_report_that_finds_no_space(options: tuple[str, ...], model: Path) -> None:
    with Path("/dev/full").open("w") as full:
        running = process("m.pt", "-o", "o.pt", *options, stdout=full)
        _, err = running.communicate(timeout=100)
    written = "nothing else was written" if "3" in options else "o.pt is written"
    assert running.returncode == 2
    assert err == f"error: stdout: cannot be written: No space left on device ({written})\n"
    assert names() == ({"m.pt"} if "3" in options else {"m.pt", "o.pt", "o.json"})


def test_row_50_an_error_that_finds_no_space_keeps_its_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        running = process("gone.pt", stderr=full)
        out, _ = running.communicate(timeout=100)
    assert (running.returncode, out) == (2, "")


WAIT = """
import pathlib, time
from {package} import {module}
real = {module}.{name}
def slow(*a, **k):
    pathlib.Path("running").touch()
    time.sleep(60)
    return real(*a, **k)
{module}.{name} = slow
"""


STAGES = [
    ("construct.files.reading", "unwrap"),
    ("construct.files.command_line.load_network", "conv_to_mhsa"),
    ("construct.command.conversion", "check_conversion"),
    ("construct.command.output", "archived"),
]
IN_THE_NETWORK = ("torch.nn.functional", "conv2d")
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize(("kind", "place"), [
    *zip(SIGNALS * 2, STAGES, strict=True), (signal.SIGTERM, STAGES[2]), *((kind, IN_THE_NETWORK) for kind in SIGNALS)
])  # fmt: skip
def test_row_51_interrupted_at_any_stage(kind: signal.Signals, place: tuple[str, str], model: Path, from_conv: Command):
    from_conv.prints("m.pt")
    before = contents()
    package, _, module = place[0].rpartition(".")
    wait = WAIT.format(package=package, module=module, name=place[1])
    interrupted(process("m.pt", "--alpha", "256", before=wait), kind)
    assert contents() == before


@pytest.mark.parametrize("package", ["torch", "rich"])
@pytest.mark.parametrize("kind", SIGNALS)
def test_row_51_interrupted_while_it_imports(kind: signal.Signals, package: str, model: Path) -> None:
    slow = "import pathlib, time\npathlib.Path('running').touch()\ntime.sleep(60)\n"
    Path("slow", package).mkdir(parents=True)
    Path("slow", package, "__init__.py").write_text(slow)
    interrupted(process("m.pt", environment={"PYTHONPATH": f"slow{os.pathsep}{ROOT}"}), kind)
    assert names() == {"m.pt", "slow"}


@pytest.mark.parametrize("how", [("-c", "import own.train"), ("-m", "own.train")], ids=["import", "run"])
def test_row_51_a_program_that_imports_the_package_answers_signals_itself(how: tuple[str, str], tmp_path: Path) -> None:
    code = """import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL"""
    Path(tmp_path, "own").mkdir()
    Path(tmp_path, "own", "__init__.py").write_text("import construct")
    Path(tmp_path, "own", "train.py").write_text(code)
    assert python(*how, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}").returncode == 0


@pytest.mark.parametrize("form", ["m.pt", "./m.pt", "link.pt", "hard.pt", "folder/../m.pt"])
def test_row_52_output_onto_the_input(form: str, model: Path, from_conv: Command) -> None:
    Path("folder").mkdir()
    Path("link.pt").symlink_to("m.pt")
    Path("hard.pt").hardlink_to("m.pt")
    assert "is an input itself" in from_conv.refuses("m.pt", "-o", form, "--force")


@pytest.mark.parametrize("flag", ["--example-inputs", "--model-file"])
def test_row_52_output_onto_another_input(flag: str, model: Path, from_conv: Command) -> None:
    Path("net.py").write_text("from torch import nn\ndef Net(): return nn.Sequential(nn.Conv2d(1, 2, 3))\n")
    torch.save(torch.zeros(1, 1, 4, 4), "x.pt")
    own = {"--example-inputs": "x.pt", "--model-file": "net.py"}[flag]
    before = Path(own).read_bytes()
    value = own + ":Net" * (flag == "--model-file")
    assert f"{own}: is an input itself" in from_conv.refuses("m.pt", flag, value, "-o", own, "--force")
    assert Path(own).read_bytes() == before


def test_row_53_two_runs_at_once_on_one_output(model: Path) -> None:
    """The two wait for each other just before writing, so that they write at the same time."""
    meet = """
import pathlib, time
from construct.command import conversion as command
real = command.write_outputs
def together(*a):
    pathlib.Path(f"ready{os.getpid()}").touch()
    while len(list(pathlib.Path().glob("ready*"))) < 2:
        time.sleep(0.001)
    return real(*a)
command.write_outputs = together
"""
    runs = [process("m.pt", "-o", "o.pt", "--alpha", alpha, before="import os" + meet) for alpha in (256, 512)]
    for run in runs:
        _, err = run.communicate(timeout=100)
        assert (run.returncode, err) == (0, "")
    for path in Path.cwd().glob("ready*"):
        path.unlink()
    assert names() == {"m.pt", "o.pt", "o.json"}
    layer: Any = construct.load("o.pt").get_submodule("0")
    assert float(layer.centres()[0].max()) in (256.0, 512.0)
    json.loads(Path("o.json").read_bytes())


def from_cuda(content: object, zipped: bool = True) -> bytes:
    """The file that torch.save would write for tensors on a GPU: only the storages' location differs."""
    file = saved(content, _use_new_zipfile_serialization=zipped)
    on_cpu, on_gpu = (b"X" + struct.pack("<I", len(place)) + place for place in (b"cpu", b"cuda:0"))
    if not zipped:
        assert on_cpu in file
        return file.replace(on_cpu, on_gpu)
    records = records_in(file)
    assert on_cpu in records["data.pkl"]
    records["data.pkl"] = records["data.pkl"].replace(on_cpu, on_gpu)
    return archive_of(records)


@pytest.mark.parametrize("form", ["module", "state dict", "old state dict"])
def test_row_54_a_checkpoint_saved_on_a_gpu(form: str, from_conv: Command) -> None:
    conv = nn.Conv2d(1, 2, 3)
    content = from_cuda(conv if form == "module" else conv.state_dict(), zipped=not form.startswith("old"))
    Path("m.pt").write_bytes(content)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load("m.pt", weights_only=False)  # plain torch does not load it here
    options = () if form == "module" else ("--stride", "1")
    assert "PROVED" in from_conv.prints("m.pt", *options)
    layer: Any = construct.load("m.mhsa.pt")
    assert layer.w_val.device.type == "cpu"
    assert torch.equal(layer.weight, conv.weight)


def test_row_54_a_gpu_that_is_not_there(model: Path, from_conv: Command) -> None:
    assert "unrecognized arguments: --device cuda" in from_conv.refuses("m.pt", "--device", "cuda")
    torch.save(nn.Conv2d(1, 1, 1).state_dict(), "s.pt")
    Path("net.py").write_text("import torch\ndef net():\n    return torch.nn.Conv2d(1, 1, 1, device='cuda')\n")
    if not torch.cuda.is_available():
        assert "net.py:net: " in from_conv.refuses("s.pt", "--model-file", "net.py:net")


@pytest.mark.parametrize("options", [(), ("--json",), ("--help",)], ids=["table", "json", "help"])
def test_row_55_a_reader_who_has_gone(options: tuple[str, ...], model: Path) -> None:
    done = process("m.pt", *options)
    assert done.stdout is not None
    done.stdout.close()
    assert done.stderr is not None
    assert (done.stderr.read(), done.wait(timeout=100)) == ("", 0)
    done.stderr.close()
    assert names() == ({"m.pt"} if options == ("--help",) else {"m.pt", "m.mhsa.pt", "m.mhsa.json"})


def test_row_55_no_stdout_at_all(model: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -W error -m construct.from_conv m.pt >&- 2>e'],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=100,
        check=False,
    )
    assert (done.returncode, Path("e").read_text()) == (0, "")
    assert names() == {"m.pt", "m.mhsa.pt", "m.mhsa.json", "e"}


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        *({"PYTHONIOENCODING": coding} for coding in ("ascii", "latin-1")),
    ],
)
def test_row_55_a_locale_without_our_letters(locale: dict[str, str], model: Path) -> None:
    name = "größe\u202e.pt"
    Path(name).write_bytes(model.read_bytes())
    done = process(name, "--input-size", 1, 8, 8, environment=locale, text=False)
    out, err = done.communicate(timeout=100)
    assert (done.returncode, err) == (0, b"")
    assert b"\x1b" not in out  # no colour without a terminal
    assert "α".encode() not in out
    if locale != {"PYTHONIOENCODING": "latin-1"}:
        assert out.isascii()
        assert b"| alpha |" in out
    done = process(name + "x", environment=locale, text=False)
    out, err = done.communicate(timeout=100)
    assert (done.returncode, out) == (2, b"")
    assert err.startswith(b"error: ")
    assert err.count(b"\n") == 1


def test_row_55_no_colour_into_a_file_whatever_the_terminal(model: Path) -> None:
    done = process("m.pt", environment={"TERM": "xterm-256color", "COLORTERM": "truecolor"})
    out, err = done.communicate(timeout=100)
    assert (done.returncode, err) == (0, "")
    assert "\x1b" not in out


BOMBS = {
    "inputs": (nn.Conv2d(1, 2, 3), ("--input-size", "1", "100000", "100000"), "a run on 2 random inputs of 1x100000x100000"),
    "volumes": (nn.Conv3d(1, 2, 3), ("--input-size", "1", "3000", "3000", "3000"), "random inputs of 1x3000x3000x3000"),
    "padding": (nn.Conv2d(1, 1, 3, padding=10**6), (), "inputs of 1x1000001x1000002 needs"),
    "padding of a network": (
        nn.Sequential(nn.Conv2d(1, 1, 3, padding=10**6)),
        ("--input-size", "1", "4", "4"),
        "0: comparing an output of 1x2000002x2000002 needs",
    ),
    "output padding": (
        nn.ConvTranspose2d(1, 1, 1, output_padding=99999, stride=10**5),
        (),
        "the layer: comparing an output",
    ),
    "stride": (nn.ConvTranspose2d(1, 1, 3, stride=10**6), ("--no-certify",), "the layer: comparing an output"),
    "dilation": (nn.Conv2d(1, 1, 3, dilation=10**6), (), "inputs of 1x2000003x2000004 needs"),
    "attention": (nn.Conv2d(1, 1, 3), ("--execution", "dense", "--input-size", "1", "999", "999"), "dense attention of 9 heads"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_row_56_and_15_what_cannot_fit_is_told_from_the_shapes_alone(
    name: str, model: Path, from_conv: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal gives figures and comes before any allocation: the process may not even take another GiB."""
    conv, options, message = BOMBS[name]
    torch.save(conv, "m.pt")
    monkeypatch.setattr("construct.errors.available_bytes", lambda device: 8 * 2**30)
    started = time.process_time()
    with bounded(60):
        line = from_conv.refuses("m.pt", *options)
    assert time.process_time() - started < 5
    assert message in line
    assert "GiB, and 8.0 GiB are free on cpu (" in line


def test_row_56_figures_below_a_gib(model: Path, from_conv: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("construct.errors.available_bytes", lambda device: 10_000)
    line = from_conv.refuses("m.pt", "--input-size", 1, 30, 30, "--execution", "dense")
    assert "0.0 MiB are free on cpu" in line


def test_row_56_an_allocation_that_fails_is_told_with_its_size(model: Path, from_conv: Command) -> None:
    Path("net.py").write_text(
        "import torch\nclass Outer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(1, 2, 1)\n"
        "    def forward(self, x):\n        return self.conv(x) + torch.empty(2**46).sum()\n"
    )
    torch.save({f"conv.{key}": value for key, value in nn.Conv2d(1, 2, 1).state_dict().items()}, "s.pt")
    line = from_conv.refuses("s.pt", "--model-file", "net.py:Outer", "--input-size", 1, 4, 4)
    assert "out of memory: 262144.0 GiB more were asked for (" in line
