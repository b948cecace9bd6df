"""Measurements of trained layers and their presentation: audits, the ruler, the table, the figures."""
