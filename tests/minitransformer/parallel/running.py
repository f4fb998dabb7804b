"""How a program of ranks runs."""

import sys
import traceback
from collections.abc import Callable

from minitransformer.parallel import World


def run(main: Callable[..., int | None], *arguments: str) -> None:
    """Run it on this rank; where it raises, all ranks end, which would wait for this one."""
    try:
        sys.exit(main(*arguments))
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        World().comm.Abort(2)
