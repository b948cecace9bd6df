"""Detects that a parsing library, also called ``construct``, has overwritten this package.

The command imports this first.  It uses only the standard library, because other files of ours may be gone.
"""

import sys

DISTRIBUTION = "conv-as-attention"
OVERWRITTEN = (
    f"the package construct is not that of {DISTRIBUTION}: the distribution construct has overwritten it, or took it along when "
    "it was removed (pip uninstall construct, then pip install --force-reinstall --no-deps . in our folder)"
)

if getattr(sys.modules["construct"], "DISTRIBUTION", None) != DISTRIBUTION:
    running = getattr(sys.modules["__main__"], "__spec__", None)
    if running is not None and running.name == "construct.from_conv":
        sys.stderr.write(f"error: {OVERWRITTEN}\n")
        raise SystemExit(2)
    raise ImportError(OVERWRITTEN)
