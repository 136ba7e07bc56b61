"""GFLOP/s of dense linear algebra, on the device and on torch's CPU in the same run: one large matrix and many small.

python benchmarks/linalg.py [--device ocl] [--only solve] [--rounds 5] [--json FILE]

Figures are made as in benchmarks/ops.py. The operations counted are those of the usual algorithm (Golub and Van Loan,
"Matrix Computations"), whatever a side really does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from harness.case import Case, Make, computing
from ops import main


def cases() -> Iterator[Case]:
    def one(function: Callable[[torch.Tensor], object], *shape: int) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = torch.randn(shape)
            positive = (x @ x.mT / shape[-1] + torch.eye(shape[-1])).to(device)
            return lambda: function(positive)

        return make

    linalg = torch.linalg
    functions: list[tuple[str, Callable[[torch.Tensor], object], float, int]] = [
        ("cholesky", linalg.cholesky_ex, 1 / 3, 1),
        ("lu", linalg.lu_factor_ex, 2 / 3, 1),
        ("solve", lambda x: linalg.solve_ex(x, x), 8 / 3, 1),
        ("inv", linalg.inv_ex, 2, 1),
        ("solve triangular", lambda x: linalg.solve_triangular(x, x, upper=False), 1, 1),
        ("qr", linalg.qr, 8 / 3, 2),
        ("eigh", linalg.eigh, 9, 1),
        ("svd", linalg.svd, 21, 2),
    ]
    for name, function, work, results in functions:
        for batch, n in ((1, 512), (1, 128), (4096, 8)):
            make, nbytes = one(function, batch, n, n), 4 * (1 + results) * batch * n**2
            yield dataclasses.replace(
                computing(f"{name}/{batch} of {n}", make, work * batch * n**3, nbytes), tuned=True
            )


if __name__ == "__main__":
    main(cases, __doc__)
