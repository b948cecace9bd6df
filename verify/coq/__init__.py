"""The theorem in Coq, and the checker extracted from its proof; the Coq sources are in theory/,
geometry/, floats/, verified/ and program/ (the functions that run).
"""
