"""The checker's own file readers and exact arithmetic: numpy, fractions and the standard library,
never torch.
"""
