"""Lemma 2: relative positional encodings r, head vectors v, sharpness α, and attention scores."""
