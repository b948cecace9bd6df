"""Everything behind ``python -m construct.from_conv``."""
