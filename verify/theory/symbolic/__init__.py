"""The lemmas, Theorem 1 and sharper forms of them, proved by sympy on the code that runs."""
