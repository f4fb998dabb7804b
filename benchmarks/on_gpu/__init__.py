"""What the kernels and the engine cost on a GPU; `python -m benchmarks.gpu` runs all of it.

| module       | question                                                                       |
|--------------|--------------------------------------------------------------------------------|
| clock.py     | (how time and memory are taken, and who takes part)                            |
| machine.py   | what does this GPU do at best: bytes and operations a second?                  |
| floors.py    | (the fewest bytes and operations of a pass, and the time they take at best)    |
| attention.py | how long does each attention take, beside PyTorch and flash-linear-attention?  |
| steps.py     | how long does one more token take, beside PyTorch's cache of keys and values?  |
| decoding.py  | (decoders in PyTorch that go token by token, for steps.py and models.py)       |
| models.py    | how long does a training step take, and the generation of 3,072 positions?     |
| launches.py  | what does a launch cost before the GPU does anything?                          |
| page.py      | (the page that is made of the record, and what it shows first)                 |

A section is a module with `rows(device, size)`, which yields the lines of its record.
"""
