"""The lemmas, Theorem 1 and their sharper forms, proved by sympy about the code that runs."""
