"""How a command runs: its console, its files and checkpoints, processes for runs and processes for
one run.
"""
