"""Do attention layers learn convolutions?  Train the paper's network with each kind of attention, and measure the layers."""
