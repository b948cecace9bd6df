"""What is measured of trained layers, and how it is shown: audits, the ruler, the table, the figures."""
