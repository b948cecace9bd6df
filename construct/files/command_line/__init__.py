"""The network that a command line of ``construct.from_conv`` names, its inputs, and its conversion."""
