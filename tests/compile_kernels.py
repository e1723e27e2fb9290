"""Compiles Numba's kernels once, in a process beside the workers while they collect their tests.

They are kept beside their source. In a new clone, every worker and every process that tests start would compile them.
"""

import torch

from fedhca2.aggregation import Member, Rows
from fedhca2.metrics import OdsF
from fedhca2.params import Layout

VALUES = 4096
MANY = 16  # rows, from which products are summed in single precision


def compile_kernels():
    for dtype in (torch.float32, torch.bfloat16):
        for count in (2, MANY):
            data = [torch.ones(VALUES, dtype=dtype) for _ in range(count)]
            rows = Rows([Member(str(i), "g") for i in range(count)], Layout(("a.weight",), ((VALUES,),)), data)
            rows.products("rows")
            rows.products("differences")
            rows.norms()
            rows.sketches(1024, seed=0)
            for weights in (torch.eye(count), torch.ones(1, count), torch.ones(4, count)):
                rows.mix(weights.double())
    metric = OdsF(max_dist=0.01)
    metric.update(torch.rand(1, 1, 32, 32), (torch.rand(1, 1, 32, 32) > 0.9).float())
    metric.compute()


if __name__ == "__main__":
    torch.set_num_threads(1)
    compile_kernels()
