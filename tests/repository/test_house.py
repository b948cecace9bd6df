"""The architecture: which modules import which, what they load, and what the README says."""

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import construct
import verify
from code_tokens import lines_of, tokens_of_code
from commands import ROOT, python
from construct.from_conv import main

PACKAGES = ("construct", "verify")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
README = ROOT / "README.md"

EVALUATION = "blocks shifts head_matrices plan fused cache axial traced call".split()
"""The files of fast evaluation."""

RINGS = {
    "construct": [
        [
            *("errors", "geometry", "heads", "tokens", "encoding", "weights"),
            *("execution", "attention", "modules.parametrizations", "modules.convolutions", "builder"),
        ],
        ["modules", "network"],
        [
            *("heads.rank", "encoding.encodings", "heads.mixed", "weights.kernel", "weights.record"),
            *(f"execution.{name}" for name in EVALUATION),
            *("modules.patches", "modules.learning", "modules.added_heads", "files", "stock", "command", "from_conv"),
        ],
    ],
    "verify": [
        ["verdict", "recheck", "checker"],
        ["oracle", "layers", "rounding", "samples", "argument", "strategies", "coq", "theory.symbolic"],
        ["theory.head_count", "theory.measured", "theory.literature", "plots", "report", "experiment", "__main__"],
    ],
}
"""The files and folders of each package by ring, from the inside out: none imports one of an outer ring, nor a later one of its
own.  Of construct: the theorem, networks, and what is outside; of verify: the checker, the proof, and what is outside.  An entry
holds what is under its name, but for what has an entry of its own."""

ON_FIRST_USE = {
    ("construct.heads", "construct.heads.rank"),
    ("construct.builder", "construct.encoding.encodings"),
    ("construct.builder", "construct.modules.patches"),
    ("construct.attention", "construct.encoding.encodings"),
    ("construct.attention", "construct.weights.kernel"),
    ("construct.attention", "construct.weights.record"),
    ("construct.attention", "construct.execution.call"),
    ("construct.execution", "construct.execution.call"),
    ("construct.attention", "construct.execution.traced"),
    ("construct.attention", "construct.execution.blocks"),
}
"""The imports of an outer ring, each inside a function or for types alone: what the theorem does without, loaded by its name."""

TORCHS_READER = ("verify.recheck.stored_layers", "verify.layers.torch_file")
"""The one import against this order, inside a function, for files of torch alone: torch's own loader says what they hold."""

MOST_ENTRIES = 16
"""The most entries in a folder."""

SAY_NOTHING = {"found", "told", "seen", "there", "todo", "some", "made"}
"""Names of variables, parameters and functions that say nothing about what they name."""

FORBIDDEN = re.compile(
    r"(_?conv(_transpose)?[123]d|_?conv_tbc|\w*conv_depthwise\w*|conv_transpose\w*|im2col|col2im|unfold|fold|as_strided"
    r"|correlate\w*|\w*fft\w*|aten|_VF|_nn|torch_function)"
)
"""Names that lead to a convolution, a sliding window or a Fourier transform."""


def ids(path):
    return path.relative_to(ROOT).as_posix()


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@functools.cache
def imports_of(path):
    return [*imported(tree_of(path))]


def imported(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Every module that the code below a node imports, at top level or inside functions: (dotted name, line)."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import):
            yield from ((alias.name, inner.lineno) for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            assert inner.level == 0, f"line {inner.lineno}: imports are written in full"
            for alias in inner.names:
                submodule = f"{inner.module}.{alias.name}"
                yield (submodule if submodule in MODULES else str(inner.module)), inner.lineno
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name | ast.Attribute):
            name = inner.func.id if isinstance(inner.func, ast.Name) else inner.func.attr
            first = inner.args[0] if inner.args else None
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield str(first.value), inner.lineno


def fresh(code):
    """Run code in a new process from the repository's root, warnings as errors, and return what it printed."""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_walk_sees_the_house():
    assert {"construct.attention", "construct.execution.dense", "verify.oracle", "verify"} <= MODULES.keys()
    code = "def f():\n from construct import geometry, MHSA\n import verify.oracle\nimport_module('verify.checker')"
    names = [name for name, _ in imported(ast.parse(code))]
    assert sorted(names) == ["construct", "construct.geometry", "verify.checker", "verify.oracle"]


def under(name, places):
    """Whether a module is one of these, or is inside one."""
    return f"{name}.".startswith(tuple(f"{place}." for place in places))


ENTRIES = [f"{package}.{entry}" for package, rings in RINGS.items() for ring in rings for entry in ring]


def place_of(name):
    """The place of a module in the order of RINGS; None for the docstring of a folder whose entries have places of their own."""
    entries = [entry for entry in ENTRIES if under(name, [entry])]
    if not entries and any(under(entry, [name]) for entry in ENTRIES):
        return None
    return ENTRIES.index(max(entries, key=len))


def test_every_entry_has_its_place():
    assert {place_of(name) for name in MODULES} == {None, *range(len(ENTRIES))}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_is_crowded(package):
    folders = [folder for folder in (ROOT / package).rglob("*") if folder.is_dir() and folder.name != "__pycache__"]
    for folder in (ROOT / package, *folders):
        entries = [entry for entry in folder.iterdir() if entry.name not in ("__pycache__", "py.typed")]
        assert len(entries) <= MOST_ENTRIES, f"{folder.relative_to(ROOT)} has {len(entries)} entries"


def test_imports_only_go_up_the_page():
    wrong = []
    for name in MODULES.keys() - {*PACKAGES}:
        package = name.partition(".")[0]
        for target, line in imports_of(MODULES[name]):
            if target == package:
                wrong.append(f"{name}, line {line} imports from the package itself, which imports everything")
            elif target.startswith(f"{package}.") and (name, target) not in {TORCHS_READER, *ON_FIRST_USE}:
                here, place = place_of(name), place_of(target)
                if here is None or place is None or place > here:
                    wrong.append(f"{name}, line {line} imports {target}, which stands later")
    assert not wrong


def loaded_by(*names):
    """The modules that these load when they are imported, themselves included."""
    loaded, waiting = set(), [*names]
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in {*PACKAGES, *loaded}:
            loaded.add(name)
            parents = [name.rpartition(".")[0]]
            at_once = [node for node in tree_of(MODULES[name]).body if isinstance(node, ast.Import | ast.ImportFrom)]
            waiting += parents + [target for node in at_once for target, _ in imported(node)]
    return loaded


def code_lines_in(path):
    return len(lines_of(tokens_of_code(path.read_text(encoding="utf-8"))))


def test_the_theorem_stands_alone():
    """The construction and the paper's equations as written: few files, and none of another ring."""
    theorem = loaded_by("construct.builder", "construct.execution.dense")
    inner = {f"construct.{entry}" for entry in RINGS["construct"][0]}
    entries = {max((entry for entry in ENTRIES if under(name, [entry])), key=len) for name in theorem}
    assert entries - {"construct.modules"} <= inner
    assert len(theorem) <= 20
    assert sum(code_lines_in(MODULES[name]) for name in theorem) <= 1_613


def test_no_import_goes_in_a_circle():
    graph = {
        name: {target for target, _ in imports_of(path) if target in MODULES and target not in PACKAGES}
        for name, path in MODULES.items()
        if path.stem != "__init__"
    }
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_errors_imports_nothing_heavy():
    top_level = [n for n in tree_of(ROOT / "construct/errors.py").body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {name.split(".")[0] for node in top_level for name, _ in imported(node)}
    assert names <= sys.stdlib_module_names


MAY_IMPORT = {
    "verify": ("construct.attention", "construct.stock"),
    "verify.layers.overrides": ("construct.attention", "construct.modules.added_heads"),  # whose class it believes
    "verify.layers.patches": ("construct.attention", "construct.modules.patches"),
    "verify.layers.torch_file": ("construct.attention", "construct.errors", "construct.files", "construct.modules"),
    "verify.plots.stored_layer": ("construct.attention", "construct.files"),
    "verify.experiment.stored_attention": ("construct.attention", "construct.files", "construct.stock"),
    "verify.theory": ("construct.attention",),
    "verify.theory.symbolic": ("construct.attention", "construct.encoding.quadratic"),  # the code that runs is proved
    "verify.__main__": ("construct.command.arguments",),  # a sweep certifies command lines of construct.from_conv
    "verify.experiment.sweep": (
        *(f"construct.{name}" for name in ("attention", "builder", "errors", "files", "modules", "network", "weights")),
    ),  # it converts what it has certified
    "construct": (),
    "construct.command": ("verify",),
}
"""What the modules under a name may import from the other package; the longest matching name decides."""


def test_verify_knows_the_layer_that_it_runs_and_construct_knows_verify_in_its_command():
    for name, path in MODULES.items():
        allowed = MAY_IMPORT[max((place for place in MAY_IMPORT if under(name, [place])), key=len)]
        other = "construct" if under(name, ["verify"]) else "verify"
        of_other = [(target, line) for target, line in imports_of(path) if under(target, [other])]
        assert not [(target, line) for target, line in of_other if not under(target, allowed)], name


def test_the_checker_shares_no_code_with_what_it_checks():
    allowed = ("verify.recheck", "verify.verdict", "numpy", "safetensors", *sys.stdlib_module_names)
    for name, path in MODULES.items():
        if under(name, ["verify.recheck", "verify.checker", "verify.verdict"]):
            others = [(target, line) for target, line in imports_of(path) if not under(target, allowed)]
            assert not [(target, line) for target, line in others if (name, target) != TORCHS_READER], name


def test_importing_verify_loads_nothing_heavy():
    loaded = set(fresh("import sys, verify.__main__; print(*sys.modules)").split())
    assert "verify.__main__" in loaded
    assert not loaded & {"torch", "construct", "numpy", "sympy", "hypothesis", "rich"}


def test_importing_construct_changes_nothing_and_loads_no_torch():
    argv = "sys.argv, sys.orig_argv = ['-m'], ['python', '-m', 'construct.from_conv']"  # as python -m starts
    signals = "[signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]"
    code = f"import signal, sys; {argv}; had = {signals}; import construct; print(had == {signals}, 'torch' in sys.modules)"
    assert fresh(code) == "True False\n"


def test_importing_construct_loads_little_more_than_torch():
    code = "import sys, torch; had = {*sys.modules}; import construct; construct.MHSA; print(*{*sys.modules} - had)"
    more = set(fresh(code).split())
    assert "construct.attention" in more
    assert "construct.from_conv" not in more
    assert "verify" not in more
    heavy = {"sympy", "mpmath", "hypothesis", "pytest", "rich", "sklearn", "scipy", "jinja2", "matplotlib", "onnx"}
    assert not more & heavy


# A call of every public function, for a process that has `conv`, `layer`, `path` and `torch`.
CALLS = {
    "construct.conv_to_mhsa": "construct.conv_to_mhsa(conv)",
    "construct.convert": "construct.convert(conv)",
    "construct.mixed_heads": "construct.mixed_heads(conv, torch.eye(3), torch.eye(3))",
    "construct.learn": "construct.learn(construct.conv_to_mhsa(conv))",
    "construct.save": "construct.save(layer, path + '.saved')",
    "construct.load": "construct.save(layer, path + '.loaded'); construct.load(path + '.loaded')",
    "construct.to_torch_mha": "construct.to_torch_mha(layer, grid=(4,))",
    "construct.from_torch_mha": "construct.from_torch_mha(construct.to_torch_mha(layer, grid=(4,)))",
    "verify.compare": "verify.compare(conv, layer, torch.ones(1, 1, 4))",
    "verify.check": "with contextlib.suppress(ValueError): verify.check(path, path, path)  # nothing is written there",
    "verify.audit": "verify.audit(layer, (4,))",
    "verify.claims": "verify.claims(only=())",
    "verify.heads_needed": "verify.heads_needed(conv)",
    "verify.certify": "verify.certify(conv, layer, grid=(4,), input_bound=1.0)",
    "verify.prove_lemma1": "verify.prove_lemma1(dims=1)",
    "verify.prove_lemma2": "verify.prove_lemma2(dims=1)",
    "verify.prove_theorem": "verify.prove_theorem(dims=1)",
    "verify.write_report": "verify.write_report(path + '.html', conv, layer)",
}


def public_functions():
    return [
        f"{package.__name__}.{name}"
        for package in (construct, verify)
        for name in package.__all__
        if not isinstance(getattr(package, name), type)
    ]


def test_public_names_are_those_of_the_package():
    for package in (construct, verify):
        assert len(set(package.__all__)) == len(package.__all__)
        assert all(callable(getattr(package, name)) for name in package.__all__)


def test_no_module_bears_the_name_of_a_public_name():
    public = {name.split(".")[-1] for name in public_functions()} | {*construct.__all__, *verify.__all__}
    assert not {name.split(".")[-1] for name in MODULES} & public


def test_every_public_function_can_be_called_twice_with_every_submodule_loaded(tmp_path):
    functions = public_functions()
    assert set(functions) <= CALLS.keys(), "give the new ones a call in CALLS"
    prepare = f"""
import contextlib, importlib, pkgutil, torch
import construct, verify
modules = [m.name for p in (construct, verify) for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".")]
assert len([importlib.import_module(name) for name in modules if not name.endswith("__main__")]) > 20
conv = torch.nn.Conv1d(1, 2, 3)
layer = construct.conv_to_mhsa(conv)
path = {str(tmp_path / "layer")!r}
"""
    calls = "\n".join(f"{CALLS[name]}\n{CALLS[name]}" for name in functions)
    assert fresh(f"{prepare}\n{calls}\nprint('called')").endswith("called\n")


def test_no_utils():
    assert not [path for folder in (*PACKAGES, "tests", "examples") for path in (ROOT / folder).rglob("util*.py")]


def test_files_of_experiments_stay_short():
    experiments = [path for name in ("learned", "taught") for path in (ROOT / "examples" / name).rglob("*.py")]
    assert experiments
    assert not [ids(path) for path in experiments if len(path.read_text(encoding="utf-8").splitlines()) >= 360], (
        "split it"
    )


def named(tree: ast.AST) -> Iterator[str]:
    """The names given to variables, parameters and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef):
            yield node.name


def test_names_say_what_they_name():
    assert not [ids(path) for path in SOURCES if SAY_NOTHING & {*named(tree_of(path))}]


@pytest.mark.parametrize("code", [
    "found = 1", "told, _ = x", "for seen in x: f(seen)", "[made for made in x]", "with x as there: f()", "(todo := f())",
    "lambda some: 1", "def f(*, found=1): g()", "def told(): f()",
])  # fmt: skip
def test_that_look_at_names_sees(code):
    assert SAY_NOTHING & {*named(ast.parse(code))}
    assert not SAY_NOTHING & {*named(ast.parse("x.found = y(told=seen).made"))}


def forbidden(tree: ast.AST) -> list[str]:
    """Names, attributes, imported names and whole strings that would lead to a convolution."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
            owner = node.value.id if isinstance(node.value, ast.Name) else None
            if node.attr == "ops" or (owner == "torch" and node.attr == "convolution"):
                names.append("aten")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value.removeprefix("fold"))  # rich wraps lines by "fold"
    return [name for name in names if FORBIDDEN.fullmatch(name)]


VIEWS = {"construct/execution/shifts/windows.py"}
"""The file that views tokens through strides; a matrix product over such a view is not a convolution."""

OPERATORS = "construct/execution/shifts/gemm.py"
"""The only file that gets a torch operator by its registered name: oneDNN's matrix product."""


def test_nothing_in_construct_reaches_a_convolution():
    allowed = {OPERATORS: {"aten"}} | {path: {"as_strided"} for path in VIEWS}
    construct_files = [path for path in SOURCES if ids(path).startswith("construct/")]
    assert construct_files
    for path in construct_files:
        assert set(forbidden(tree_of(path))) <= allowed.get(ids(path), set()), ids(path)


def test_the_one_operator_that_has_no_name_in_torch_is_a_matrix_product():
    text = (ROOT / OPERATORS).read_text(encoding="utf-8")
    assert re.findall(r"\bops\b[^)]*", text) == ['ops.mkldnn, "_linear_pointwise", None']


@pytest.mark.parametrize("code", [
    "torch.conv2d(x, w)", "F.conv_transpose3d(x, w)", "nn.functional.unfold(x, 3)", "x.unfold(2, 3, 1)", "torch.fft.rfft(x)",
    "from torch.fft import rfftn", "torch.ops.aten.convolution(x)", "torch.convolution(x)", "getattr(torch, 'conv1d')",
    "from torch.nn.functional import conv2d as f", "x.as_strided((2,), (1,))", "np.correlate(a, b)", "torch._C._nn.im2col(x)",
])  # fmt: skip
def test_that_scan_sees(code):
    assert forbidden(ast.parse(code))


def test_the_readme_has_the_two_commands():
    lines = {" ".join(line.split()) for line in README.read_text(encoding="utf-8").splitlines()}
    assert "pip install -c constraints.txt . && python -m construct.from_conv" in lines
    assert 'pip install -c constraints.txt ".[test]" && pytest' in lines


def test_the_page_on_certificates_counts_what_the_checker_loads():
    """It names every file of ours that ``import verify.checker`` loads, and states their total number of lines."""
    code = "import sys, verify.checker; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('verify')))"
    loaded = [Path(name) for name in fresh(code).split()]
    about = (ROOT / "docs/certificates.md").read_text(encoding="utf-8").partition("## Recheck")[2]
    named = {Path(link).name for link in re.findall(r"\]\(\.\./(verify/[\w/]+\.py)\)", about)}
    assert named == {path.name for path in loaded} - {"__init__.py"} | {"torch_file.py"}  # which is loaded on demand
    own = [path for path in loaded if path.name != "__init__.py"]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in own)
    (stated,) = re.findall(r"([\d,]+) lines in all", about)
    assert abs(int(stated.replace(",", "")) - lines) <= 60, lines
    assert code_lines_in(ROOT / "verify/checker.py") < 230
    assert sum(map(code_lines_in, own)) <= 1_300


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(re.findall(r"\]\((\w+\.md)\)", index))


def test_the_command_line_page_tells_of_the_report_and_the_plots():
    text = (ROOT / "docs/command_line.md").read_text(encoding="utf-8")
    assert "verify.write_report(" in text
    assert "python -m verify plot" in text
    assert 'pip install ".[viz]"' in text


def functions_called(function):
    """The project's functions that a call runs, as (file, name), each once, in order of their first calls."""
    calls = {}

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}/"):
            calls[ids(Path(frame.f_code.co_filename)), frame.f_code.co_name] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return list(calls)


def test_the_roads_are_those_that_a_call_a_certificate_and_the_command_take(tmp_path, capsys):
    """Uses a shape that no other test uses, so that nothing is cached."""
    conv = torch.nn.Conv2d(3, 11, (3, 2))
    layer = construct.conv_to_mhsa(conv)
    torch.save(conv, tmp_path / "m.pt")
    walks = (
        functions_called(lambda: layer(torch.ones(1, 3, 7, 9))),
        functions_called(lambda: verify.certify(conv, layer, grid=(7, 9), input_bound=1.0)),
        functions_called(lambda: main([str(tmp_path / "m.pt"), "--input-size", "3", "7", "9"])),
    )
    assert "same sums  PROVED" in capsys.readouterr().out
    roads = (ROOT / "docs/roads.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for road, walk in zip(roads, walks, strict=True):
        stops = re.findall(r"^\d\. `([\w/]+\.py)`: `(\w+)`", road, flags=re.M)
        assert 5 <= len(stops) <= 8
        assert [call for call in walk if call in stops] == stops


def test_every_line_of_the_deep_cases_names_a_test():
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        scope = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if held := re.match(r"class (\w+)", line):
                scope = f"{held[1]}::"
            elif test := re.match(r"( {4})?def (test_\w+)", line):
                names.add(f"{path.name}::{scope if test[1] else ''}{test[2]}")
    lines = (ROOT / "tests/deep_cases.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        head = re.compile(line.partition(r"\[")[0])
        assert not line or line.startswith("#") or any(map(head.fullmatch, names)), line
