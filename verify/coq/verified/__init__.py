"""The verified checker: its proof, its input format, and the questions put to it."""
