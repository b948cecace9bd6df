"""The lemmas, Theorem 1 and stronger forms of them, proved by sympy; r, v and other encodings are
the code that runs.
"""
