"""How a kernel becomes machine code and a launch on a GPU, and what it needs there."""
