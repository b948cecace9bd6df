"""PROVED: ``certify``, its steps for all inputs, runs and counterexamples, and the certificate file."""
