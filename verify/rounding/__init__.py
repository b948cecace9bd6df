"""How far rounding may move a result, and how much attention may leak: bounds, each from above."""
