"""Coq's kernel itself computes from the compiled proofs: the geometry agrees with torch, and one layer passes the check.

These tests need Coq and the build of ``python -m verify coq build``; without them they are skipped, or fail under
COQ_TESTS=required.
"""

import os
import shutil
import subprocess
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from construct import conv_to_mhsa
from verified import Asked, built, pair_of
from verify.coq.building import build_folder
from verify.coq.verified import export
from verify.strategies import convolutions, sizes_for

READ = """From Coq Require Import ZArith List String.
From Attention Require Import Definitions Lemma2 Geometry Transposed CheckFields CheckText FastTaps.
Import ListNotations.
Open Scope Z_scope.
(* Which input pixel the head of each tap reads for each output, counted from 1; 0 is a zero. *)
Definition pixel (sizes : list Z) (p : option (list Z)) : Z := match p with Some p => 1 + Lemma2.number sizes p | None => 0 end.
Definition read_by_heads (g : geometry) (sizes : list Z) : list (list Z) :=
  map (fun j => map (fun o =>
    let t := add (query_of g sizes o) (shift_of g sizes j) in
    pixel sizes (if transposed g then stuffed_at (taxes g sizes) t else continued (mode_of g) (axes g sizes) t))
  (outputs g sizes)) (kernel_taps g sizes).
"""


PROOF = "Proof. vm_compute; reflexivity. Qed.\n"


@pytest.fixture(scope="module")
def compile_(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Compile Coq lines against the proofs; return the exit code and the output."""
    folder = built().parent
    if shutil.which("coqc") is None or not (folder / "Makefile").is_file():
        if os.environ.get("COQ_TESTS") == "required":
            pytest.fail("there is no coqc, and COQ_TESTS=required")
        pytest.skip("there is no coqc")

    def compiled(lines: str) -> tuple[int, str]:
        path = tmp_path_factory.mktemp("coq") / "Facts.v"
        path.write_text(lines, encoding="utf-8")
        options = ("-R", build_folder(), "Attention", "-w", "none")
        done = subprocess.run(["coqc", *options, path], capture_output=True, text=True, check=False, cwd=path.parent)
        return done.returncode, done.stdout + done.stderr

    return compiled


def listed(numbers: Any) -> str:
    return f"[{'; '.join(map(str, numbers))}]"


def facts(dims: int, transposed: bool, count: int) -> list[str]:
    """Coq goals: the pixels that torch reads by each tap of random one-channel convolutions, found with one-hot weights."""
    goals = []
    kinds: Any = {"channels": ["one"], "bias": [False], "dtypes": [torch.float64], "transposed": [transposed]}

    @settings(max_examples=count, phases=[Phase.generate])
    @given(convolutions(dims=[dims], **kinds), st.data())
    def collect(conv: Any, data: st.DataObject) -> None:
        sizes = data.draw(sizes_for(conv, tokens=40))
        x = torch.arange(1, 1 + torch.Size(sizes).numel(), dtype=torch.float64).view(1, 1, *sizes)
        rows = []
        with torch.no_grad():
            for tap in range(conv.weight.numel()):
                conv.weight.zero_().view(-1)[tap] = 1
                rows.append(listed(int(value) for value in conv(x).flatten()))
        padding = (0,) * dims if conv.padding == "valid" else conv.padding
        field = "same" if padding == "same" else f"(integers {listed(padding)})"
        fields = (
            f"{listed(conv.kernel_size)} {listed(conv.stride)} {listed(conv.dilation)} {field} {conv.padding_mode} 1"
        )
        geometry = f"Build_geometry 1 1 {fields} {str(transposed).lower()} {listed(conv.output_padding)}"
        goals.append(f"Goal read_by_heads ({geometry}) {listed(sizes)} = {listed(rows)}.\n{PROOF}")

    collect()
    return goals


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
def test_heads_read_what_torch_reads(transposed: bool, compile_: Any):
    goals = [goal for dims, count in ((1, 60), (2, 25), (3, 10)) for goal in facts(dims, transposed, count)]
    assert len({*goals}) > 60
    code, printed = compile_(READ + "".join(goals))
    assert code == 0, printed


def test_a_wrong_fact_does_not_compile(compile_: Any):
    goal = facts(1, False, 1)[0]
    assert compile_(READ + goal)[0] == 0
    code, printed = compile_(READ + goal.replace("]].", "; 7]]."))
    assert code != 0
    assert "Unable to unify" in printed


def test_the_kernel_itself_checks_a_layer(compile_: Any):
    """Without extraction or OCaml, the kernel computes `check_text` on the program's input text."""
    conv = nn.Conv1d(2, 2, 3, padding=1).requires_grad_(False)
    asked, pair = Asked(), pair_of(conv, conv_to_mhsa(conv).requires_grad_(False), (6,))
    most = float(pair.stated.parts["bound"].max())
    questions = [export.SAME, export.sharp(-149, 24), export.floats(-149, 24, 1.0, most)]
    whole = asked.text(pair, questions)
    assert asked.answer(pair, *questions).accepted
    pair.a["v"][1] /= 512
    code, printed = compile_(f"""{READ}Open Scope string_scope.
Goal check_text "{whole}" = Accepted [31; 46]%Z. Proof. vm_compute; reflexivity. Qed.
Goal match read_text "{whole}" with Some (_, c, m) => same_taps c m | None => false end = true. Proof. now vm_compute. Qed.
Goal check_text "{asked.text(pair, questions)}" = Rejected [true; false; false]. Proof. vm_compute; reflexivity. Qed.
Goal check_text "{whole.rsplit(maxsplit=1)[0]}" = Unreadable. Proof. vm_compute; reflexivity. Qed.
""")
    assert code == 0, printed
