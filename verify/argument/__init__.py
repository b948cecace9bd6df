"""Verdicts for all inputs: ``certify``, the steps of its argument, runs and counterexamples, and
the certificate file.
"""
