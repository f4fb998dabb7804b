"""What the kernels and the engine cost, measured beside PyTorch in the same run.

    python -m benchmarks            # all of them; writes this processor's file in results/cpu
    python -m benchmarks.softmax    # one of them

| module        | question                                                                  |
|---------------|---------------------------------------------------------------------------|
| ladder.py     | what do plain kernels take, and what do additions to them save?           |
| softmax.py    | is fused softmax attention as fast as PyTorch's own?                      |
| linear.py     | does causal linear attention beat the chunkwise form in eager PyTorch?    |
| positions.py  | are relative positions in linear cost faster than by all scores?          |
| local.py      | is a window's cost linear, and what does it save beside a mask?           |
| delta.py      | is the delta rule faster than its chunkwise form in PyTorch?               |
| features.py   | what do feature maps of whole rows cost, beside PyTorch?                  |
| graph.py      | what do neighbours cost, beside gathered rows and a masked matrix?        |
| scaling.py    | is every variant linear, and from which length faster than softmax?       |
| multi_head.py | how long does a step of a small layer take, beside PyTorch's?             |
| model.py      | how many steps a second does S1's model take, and where does a step go?   |
| memory.py     | does the memory of causal linear attention grow linearly in length?       |
| start.py      | how long does `minitransformer train copy` take to its first step?        |
| lowering.py   | do textbook kernels keep up with loops that are written for a CPU?        |
| tuning.py     | what does each thing that the compiler does for speed bring?              |
| compiling.py  | how long does a kernel's first launch take?                               |
| checked.py    | what does the checked mode cost?                                          |
| simulator.py  | what would the same kernel cost under Numba's own simulator?              |
| numerics.py   | what does float32's rounding cost, far from zero and over long sequences? |
| planner.py    | does the planner choose the fastest algorithm?                            |
| gpu.py        | all of it on a GPU: is each kernel near its floor, and near the best?     |

`harness.py` takes the time, `report.py` writes the tables, `peers.py` is the PyTorch side,
`textbook.py` holds kernels as textbooks write them. It needs the extra `bench`.

What kernels need of a GPU, such as registers, is not measured but compiled, on any machine:
`python -m minitransformer_kernels.gpu.needs`.
"""

import os

THREADS = 2

# Every side gets the same threads. The libraries read this when they are first imported.
for library in ("MINITRANSFORMER", "NUMBA", "OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = str(THREADS)
