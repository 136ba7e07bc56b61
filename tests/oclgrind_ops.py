"""Run under oclgrind by test_oclgrind.py and `make oclgrind`: a sample of each family of kernels, which it watches.

Values are compared with torch's CPU too: oclgrind is an OpenCL of its own. Arguments: names of ops in torch's database;
"all" for all of them.
"""

from __future__ import annotations

import sys

import torch

import torchgraft
import torchgraft_opencl
from torchgraft.testing.conformance import CHECKS, Case, CheckResult, cases
from torchgraft.testing.conformance.check import Run

#: One or more of each file of kernels.
OPS = """
add mul div.floor_rounding where clamp gcd special.bessel_j1 erfinv frexp complex polar
sum prod amax mean var argmax cumsum cumprod logcumsumexp cummax norm logsumexp aminmax
mm bmm addmv matmul nn.functional.linear nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
fft.fft fft.rfft fft.irfft2 histc
softmax log_softmax nn.functional.layer_norm nn.functional.batch_norm nn.functional.group_norm
nn.functional.max_pool2d nn.functional.avg_pool2d nn.functional.adaptive_avg_pool2d nn.functional.pad.reflect
nn.functional.pad.replicate nn.functional.unfold
sort topk kthvalue median nanmedian unique searchsorted nonzero masked_select
gather scatter_add index_select index_put index_add take_along_dim tril flip roll cat stack
nn.functional.nll_loss nn.functional.embedding nn.functional.scaled_dot_product_attention bernoulli multinomial
""".split()


def main() -> int:
    torchgraft_opencl.register()
    torchgraft.fallback.set_mode("silent")
    torch.set_num_threads(1)
    names = sys.argv[1:] or OPS
    if names == ["all"]:
        names = [case.op for case in cases(dtypes=[torch.float32])]
    bad = 0
    for name in names:
        run = Run(Case.parse(f"{name}[float32]"), torch.device("ocl"), 2, lambda _: None)
        run.random = name in ("bernoulli", "multinomial")
        for check in ("values", "backward"):
            found = CheckResult()
            CHECKS[check](run, found)
            bad += found.failed
            if found.failed:
                print(f"{name} {check}: {found.message}", flush=True)
        print(f"{name} done", flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(min(main(), 1))
