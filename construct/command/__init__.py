"""The command ``python -m construct.from_conv``."""
