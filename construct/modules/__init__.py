"""torch's side: which modules are convolutions, how their weights are worked out, and where a network holds them."""
