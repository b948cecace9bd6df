"""How far rounding may move a result, and how much attention may leak: one model, its applications, bounds from above."""
