"""Upper bounds on rounding errors and on the leakage of attention: one rounding model and its
applications.
"""
