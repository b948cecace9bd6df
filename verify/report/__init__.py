"""The report: one HTML page that shows what a conversion does, head by head, beside what its certificates say."""
