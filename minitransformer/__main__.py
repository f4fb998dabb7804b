"""`python -m minitransformer` is the command `minitransformer`."""

import sys

from .cli import main

sys.exit(main())
