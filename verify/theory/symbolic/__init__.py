"""The lemmas, Theorem 1 and stronger forms of them, proved by sympy on the code that runs."""
