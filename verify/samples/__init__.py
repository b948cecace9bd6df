"""CHECKED: layers and networks run on samples, compared with their convolutions."""
