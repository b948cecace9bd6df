"""``python -m examples.learned``: train the paper's network with each kind of attention, and fit
convolutions to its layers.
"""
