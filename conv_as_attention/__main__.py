"""``python -m conv_as_attention``."""

import sys

from conv_as_attention import main

sys.exit(main("python -m conv_as_attention"))
