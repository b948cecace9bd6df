"""The headline theorems are printed verbatim from the Coq sources, and the documents name existing theorems."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from verify.coq import statements
from verify.coq.building import ADMITTED, SOURCES, _all_at_once, sources
from verify.coq.statements import headlines, page, pinned

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/machine_checked.md").read_text(encoding="utf-8")
TEXTS = {path.as_posix(): (SOURCES / path).read_text(encoding="utf-8") for path in sources() if path.suffix == ".v"}


def test_every_headline_stands_in_its_file_under_a_group_and_beside_the_paper():
    theorems = headlines()
    assert len(theorems) > 90
    assert len({headline.name for headline in theorems}) == len(theorems)
    for headline in theorems:
        text = TEXTS[headline.file]
        assert headline.statement in text, headline.name
        assert headline.statement.startswith(("Theorem", "Lemma", "Corollary")), headline.name
        assert headline.comment in text
        assert all(line in text for line in headline.context)
        assert headline.group
        assert headline.equation, headline.name
        proof = text.split(headline.statement)[1].lstrip()
        assert proof.startswith("Proof"), headline.name  # the sentence is complete


def test_the_sections_of_a_theorem_are_part_of_it():
    (theorem,) = headlines(["same_iff"])
    context = "\n".join(theorem.context)
    assert "Hypothesis best" in context
    assert "score L h X q k < score L h X q (add q (f h))" in context
    (theorem,) = headlines(["leak_theta"])
    assert "Let L α : layer H := construction d d_in d_out α hs f W b." in theorem.context
    (theorem,) = headlines(["figures_sound"])
    assert any("Z.of_nat (length G)" in line for line in theorem.context)  # a period inside a name ends no sentence


@pytest.mark.skipif(not shutil.which("coqc"), reason="there is no coqc")
def test_a_page_holds_all_that_its_theorems_rest_on(tmp_path):
    """Coq accepts it as it stands, with no file of ours; without one definition it does not."""

    def accepted(code):
        (tmp_path / "page.v").write_text(code, encoding="utf-8")
        return subprocess.run(["coqc", "-q", "page.v"], cwd=tmp_path, capture_output=True, check=False).returncode == 0

    alone = [one.name for one in headlines() if not one.context and one.file.startswith(("theory/", "geometry/"))]
    theorems, definitions = page(alone).split("# What their words mean")
    meant, stated = (re.findall(r"^```coq\n(.*?)^```$", t, re.MULTILINE | re.DOTALL) for t in (definitions, theorems))
    lines = [
        "From Coquelicot Require Import Coquelicot.\nFrom Coq Require Import Reals ZArith List Lia Permutation.\n",
        "Import ListNotations.\nOpen Scope R_scope.\n",
        *(re.sub(r"^(Lemma .*)$", r"\1 Admitted.", block, flags=re.MULTILINE) for block in meant),
        *(f"{theorem}Admitted.\n" for theorem in stated),
    ]
    assert len(stated) == len(alone) > 20
    assert accepted("".join(lines))
    assert not accepted("".join(lines).replace("Definition dot ", "Definition other "))


def test_a_name_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no headline theorem is called lemma3"):
        headlines(["lemma2", "lemma3"])


def test_what_the_theorems_state_is_what_is_committed():
    """Claims cite theorems by name, so a theorem's statement may change only together with statements.txt."""
    committed = (SOURCES / "statements.txt").read_text(encoding="utf-8")
    assert pinned() == committed, "python -m verify coq statements --digests >verify/coq/statements.txt, if it is meant"


@pytest.mark.parametrize(
    ("file", "before", "after", "changed"),
    [
        (
            "theory/Lemma2.v",
            "Theorem lemma2 d α δ τ : length δ = d ->",
            "Theorem lemma2 d α δ τ : d = d ->",
            ["lemma2"],
        ),
        ("theory/Same.v", "Hypothesis best", "Hypothesis better", ["counterexample", "same_iff", "theory/Same.v"]),
        ("theory/Definitions.v", "(a - b)%Z ::", "(b - a)%Z ::", ["theory/Definitions.v"]),
        ("program/Extraction.v", "Z.fdiv x y)", "Z.ediv x y)", ["program/Extraction.v"]),
        (
            "theory/Softmax.v",
            "Open Scope R_scope.",
            'Infix "<" := Rle : R_scope.\nOpen Scope R_scope.',
            ["theory/Softmax.v"],
        ),
        (
            "theory/Softmax.v",
            "Open Scope R_scope.",
            "Local Axiom no : False.\nOpen Scope R_scope.",
            ["theory/Softmax.v"],
        ),
        (
            "geometry/Borders.v",
            "(length axes) d_in d_out α hs f W b.",
            "(length axes) d_in d_out α hs f W W.",
            ["off_grid_leak", "geometry/Borders.v"],
        ),
        ("theory/Lemma2.v", "Qed.", "idtac. Qed.", []),
        ("theory/Lemma2.v", "Theorem lemma2 d α", "(* why *)\nTheorem lemma2\n  d α", []),  # words and lines are free
    ],
)
def test_a_changed_statement_is_noticed(
    file: str, before: str, after: str, changed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = shutil.copytree(SOURCES, tmp_path / "coq")
    text = (folder / file).read_text(encoding="utf-8")
    assert before in text
    (folder / file).write_text(text.replace(before, after, 1), encoding="utf-8")
    monkeypatch.setattr(statements, "SOURCES", folder)
    lines = {*pinned().splitlines()} - {*(SOURCES / "statements.txt").read_text(encoding="utf-8").splitlines()}
    assert sorted(line.split()[0] for line in lines) == sorted(changed)


def test_nothing_is_admitted():
    assert not [name for name, text in TEXTS.items() if ADMITTED.search(text)]
    axioms = [f"{scope}Axiom easy : False." for scope in ("", "Local ", "#[local] ")]
    assert all(map(ADMITTED.search, [*axioms, "Proof.\n  Admitted.", "  admit.", "Unset Guard Checking."]))


def test_the_page_names_theorems_and_definitions_that_there_are():
    names = {*re.findall(r"`([a-z]\w*(?:_\w+)+|lemma2|theorem1)`", PAGE)}
    stated = {headline.name for headline in headlines()}
    axioms = {name.rpartition(".")[2] for name in (SOURCES / "axioms.txt").read_text().split()}
    defined = {"check_text", "check_text_fast", "exact_scores"}
    assert {"lemma2", "theorem1", "check_text_sound", "never_exact"} <= names & stated
    assert names <= stated | axioms | defined, names - stated - axioms - defined
    for name in defined:
        assert any(f"Definition {name} " in text for text in TEXTS.values())
    for name in axioms:
        assert f"`{name}`" in PAGE


def test_the_build_asks_for_the_axioms_of_every_headline():
    text = _all_at_once((SOURCES / "Headlines.v").read_text(encoding="utf-8"))
    (asked,) = re.findall(r"^Definition headlines := \((.*)\)\.$", text, re.MULTILINE)
    assert [name.rpartition(".")[2].lstrip("@") for name in asked.split(", ")] == [h.name for h in headlines()]
    assert text.endswith("\nPrint Assumptions headlines.\n")
