"""CHECKED: what runs on samples show of layers and of networks."""
