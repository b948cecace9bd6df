"""Handling of torch modules: recognising convolutions, parametrizations, traversal, tied weights,
rules, learnable layers.
"""
