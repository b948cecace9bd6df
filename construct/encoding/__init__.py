"""Lemma 2: the relative positional encodings r, the vectors v that aim the heads, their sharpness and their scores."""
