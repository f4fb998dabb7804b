"""A small launch, walked through instruction by instruction, forward and back.

    recording = stepping.record(kernel[blocks, threads], *arguments)
    screen.show(recording)  # in a terminal
    Path("kernel.html").write_text(stepping.page(recording))  # in a browser

A block runs on the PTX machine, which needs no GPU, and is recorded (`recording`). Its registers
get the names of the source as far as these can be found (`names`). `screen` shows it in a terminal,
`page` makes a page of it.
"""

from .page import page
from .recording import LIMIT, Recording, Step, TooLong, record

__all__ = ["LIMIT", "Recording", "Step", "TooLong", "page", "record"]
