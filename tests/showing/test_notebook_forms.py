"""Notebooks show proofs, certificates, rechecks and audits as well-formed HTML with their text, escaped."""

from html.parser import HTMLParser

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

import construct
import verify
from broken import as_coded
from verify.checker import Result
from verify.theory.symbolic.proof import Proof, argued, identity
from verify.verdict import Verdict, as_html

TAGS = {"b", "i", "table", "tr", "th", "td", "ol", "li"}


class Reader(HTMLParser):
    """Checks that tags are known and nested, and collects the text."""

    def __init__(self, source):
        super().__init__()
        self.open, self.words = [], []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS
        assert set(attrs) <= {("colspan", "2"), ("style", "text-align: left")}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def shown(value):
    return Reader(value._repr_html_()).words


def squeezed(text):
    return "".join(text.replace(": ", "").split())


@pytest.fixture(scope="module")
def layers():
    conv = torch.nn.Conv1d(1, 2, 3, padding=1)
    return conv, construct.conv_to_mhsa(conv)


def test_certificates_and_audits_are_tables_of_their_lines(layers):
    certificate = verify.certify(*layers, grid=(8,), input_bound=1.0)
    assert shown(certificate)[0] == str(certificate.verdict)
    assert {"claim", "bound", "observed", "step 0 holds"} <= set(shown(certificate))
    audit = verify.audit(layers[1], grid=(9,))
    assert shown(audit)[0].startswith("Audit by experiment")
    for value in (certificate, audit):
        assert squeezed("".join(shown(value))) == squeezed(str(value))


def test_a_recheck_shows_every_layer_and_runs_none_of_their_names():
    name = "<script>alert(1)</script>&"
    result = Result(Verdict("PROVED", "1 of 1"), {name: Verdict("PROVED", "|x| < 1")}, (), ("<b>",))
    assert "<script" not in result._repr_html_()
    assert shown(result) == ["PROVED: 1 of 1", name, "PROVED: |x| < 1", "note", "<b>"]


def test_a_proof_is_a_numbered_list():
    words = shown(as_coded("prove_leakage_off_lattice"))
    assert words[0].startswith("Leakage off the lattice")
    assert sum(word.startswith("[") for word in words) == 6
    assert shown(Proof("a < b", (argued("<i>", 1),)))[:2] == ["a < b", "<i> "]


def test_a_step_shows_its_expression_as_a_formula():
    x, alpha = sympy.symbols("x alpha")
    step = identity("α x for all x", (alpha * x + alpha * x, 2 * alpha * x))
    assert step._repr_latex_() == r"\(\alpha \, x\) for all \(x\) [identity]: $\displaystyle 2 \alpha x = 2 \alpha x$"


@given(st.text(st.sampled_from("<>&\"'ab: \n/"), min_size=1, max_size=40))
def test_any_text_is_escaped(text):
    assert squeezed("".join(Reader(as_html(text)).words)) == squeezed(text)
