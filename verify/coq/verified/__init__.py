"""The verified checker: its proof, the text that it reads, and what is asked of it."""
