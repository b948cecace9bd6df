"""The mathematics, judged: symbolic proofs and the claims of the literature."""
