"""Slips of the sources, and fragments whose deciding words are not at hand.  They weigh less than
claims, and get no verdict.
"""

from typing import NamedTuple

SUMMARY = "talk, Lemma 1: Summary"
SCORES = "talk, Self-Attention, Eq. 5 and 6"


class Slip(NamedTuple):
    """What is printed, where, and what is meant or lacks."""

    printed: str
    place: str
    meant: str


SLIPS = (
    Slip(
        r"(\mathbf{X}_{q,:} + \mathbf{P}_{q,:})^T",
        SCORES,
        "the key's factor: k for q, as in the expansion below it",
    ),
    Slip(
        r"\mathbf{u}^T \mathbf{W}_{key} \mathbf{X}_{k,:}^T",
        SCORES,
        "W_keyᵀ, as W_key is D_in × D_k",
    ),
    Slip("X_qᵀ W_qry", SCORES, "X_q W_qry: tokens are rows, as in Eq. 5"),
    Slip(
        "Ŵ_key, on one slide transposed",
        SCORES,
        "one Ŵ_key of shape D_k × D_p, so that Ŵ_key r_δ is a key",
    ),
    Slip("SA(A)", "talk, Eq. 7", "SA(X): the layer takes the tokens"),
    Slip("W", "talk, Lemma 1, below Eq. 10", "W_out"),
    Slip("X̂_key", "talk, Lemma 2", "Ŵ_key"),
    Slip(
        r"there exists $\{\mathbf{W}_{val}^{(h)}\}_{h \in [N_h]}$ such that",
        "talk, Lemma 1",
        "W_out too must be chosen, such as [I; 0]: where it is 0 no W_val will do",
    ),
    Slip(
        "for any kernel tensor, after “there exists W_val”",
        "talk, Lemma 1",
        "before it: the matrices depend on the kernel",
    ),
    Slip(
        r"is the set of all shifts represented by a $K \times K$ kernel.",
        "talk, Self-Attention for Images, Convolution",
        "K odd: for even K the set from −⌊K/2⌋ to ⌊K/2⌋ has K + 1 shifts an axis (torch-fields)",
    ),
    Slip(
        r"\sum_{\delta' \in \Delta_K}",
        "talk, Lemma 2, display after Eq. 14",
        "the sum over the shifts to all keys; the limit is the same",
    ),
    Slip(
        "τ = q − k beside k − q = τ",
        "talk, Do Self-Attention Layers Actually Learn Convolutions?, and Lemma 2",
        "one letter with two signs; Δ_K is symmetric",
    ),
    Slip(
        r"$\mathbf{W}^{(h)} \in \mathbb{R}^{D_h \times D_h}$",
        SUMMARY,
        "D_in × D_out by Eq. 10; the printed shape with D_out = N_h·D_h fits one head alone",
    ),
    Slip(
        "The two most crucial requirements for a self-attention layer to express a convolution are:",
        "blog, Self-Attention & Convolutional Layers",
        "its two items are not at hand; on heads see multiple-heads, on positions last-term",
    ),
    Slip(
        "the first layers (1-3) … deeper layers (4-6)",
        "blog",
        "what sets them apart is not at hand; see local-first",
    ),
    Slip(
        "why multi-head attention works better than single-head",
        "blog",
        "taken as known; what one head cannot do is multiple-heads",
    ),
)
