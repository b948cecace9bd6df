"""Proofs as LaTeX: the document is well-formed, and compiles if a TeX engine is installed."""

import re
import shutil
import subprocess

import pytest

from broken import as_coded
from verify.__main__ import main
from verify.theory.symbolic import latex, lemmas, proof

KNOWN = set(
    "documentclass usepackage setlength parindent begin end section paragraph item "
    "mathrm hat alpha beta delta varepsilon vartheta pi sigma tau "
    "omega Delta prod sum le ge ne pm cdot times otimes to dots infty in ln max prime".split()
) | set("()|,&%$#_{}")
"""Commands that the document may use, from LaTeX, amsmath and amssymb."""

UNESCAPED = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)


def structure_of(source):
    """Raise AssertionError unless commands are known, and braces, mathematics and environments are balanced."""
    commands = [command[1:] for command in UNESCAPED.findall(source)]
    assert set(commands) <= KNOWN, set(commands) - KNOWN
    plain = UNESCAPED.sub("", source)
    depth = 0
    for c in plain:
        depth += (c == "{") - (c == "}")
        assert depth >= 0
    assert depth == 0
    assert not set(plain) & set("$%&#~")
    in_math, environments = False, []
    for command in re.finditer(r"\\(?:(begin|end)\{(\w+)\}|[A-Za-z]+|.)|[\^_]", source):
        if command[0] in (r"\(", r"\)"):
            assert in_math == (command[0] == r"\)")
            in_math = not in_math
        elif command[0] in ("^", "_"):
            assert in_math
        elif command[1] == "begin":
            environments.append(command[2])
        elif command[1] == "end":
            assert environments.pop() == command[2]
    assert not in_math
    assert not environments


def compiled(source, folder):
    """The engine's output for the document."""
    (folder / "proofs.tex").write_text(source)
    command = [shutil.which("pdflatex") or "", "-interaction=nonstopmode", "-halt-on-error", "proofs.tex"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def few():
    names = ("prove_relative_from_absolute", "prove_leakage_off_lattice")
    return proof.in_latex([as_coded("prove_lemma1", 1), *map(as_coded, names)])


def test_the_document_has_the_form_that_tex_asks_for(few):
    structure_of(few)
    assert few.isascii()


needs_engine = pytest.mark.skipif(not shutil.which("pdflatex"), reason="no LaTeX engine is installed")


@needs_engine
def test_the_document_compiles(few, tmp_path):
    log = compiled(few, tmp_path)
    assert log.returncode == 0, log.stdout[-2000:]
    assert "Overfull" not in log.stdout


@pytest.mark.deep
def test_the_document_of_all_proofs(tmp_path):
    source = proof.in_latex(lemmas.all_proofs())
    structure_of(source)
    assert source.isascii()
    if shutil.which("pdflatex"):
        assert compiled(source, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("the gap is α‖n‖² for all n ≠ 0", r"the gap is \(\alpha \| n\| ^{2}\) for all \(n \ne  0\)"),
        ("query + τ_j", r"\(\mathrm{query} + \tau _{j}\)"),
        ("e^(−α (N + 1))/(1 + S)", r"\(e^{-\alpha \, (N + 1)}/(1 + S)\)"),
        ("a key of W_qry^T, at a = b", r"a key of \(W_{\mathrm{qry}}^{T}\), at \(a = b\)"),
        ("Lemma 1 (d = 2)", r"Lemma 1 \((d = 2)\)"),
        ("100% of {-N} & x_1", r"\(100\%\) of \{-N\} \& \(x_{1}\)"),
        ("x'_(k (n (m + 1)))", r"\(x^{\prime}_{k\, (n\, (m + 1))}\)"),
        ("on {−N, …, N}^d", r"on \(\{-N, \dots , N\}^{d}\)"),
    ],
)
def test_mathematics_is_set_as_mathematics(statement, expected):
    assert latex.text(statement) == expected
    structure_of(latex.text(statement))


def test_the_command_prints_the_document(capsys, monkeypatch, few):
    monkeypatch.setattr(lemmas, "all_proofs", lambda dims: iter([lemmas.prove_leakage_off_lattice()]))
    assert main(["lemmas", "--latex"]) == 0
    structure_of(capsys.readouterr().out)


def test_a_proof_that_fails_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def failing(dims):
        yield lemmas.prove_leakage_off_lattice()
        raise proof.ProofFailed("a step", 1, "it should be 0")

    monkeypatch.setattr(lemmas, "all_proofs", failing)
    for form in ([], ["--latex"], ["--full"]):
        assert main(["lemmas", *form]) == 1
        assert capsys.readouterr().out == "NOT PROVED: a step: it should be 0: 1\n"
