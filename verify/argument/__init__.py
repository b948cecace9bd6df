"""PROVED: the steps that hold for all inputs, the runs beside them, the counterexamples, and the certificate."""
