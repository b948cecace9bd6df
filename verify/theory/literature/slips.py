"""Slips of the sources: misprints, and conditions left unsaid.  They weigh less than claims, and get no verdict."""

from typing import NamedTuple

SUMMARY = "talk, Lemma 1: Summary"
SCORES = "talk, Self-Attention, Eq. 5 and 6"


class Slip(NamedTuple):
    """What is printed, where, and what is meant."""

    printed: str
    place: str
    meant: str


SLIPS = (
    Slip(r"(\mathbf{X}_{q,:} + \mathbf{P}_{q,:})^T", SCORES, "the key's factor: k for q, as in the expansion below it"),
    Slip(r"\mathbf{u}^T \mathbf{W}_{key} \mathbf{X}_{k,:}^T", SCORES, "W_keyᵀ, as W_key is D_in × D_k"),
    Slip("X_qᵀ W_qry", SCORES, "X_q W_qry: tokens are rows, as in Eq. 5"),
    Slip("Ŵ_key, on one slide transposed", SCORES, "one Ŵ_key of shape D_k × D_p, so that Ŵ_key r_δ is a key"),
    Slip("SA(A)", "talk, Eq. 7", "SA(X): the layer takes the tokens"),
    Slip("W", "talk, Lemma 1, below Eq. 10", "W_out"),
    Slip("X̂_key", "talk, Lemma 2", "Ŵ_key"),
    Slip(
        r"there exists $\{\mathbf{W}_{val}^{(h)}\}_{h \in [N_h]}$ such that",
        "talk, Lemma 1",
        "W_out too must be chosen, such as [I; 0]: where it is 0 no W_val will do",
    ),
    Slip(
        r"\sum_{\delta' \in \Delta_K}",
        "talk, Lemma 2, display after Eq. 14",
        "the sum over the shifts to all keys; the limit is the same",
    ),
    Slip("τ = q − k beside k − q = τ", "talk, Lemma 1 and Lemma 2", "one letter with two signs; Δ_K is symmetric"),
    Slip(
        r"$\mathbf{W}^{(h)} \in \mathbb{R}^{D_h \times D_h}$",
        SUMMARY,
        "D_in × D_out by Eq. 10; the printed shape with D_out = N_h·D_h fits one head alone",
    ),
)
