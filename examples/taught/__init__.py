"""Does gradient descent find the theorem, and where does a converted network go?  Two experiments, each with its ruler."""
