"""Symbolic proofs of the theorem by sympy, and verdicts on the claims of the literature."""
