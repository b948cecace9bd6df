"""Builds the verified checker from the Coq sources into the user's cache: compile, compare the
axioms, extract, link.

A build's folder is named by a digest of the sources, so a program built from other sources is never
run.  The build happens in a temporary folder next to it, which is renamed when complete.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SOURCES = Path(__file__).parent
VERSION = "8.16"
PACKAGES = (
    "apt-get install coq libcoq-coquelicot libcoq-flocq libzarith-ocaml-dev ocaml-findlib make"
)
TOOLS = ("coqc", "coq_makefile", "ocamlfind", "make")
ADMITTED = re.compile(
    r"^ *(?:Local |Global |#\[.*\] *)*(Axioms?|Parameters?|Conjectures?)\b|\b(Admitted|admit|bypass_check|Unset \w+ Checking)\b",
    re.MULTILINE,
)


class NotBuilt(ValueError):
    """The verified checker does not exist, or could not be built."""


def sources() -> list[Path]:
    """Every file that a build reads, relative to `SOURCES`."""
    patterns = ("*.v", "*/*.v", "*/checker.ml", "_CoqProject", "axioms.txt")
    return sorted(
        path.relative_to(SOURCES) for pattern in patterns for path in SOURCES.glob(pattern)
    )


def build_folder() -> Path:
    """The folder for the build of these sources, whether it exists or not."""
    files = [
        f"{path.as_posix()} {hashlib.sha256((SOURCES / path).read_bytes()).hexdigest()}\n"
        for path in sources()
    ]
    digest = hashlib.sha256("".join(files).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = cache if cache.is_absolute() else Path.home() / ".cache"
    return cache / "conv-as-attention" / f"coq-{digest.hexdigest()[:20]}"


def program() -> Path:
    """The verified checker; `NotBuilt` if it has not been built from these sources."""
    path = build_folder() / "checker"
    if not path.is_file():
        raise NotBuilt("the verified checker is not built (python -m verify coq build)")
    return path


def build(report: Callable[[str], None]) -> Path:
    """Build the verified checker, unless it exists already.

    Args:
        report: called with a line for each compiled file.

    Raises:
        NotBuilt: a tool is missing, or a step failed.
    """
    target = build_folder()
    checker = target / "checker"
    if checker.is_file():
        return checker
    _check_tools()
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(".building-*"):  # left by a build that was killed
        if time.time() - left.stat().st_mtime > 86_400:
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        _build_in(folder, report)
        try:
            folder.rename(target)
        except OSError:  # another build came first, or left a folder without a program
            if not checker.is_file():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return checker


def _check_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not missing:
        version = _run(SOURCES, "coqc --print-version").split()[0]
        if not f"{version}.".startswith(f"{VERSION}."):
            raise NotBuilt(f"Coq {version} is installed, and the proofs are written for {VERSION}")
        libraries = Path(_run(SOURCES, "coqc -where").strip()) / "user-contrib"
        missing = [name for name in ("Coquelicot", "Flocq") if not (libraries / name).is_dir()]
        missing += [] if "zarith" in _run(SOURCES, "ocamlfind list") else ["zarith"]
    if missing:
        raise NotBuilt(
            f"the verified checker takes Coq {VERSION}; missing: {', '.join(missing)} (on Debian: {PACKAGES})"
        )


def _build_in(folder: Path, report: Callable[[str], None]) -> None:
    files = [path for path in sources() if path.suffix == ".v" and path.name != "Headlines.v"]
    for path in sources():
        text = (SOURCES / path).read_text(encoding="utf-8")
        if path.suffix == ".v" and (admitted := ADMITTED.search(text)):
            raise NotBuilt(f"{path}: something is admitted: {admitted[0].strip()}")
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    _run(folder, f"coq_makefile -f _CoqProject -o Makefile {' '.join(map(str, files))}")
    compiled = 0

    def count(line: str) -> None:
        nonlocal compiled
        if line.startswith("COQC "):
            compiled += 1
            report(f"{compiled} of {len(files)} {line.removeprefix('COQC ')}")

    _run(folder, f"make -j{os.cpu_count() or 1} TIMECMD=", line=count)
    report("the axioms that the headline theorems rest on")
    (folder / "Assumptions.v").write_text(
        _all_at_once((SOURCES / "Headlines.v").read_text(encoding="utf-8"))
    )
    printed = _run(folder, "coqc -R . Attention -w -ambiguous-paths Assumptions.v")
    # An entry starts a line; it is a name, with its type, or says that Coq was told to skip a
    # check.
    used = {
        line.split(" : ")[0]
        for line in re.findall(r"^\S.*$", printed, re.MULTILINE)
        if line != "Axioms:"
    }
    allowed = {*(SOURCES / "axioms.txt").read_text().split()}
    if used != allowed:
        raise NotBuilt(
            f"the theorems rest on other axioms than axioms.txt lists: {', '.join(sorted(used ^ allowed))}"
        )
    report("the program")
    modules = "verified.mli verified.ml program/checker.ml"
    options = "-w -a -O3 -inline 200 -package zarith -linkpkg"
    _run(folder, f"ocamlfind ocamlopt {options} {modules} -o checker")


def _all_at_once(headlines: str) -> str:
    """Headlines.v with one ``Print Assumptions`` for all theorems together, which takes seconds
    instead of minutes.
    """
    line = re.compile(r"^Print Assumptions ([\w.]+)\.$", re.MULTILINE)
    names = ", ".join(f"@{name}" for name in line.findall(headlines))
    return f"{line.sub('', headlines)}Definition headlines := ({names}).\nPrint Assumptions headlines.\n"


def _run(folder: Path, command: str, line: Callable[[str], None] | None = None) -> str:
    """Run a step in its own process group, which ends with this process; return its output."""
    # Block interrupts until the step can be killed: one inside Popen would leave it running with no
    # handle to it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process = subprocess.Popen(
            command.split(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    lines: list[str] = []
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdout is not None
        for text in process.stdout:
            lines.append(text)
            if line is not None:
                line(text.strip())
        if process.wait():
            raise NotBuilt(
                f"{command.split()[0]} failed: {' '.join(' '.join(lines).split())[-500:]}"
            )
    finally:
        with suppress(ProcessLookupError, PermissionError), process:
            os.killpg(process.pid, signal.SIGKILL)
    return "".join(lines)
