"""The theorem in Coq, and the checker that is extracted from its proof: theory/, floats/ and verified/ are Coq's sources."""
