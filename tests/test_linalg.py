"""Dense linear algebra: by values against torch's CPU in double precision where results are unique, by residuals
elsewhere. Both kernel forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchgraft import plans
from torchgraft.plans import versions
from torchgraft.plans.device import kernel_form

pytestmark = pytest.mark.no_fallback

EPS = {torch.float32: 1.2e-7, torch.float64: 2.3e-16, torch.complex64: 1.2e-7, torch.complex128: 2.3e-16}
WIDE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
WIDE_BACK = {torch.float64: torch.float32}
DTYPES = pytest.mark.parametrize("dtype", EPS, ids=str)

# Orders: nothing, one, small, batches, more than one block of a large matrix.
SQUARE = [(0, 0), (1, 1), (5, 5), (2, 3, 4, 4), (0, 3, 3), (3, 0, 0), (200, 200)]
ANY = [(3, 5), (5, 3), (2, 7, 4), (0, 3), (3, 0), (2, 0, 3), (90, 200), (200, 90)]


def few_on_gpus(test: Any) -> Any:
    """Every shape in the form for CPUs, one in that for GPUs, which takes long to compile."""
    test = pytest.mark.quick(form="cpu", dtype=torch.float32)(test)
    test = pytest.mark.quick(form="cpu", dtype=torch.complex64, shape=[(2, 3, 4, 4), (5, 3), (90, 200)])(test)
    return pytest.mark.quick(form="gpu", dtype=torch.float32, shape=[(2, 3, 4, 4), (2, 7, 4)])(test)


@pytest.fixture(params=["cpu", "gpu"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both forms of the kernels."""
    monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", request.param)
    kernel_form.cache_clear()
    plans.clear()
    yield request.param
    monkeypatch.undo()
    kernel_form.cache_clear()
    plans.clear()


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().to(WIDE.get(x.dtype, x.dtype))


def eye(x: torch.Tensor) -> torch.Tensor:
    return torch.eye(x.shape[-1], dtype=x.dtype)


def positive(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    return x @ x.mH / max(1, shape[-1]) + eye(x)


def regular(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """With a condition number that is moderate."""
    x = torch.randn(shape, dtype=dtype)
    return x + 3 * max(1, shape[-1]) ** 0.5 * eye(x)


def close(got: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """Within some tens of roundings for each of a matrix' rows, `scale` being the size of the numbers."""
    assert got.device.type != "cpu"
    assert got.shape == expected.shape
    order = max([1, *got.shape[-2:]])
    tolerance = 40 * EPS.get(got.dtype, 1e-15) * order * scale
    torch.testing.assert_close(wide(got), wide(expected), rtol=tolerance, atol=tolerance)


def layouts(x: torch.Tensor, device: str) -> Iterator[torch.Tensor]:
    """The same matrices in other memory: row-major, column-major, strided, conjugated by a flag."""
    there = x.to(device)
    yield there
    if x.numel() > 10000:
        return
    yield there.mT.contiguous().mT
    spread = torch.zeros(*x.shape, 2, dtype=x.dtype, device=device)
    spread[..., 0] = there
    yield spread[..., 0]
    if x.is_complex():
        yield there.conj().resolve_conj().conj()


def gradients(device: str, f: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """The gradients of a function's sum of weighted squares, against the CPU's in double precision."""
    found: list[list[torch.Tensor]] = []
    for move in (lambda x: x.to(device), wide):
        leaves = [move(x).requires_grad_() for x in inputs]
        result = f(*leaves)
        weights = torch.linspace(1, 2, result.numel()).view(result.shape).to(result.device)
        found.append(list(torch.autograd.grad((result.abs() ** 2 * weights).sum(), leaves)))
    for got, expected in zip(*found, strict=True):
        assert got.device.type != "cpu"
        close(got, expected, 50 * max([1.0, *expected.abs().flatten().tolist()]))


# ---- Cholesky and triangular systems ----


@DTYPES
@pytest.mark.parametrize("shape", SQUARE, ids=str)
@few_on_gpus
def test_cholesky(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = positive(shape, dtype)
    for upper in (False, True):
        expected = torch.linalg.cholesky(wide(a), upper=upper)
        for x in layouts(a, device):
            close(torch.linalg.cholesky(x, upper=upper), expected, 10)
        close(torch.cholesky_inverse(expected.to(dtype).to(device), upper), torch.linalg.inv(wide(a)), 10)
        b = torch.randn(*shape[:-1], 3, dtype=dtype)
        solution = torch.cholesky_solve(b.to(device), expected.to(dtype).to(device), upper)
        close(solution, torch.linalg.solve(wide(a), wide(b)), 20)
    if shape[-1] < 10:
        gradients(device, torch.linalg.cholesky, a)


def test_cholesky_reads_one_triangle(device: str) -> None:
    a = positive((6, 6), torch.float64)
    garbage = torch.full((6, 6), float("nan"), dtype=torch.float64)
    close(torch.linalg.cholesky((a.tril() + garbage.triu(1)).to(device)), torch.linalg.cholesky(a))
    close(
        torch.linalg.cholesky((a.triu() + garbage.tril(-1)).to(device), upper=True),
        torch.linalg.cholesky(a, upper=True),
    )


@pytest.mark.parametrize("n", [3, 100])
def test_not_positive_definite(device: str, n: int) -> None:
    a = torch.eye(n).repeat(3, 1, 1)
    a[1, n - 1, n - 1] = -1
    x = a.to(device)
    assert torch.linalg.cholesky_ex(x).info.tolist() == [0, n, 0]
    old = [torch.cholesky for _ in versions.here(["cholesky"])]
    for f in (torch.linalg.cholesky, *old, lambda t: torch.linalg.cholesky_ex(t, check_errors=True)):
        with pytest.raises(torch.linalg.LinAlgError, match=rf"Batch element 1.*order {n} "):
            f(x)
        with pytest.raises(torch.linalg.LinAlgError):
            f(x[0] * float("nan"))


@DTYPES
@pytest.mark.parametrize("shape", SQUARE, ids=str)
@few_on_gpus
def test_solve_triangular(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = regular(shape, dtype)
    n = shape[-1]
    if n > 100:
        a = a / n  # so that unit triangles are well conditioned too
        a.diagonal(dim1=-2, dim2=-1).fill_(1)
    for left in (True, False):
        for columns in (0, 1, 9):
            b = torch.randn(*shape[:-2], *((n, columns) if left else (columns, n)), dtype=dtype)
            for upper, unit in ((False, False), (True, False), (False, True), (True, True)):
                small = a / 8 if unit and n <= 100 else a
                triangle = small.triu() if upper else small.tril()
                # Large matrices come in one layout.
                for x, y in zip(layouts(small, device), layouts(b, device), strict=n <= 100):
                    got = torch.linalg.solve_triangular(x, y, upper=upper, left=left, unitriangular=unit)
                    if unit:
                        triangle.diagonal(dim1=-2, dim2=-1).fill_(1)
                    product = triangle @ wide(got).to(dtype) if left else wide(got).to(dtype) @ triangle
                    close(product.to(device), b, 100)


def test_triangular_broadcasts_and_writes_out(device: str) -> None:
    a, b = regular((4, 4), torch.float32).tril(), torch.randn(5, 2, 4, 3)
    expected = torch.linalg.solve_triangular(a.double(), b.double(), upper=False)
    close(torch.linalg.solve_triangular(a.to(device), b.to(device), upper=False), expected, 10)
    many = regular((2, 4, 4), torch.float32)
    close(
        torch.linalg.solve_triangular(many.to(device), b.to(device), upper=True),
        torch.linalg.solve_triangular(many.double(), b.double(), upper=True),
        10,
    )
    for out in (torch.empty(0, device=device), torch.zeros(5, 2, 4, 6, device=device)[..., ::2]):
        assert torch.linalg.solve_triangular(a.to(device), b.to(device), upper=False, out=out) is out
        close(out, expected, 10)
    y = b.to(device)
    torch.linalg.solve_triangular(a.to(device), y, upper=False, out=y)
    close(y, expected, 10)
    for transpose in (False, True):
        got = torch.triangular_solve(b.to(device), a.to(device), upper=False, transpose=transpose)
        close(got.solution, torch.triangular_solve(b.double(), a.double(), False, transpose).solution, 10)
        assert torch.equal(got.cloned_coefficient.cpu(), a.expand(5, 2, 4, 4))
    with pytest.raises(RuntimeError):
        torch.linalg.solve_triangular(a.to(device), b.to(device)[..., :3, :], upper=False)


# ---- LU ----


@DTYPES
@pytest.mark.parametrize("shape", [*SQUARE, *ANY], ids=str)
@few_on_gpus
def test_lu(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = torch.randn(shape, dtype=dtype)
    for x in layouts(a, device):
        p, lower, upper = torch.linalg.lu(x)
        close((p @ lower @ upper), wide(x), 10)
        assert (wide(lower).abs() < 1.5).all()
        factors, pivots = torch.linalg.lu_factor(x)
        assert ((pivots > 0) & (pivots <= shape[-2])).all()
        for got, expected in zip(torch.lu_unpack(factors, pivots), (p, lower, upper), strict=True):
            assert torch.equal(got.cpu(), expected.cpu())
    if 0 < shape[-1] < 10 and shape[-2] == shape[-1]:
        gradients(device, lambda t: torch.linalg.lu_factor(t).LU, regular(shape, dtype))


@DTYPES
@pytest.mark.parametrize("shape", SQUARE, ids=str)
@few_on_gpus
def test_solve(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = regular(shape, dtype)
    n = shape[-1]
    for x in layouts(a, device):
        close(torch.linalg.inv(x), torch.linalg.inv(wide(x)))
        factors, pivots = torch.linalg.lu_factor(x)
        for left in (True, False):
            b = torch.randn(*shape[:-2], *((n, 4) if left else (4, n)), dtype=dtype)
            expected = torch.linalg.solve(wide(x), wide(b), left=left)
            close(torch.linalg.solve(x, b.to(device), left=left), expected)
            for adjoint in (False, True):
                expected = torch.linalg.solve(wide(x).mH if adjoint else wide(x), wide(b), left=left)
                close(torch.linalg.lu_solve(factors, pivots, b.to(device), left=left, adjoint=adjoint), expected)
    if 0 < n < 10:
        b = torch.randn(*shape[:-1], 2, dtype=dtype)
        gradients(device, torch.linalg.inv, a)
        gradients(device, torch.linalg.solve, a, b)
        gradients(device, torch.linalg.solve, a, b[..., 0])
        gradients(device, lambda s, t: torch.linalg.solve(s, t.mT, left=False), a.mT.contiguous().mT, b)
        gradients(device, lambda s, t: torch.linalg.lu_solve(*torch.linalg.lu_factor(s), t), a, b)


@DTYPES
@pytest.mark.parametrize("shape", SQUARE[:-1], ids=str)
def test_determinant(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = torch.randn(shape, dtype=dtype)
    for x in layouts(a, device):
        close(torch.linalg.det(x), torch.linalg.det(wide(x)), 30)
        sign, logarithm = torch.linalg.slogdet(x)
        close(sign * logarithm.exp(), torch.linalg.det(wide(x)), 30)
    if shape[-1] > 0:
        gradients(device, torch.linalg.det, regular(shape, dtype))
        gradients(device, torch.linalg.det, regular(shape, dtype).mT.contiguous().mT)
        gradients(device, lambda t: torch.linalg.slogdet(t).logabsdet, regular(shape, dtype))


def test_determinant_of_many(device: str) -> None:
    x = regular((200, 200), torch.float64).to(device)
    sign, logarithm = torch.linalg.slogdet(x)
    expected = torch.linalg.slogdet(x.cpu())
    assert sign.item() == expected.sign.item()
    close(logarithm, expected.logabsdet)


@pytest.mark.parametrize("n", [3, 100])
def test_singular(device: str, n: int) -> None:
    a = torch.eye(n, dtype=torch.float64).repeat(2, 3, 1, 1)
    a[1, 1, n - 1, n - 1] = 0
    x = a.to(device)
    assert torch.linalg.lu_factor_ex(x).info.tolist() == torch.linalg.lu_factor_ex(a).info.tolist()
    assert torch.linalg.det(x).tolist() == torch.linalg.det(a).tolist()
    assert torch.linalg.slogdet(x).logabsdet[1, 1].item() == -float("inf")
    b = torch.ones(2, 3, n, 1, dtype=torch.float64, device=device)
    calls: list[Callable[[], Any]] = [
        lambda: torch.linalg.inv(x),
        lambda: torch.linalg.inv_ex(x, check_errors=True),
        lambda: torch.linalg.solve(x, b),
        lambda: torch.linalg.solve_ex(x, b, check_errors=True),
    ]
    for call in calls:
        with pytest.raises(torch.linalg.LinAlgError, match=r"Batch element 4"):
            call()
    for wrong in (torch.linalg.lu_factor, lambda t: torch.linalg.lu_factor_ex(t, check_errors=True)):
        with pytest.raises(RuntimeError, match=r"Batch element 4"):  # which is what torch raises here
            wrong(x)
    assert torch.linalg.inv_ex(x).info.view(-1).tolist() == [0, 0, 0, 0, n, 0]


def test_bad_pivots_are_an_error(device: str) -> None:
    factors, pivots = torch.linalg.lu_factor(torch.eye(3, device=device))
    for call in (
        lambda bad: torch.lu_unpack(factors, bad),
        lambda bad: torch.linalg.lu_solve(factors, bad, torch.ones(3, 1, device=device)),
    ):
        for wrong in (0, 4):
            with pytest.raises(RuntimeError, match="no row of the matrix"):
                call(torch.full_like(pivots, wrong))
                torch.accelerator.synchronize()
    close(torch.linalg.inv(torch.eye(3, device=device)), torch.eye(3))  # the device goes on working


def test_results_are_written_where_they_are_asked(device: str) -> None:
    a = regular((3, 4, 4), torch.float32)
    x = a.to(device)
    wanted = {
        torch.linalg.inv: torch.linalg.inv(a.double()),
        torch.linalg.det: torch.linalg.det(a.double()),
        torch.linalg.lu_factor: torch.linalg.lu_factor(a.double()),
        torch.linalg.slogdet: torch.linalg.slogdet(a.double()),
        torch.linalg.cholesky_ex: torch.linalg.cholesky_ex(a.double()),
    }
    for function, expected in wanted.items():
        several = isinstance(expected, tuple)
        results = list(expected) if several else [expected]
        dtypes = [WIDE_BACK.get(t.dtype, t.dtype) for t in results]
        for make in (
            lambda t, dtype: torch.empty(0, dtype=dtype, device=device),
            lambda t, dtype: torch.zeros(*t.shape, 2, dtype=dtype, device=device)[..., 1],
        ):
            out = tuple(make(t, dtype) for t, dtype in zip(results, dtypes, strict=True))
            function(x, out=out if several else out[0])
            for got, right in zip(out, results, strict=True):
                close(got, right, 10 * max(1.0, right.abs().max().item()))


# ---- orthogonal factorisations ----


def is_orthonormal(q: torch.Tensor, by_rows: bool = False) -> None:
    q = q.mH if by_rows else q
    close(q.mH @ q, torch.eye(q.shape[-1], dtype=wide(q).dtype).expand(*q.shape[:-2], -1, -1))


@DTYPES
@pytest.mark.parametrize("shape", [*SQUARE, *ANY], ids=str)
@few_on_gpus
def test_qr(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = torch.randn(shape, dtype=dtype)
    m, n = shape[-2:]
    for x in layouts(a, device):
        before = x.clone()
        for mode in ("reduced", "complete"):
            q, r = torch.linalg.qr(x, mode=mode)
            assert q.shape[-2:] == (m, min(m, n) if mode == "reduced" else m)
            is_orthonormal(q)
            close(q @ r, a)
            assert not r.tril(-1).any()
        close(torch.linalg.qr(x, mode="r").R.abs(), torch.linalg.qr(wide(a), mode="r").R.abs(), 10)
        vectors, tau = torch.geqrf(x)
        assert torch.equal(x, before)
        k = min(m, n)
        q = torch.linalg.householder_product(vectors[..., :k], tau)
        close(q @ vectors[..., :k, :].triu(), a)
        full = torch.linalg.qr(x, mode="complete").Q
        for left in (True, False):
            for transpose in (True, False):
                c = torch.randn(*shape[:-2], *((m, 3) if left else (3, m)), dtype=dtype, device=device)
                turned = full.mH if transpose else full
                got = torch.ormqr(vectors[..., :k], tau, c, left=left, transpose=transpose)
                close(got, turned @ c if left else c @ turned, 10)
    if 0 < n <= m < 10:
        gradients(device, lambda t: torch.linalg.qr(t).R, regular(shape, dtype) if m == n else a)


def test_qr_of_hard_matrices(device: str) -> None:
    for scale in (1e-30, 1e30):  # whose squares are no float32
        a = torch.randn(6, 4) * scale
        q, r = torch.linalg.qr(a.to(device))
        is_orthonormal(q)
        close(q @ (r / scale), a / scale)
    q, r = torch.linalg.qr(torch.ones(5, 3, device=device))
    is_orthonormal(q)
    q, r = torch.linalg.qr(torch.zeros(5, 3, device=device))
    is_orthonormal(q)
    assert not r.any()
    with pytest.raises(RuntimeError, match="unrecognized mode"):
        torch.linalg.qr(torch.ones(2, 2, device=device), mode="thin")
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        torch.geqrf(torch.ones(2, device=device))


# ---- eigenvalues and singular values ----


@DTYPES
@pytest.mark.parametrize("shape", SQUARE, ids=str)
@few_on_gpus
def test_eigh(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = torch.randn(shape, dtype=dtype)
    a = a + a.mH
    size = max(1, shape[-1]) ** 0.5
    expected = torch.linalg.eigvalsh(wide(a))
    for x in layouts(a, device):
        for uplo, triangle in (("L", x.tril()), ("U", x.triu())):
            values, vectors = torch.linalg.eigh(triangle, UPLO=uplo)
            close(values, expected, size)
            is_orthonormal(vectors)
            close(vectors @ (values.unsqueeze(-1) * vectors.mH), a, size)
            close(torch.linalg.eigvalsh(triangle, UPLO=uplo), expected, size)
    if 0 < shape[-1] < 10:
        gradients(device, torch.linalg.eigvalsh, a)
        gradients(device, lambda t: torch.linalg.eigh(t + t.mH).eigenvectors.abs(), a)


@DTYPES
@pytest.mark.parametrize("shape", [*SQUARE, *ANY], ids=str)
@few_on_gpus
def test_svd(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a = torch.randn(shape, dtype=dtype)
    size = max(1, *shape[-2:]) ** 0.5
    k = min(shape[-2:])
    for x in layouts(a, device):
        for full in (False, True):
            u, s, vh = torch.linalg.svd(x, full_matrices=full)
            assert (u.shape[-1], vh.shape[-2]) == ((shape[-2], shape[-1]) if full else (k, k))
            close(s, torch.linalg.svdvals(wide(a)), size)
            is_orthonormal(u)
            is_orthonormal(vh, by_rows=True)
            close(u[..., :k] @ (s.unsqueeze(-1) * vh[..., :k, :]), a, size)
        close(torch.linalg.svdvals(x), torch.linalg.svdvals(wide(a)), size)
    if k and max(shape) < 10:
        gradients(device, torch.linalg.svdvals, a)
        gradients(device, lambda t: torch.linalg.svd(t, full_matrices=False).U.abs(), a)
        gradients(device, torch.linalg.pinv, a)


@pytest.mark.thorough
@pytest.mark.quick(form="cpu")
def test_repeated_and_missing_ranks(device: str) -> None:
    u, s, vh = torch.linalg.svd(torch.ones(7, 4, dtype=torch.float64, device=device))
    is_orthonormal(u)
    is_orthonormal(vh)
    close(s, torch.tensor([28.0**0.5, 0, 0, 0], dtype=torch.float64))
    for a in (torch.zeros(5, 5), torch.eye(5), torch.eye(5) * 1e30, torch.diag(torch.tensor([3.0, 0, -3, 0, 3]))):
        x = a.to(device)
        u, s, vh = torch.linalg.svd(x)
        is_orthonormal(u)
        is_orthonormal(vh)
        scale = max(1.0, a.abs().max().item())
        close((u @ (s.unsqueeze(-1) * vh)) / scale, a / scale, 10)
        values, vectors = torch.linalg.eigh(x)
        is_orthonormal(vectors)
        close(values / scale, torch.linalg.eigvalsh(a.double()) / scale)
    low = torch.randn(40, 5, device=device) @ torch.randn(5, 30, device=device)
    assert torch.linalg.matrix_rank(low).item() == 5
    assert torch.linalg.matrix_rank(low @ low.mT, hermitian=True).item() == 5
    close(low @ torch.linalg.pinv(low) @ low, low.cpu(), 100)


def test_what_is_not_finite_is_an_error(device: str) -> None:
    x = torch.ones(2, 3, 3, device=device)
    x[1, 1, 1] = float("nan")
    for call in (torch.linalg.svd, torch.linalg.svdvals, torch.linalg.eigh, torch.linalg.eigvalsh):
        with pytest.raises(torch.linalg.LinAlgError, match="Batch element 1"):
            call(x)
    with pytest.raises(RuntimeError, match="UPLO"):
        torch.linalg.eigh(x, UPLO="X")
    with pytest.raises(RuntimeError, match="driver"):
        torch.linalg.svd(x, driver="gesvd")


# ---- least squares and the exponential ----


@DTYPES
@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_lstsq(device: str, dtype: torch.dtype, driver: str) -> None:
    for shape in ((5, 3), (3, 5), (4, 4), (2, 6, 3)):
        a, b = torch.randn(shape, dtype=dtype), torch.randn(*shape[:-1], 2, dtype=dtype)
        got = torch.linalg.lstsq(a.to(device), b.to(device), driver=driver)
        expected = torch.linalg.lstsq(wide(a), wide(b), driver=driver)
        scale = 10 * max(1.0, torch.linalg.cond(wide(a)).max().item())
        close(got.solution, expected.solution, scale)
        close(got.residuals, expected.residuals, scale)
        assert got.rank.tolist() == expected.rank.tolist()
        close(got.singular_values, expected.singular_values, 10)
    if driver != "gels":
        a = torch.randn(6, 2, dtype=dtype) @ torch.randn(2, 4, dtype=dtype)
        b = torch.randn(6, 3, dtype=dtype)
        got = torch.linalg.lstsq(a.to(device), b.to(device), driver=driver)
        assert got.rank.item() == 2
        assert got.residuals.numel() == 0
        close(got.solution, torch.linalg.pinv(wide(a), rtol=1e-4) @ wide(b), 100)


def test_lstsq_refuses(device: str) -> None:
    a, b = torch.randn(5, 3, device=device), torch.randn(5, 2, device=device)
    for call in (
        lambda: torch.linalg.lstsq(a, b, driver="svd"),
        lambda: torch.linalg.lstsq(a, b[:4]),
        lambda: torch.linalg.lstsq(a, b.double()),
        lambda: torch.linalg.lstsq(a[0], b),
    ):
        with pytest.raises(RuntimeError, match=r"torch\.linalg\.lstsq"):
            call()


@DTYPES
def test_matrix_exp(device: str, dtype: torch.dtype) -> None:
    for shape in ((0, 0), (1, 1), (5, 5), (2, 3, 4, 4), (100, 100)):
        a = torch.randn(shape, dtype=dtype) / max(1, shape[-1]) ** 0.5
        for x in layouts(a, device):
            close(torch.linalg.matrix_exp(x), torch.linalg.matrix_exp(wide(a)), 10)
    mixed = torch.stack([torch.zeros(3, 3), torch.eye(3) * 20, -torch.ones(3, 3) * 1e-3]).to(dtype)
    got, expected = torch.linalg.matrix_exp(mixed.to(device)), torch.linalg.matrix_exp(wide(mixed))
    close(got / got.abs().amax((-2, -1), keepdim=True), expected / expected.abs().amax((-2, -1), keepdim=True), 10)
    gradients(device, torch.linalg.matrix_exp, torch.randn(3, 3, dtype=dtype) / 3)
    with pytest.raises(RuntimeError, match="square"):
        torch.linalg.matrix_exp(torch.zeros(2, 3, device=device))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("batches", [((2, 1, 3), (4, 1)), ((3,), (2, 1)), ((2, 1), (1, 3)), ((), (2, 1))], ids=str)
def test_batches_of_both_sides_broadcast(device: str, batches: tuple[tuple[int, ...], ...], left: bool) -> None:
    a = torch.randn(*batches[0], 4, 4).triu() + 4 * torch.eye(4)
    b = torch.randn(*batches[1], 4, 6) if left else torch.randn(*batches[1], 6, 4)
    x, y = a.to(device), b.to(device)
    factors, pivots = torch.linalg.lu_factor(a)
    for got, expected in (
        (torch.linalg.solve(x, y, left=left), torch.linalg.solve(a, b, left=left)),
        (
            torch.linalg.solve_triangular(x, y, upper=True, left=left),
            torch.linalg.solve_triangular(a, b, upper=True, left=left),
        ),
        (
            torch.linalg.lu_solve(factors.to(device), pivots.to(device), y, left=left),
            torch.linalg.lu_solve(factors, pivots, b, left=left),
        ),
    ):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.no_fallback
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.complex64,
    ],
    ids=str,
)
def test_cross_products(device: str, dtype: torch.dtype) -> None:
    whole = not (dtype.is_floating_point or dtype.is_complex)

    def some(*shape: int) -> torch.Tensor:
        return torch.randint(0, 9, shape, dtype=dtype) if whole else torch.randn(shape, dtype=dtype)

    exact = dtype if whole else torch.complex128 if dtype.is_complex else torch.float64
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float64: 1e-12}.get(dtype, 1e-5)
    for x, y, dim in (
        (some(1000, 3), some(1000, 3), -1),
        (some(3), some(3), 0),
        (some(0, 3), some(0, 3), 1),
        (some(3, 50, 7), some(3, 1, 7), 0),
        (some(4, 3, 50), some(4, 3, 50), 1),
        (some(50, 6)[:, ::2], some(1, 3), -1),
        (some(3, 50).t(), some(50, 4)[:, 1:], -1),
        (some(50, 3).conj(), some(50, 3), -1),
        (some(3, 5000).t(), some(5000, 3), -1),
        (some(3000, 3, 4), some(3000, 3, 4), 1),
    ):
        expected = torch.linalg.cross(x.to(exact), y.to(exact), dim=dim).to(dtype)
        got = torch.linalg.cross(x.to(device), y.to(device), dim=dim)
        torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)
        out = torch.empty(*expected.shape, 2, dtype=dtype, device=device)[..., 1]
        torch.linalg.cross(x.to(device), y.to(device), dim=dim, out=out)
        torch.testing.assert_close(out.cpu(), expected, rtol=tolerance, atol=tolerance)


def test_gradients_of_cross_products(device: str) -> None:
    x, y, grad = (torch.randn(40, 3, dtype=torch.float64) for _ in range(3))
    given = [v.to(device).requires_grad_() for v in (x, y)]
    torch.linalg.cross(*given).backward(grad.to(device))
    expected = [v.clone().requires_grad_() for v in (x, y)]
    torch.linalg.cross(*expected).backward(grad)
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_factors_of_cross_products_that_do_not_go_together(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        torch.linalg.cross(x, x.double())
    with pytest.raises(NotImplementedError, match=r"cross.*Bool"):
        torch.linalg.cross(x.bool(), x.bool())
    with pytest.raises(RuntimeError, match="must have the same number of dimensions"):
        torch.linalg.cross(x, x[0])
