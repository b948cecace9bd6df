"""``verify.write_report``: one HTML page about a conversion, with attention maps and certificates."""
