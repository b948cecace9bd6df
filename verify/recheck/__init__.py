"""The checker's own readers and arithmetic: numpy, fractions and the standard library, never torch."""
