"""``python -m examples.taught``: train attention on convolutions, and fine-tune converted CNNs."""
