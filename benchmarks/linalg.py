"""GFLOP/s of dense linear algebra, on the device and on torch's CPU in the same run: one large matrix and many small.

python benchmarks/linalg.py [--device ocl] [--only solve] [--rounds 5] [--json FILE]

Figures are made as in benchmarks/ops.py. The operations counted are those of the usual algorithm (Golub and Van Loan,
"Matrix Computations"), whatever a side really does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from ops import Case, Make, main


def cases() -> Iterator[Case]:
    def one(function: Callable[[torch.Tensor], object], *shape: int) -> Make:
        def make(device: str) -> Callable[[], object]:
            x = torch.randn(shape)
            positive = (x @ x.mT / shape[-1] + torch.eye(shape[-1])).to(device)
            return lambda: function(positive)

        return make

    linalg = torch.linalg
    functions: list[tuple[str, Callable[[torch.Tensor], object], float]] = [
        ("cholesky", linalg.cholesky_ex, 1 / 3),
        ("lu", linalg.lu_factor_ex, 2 / 3),
        ("solve", lambda x: linalg.solve_ex(x, x), 8 / 3),
        ("inv", linalg.inv_ex, 2),
        ("solve triangular", lambda x: linalg.solve_triangular(x, x, upper=False), 1),
        ("qr", linalg.qr, 8 / 3),
        ("eigh", linalg.eigh, 9),
        ("svd", linalg.svd, 21),
    ]
    for name, function, work in functions:
        for batch, n in ((1, 512), (1, 128), (4096, 8)):
            yield Case(f"{name}/{batch} of {n}", one(function, batch, n, n), work * batch * n**3, "GFLOP/s")


if __name__ == "__main__":
    main(cases, __doc__)
