"""Model files: read without running anything that they hold, written whole or not at all, exported."""
