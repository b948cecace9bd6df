"""``verify.write_report``: one HTML page of a conversion, with attention maps beside the certificates."""
