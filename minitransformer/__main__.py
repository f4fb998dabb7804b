"""`python -m minitransformer` is the command `minitransformer`."""

import sys

from .commands import main

sys.exit(main())
