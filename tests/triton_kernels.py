"""Kernels in Triton's language for test_triton.py: the kinds that its tutorials have, and one for each kind of op."""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def softmax(out, x, x_stride, out_stride, rows, columns, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        c = tl.arange(0, BLOCK)
        v = tl.load(x + row * x_stride + c, mask=c < columns, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * out_stride + c, e / tl.sum(e, axis=0), mask=c < columns)


@triton.jit
def layer_norm(x, out, weight, bias, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        total += tl.load(x + c, mask=c < n, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        d = tl.where(c < n, tl.load(x + c, mask=c < n, other=0.0).to(tl.float32) - mean, 0.0)
        squares += d * d
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / n + eps)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = (tl.load(x + c, mask=c < n, other=0.0).to(tl.float32) - mean) * scale
        v = v * tl.load(weight + c, mask=c < n) + tl.load(bias + c, mask=c < n)
        tl.store(out + c, v, mask=c < n)


@triton.autotune([triton.Config({"BM": 32, "BN": 32, "BK": 32}, num_warps=w) for w in (2, 4)], key=["M", "N", "K"])
@triton.jit
def matmul(a, b, c, M, N, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM)) % M
    n = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_at = a + m[:, None] * am + k[None, :] * ak
    b_at = b + k[:, None] * bk + n[None, :] * bn
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(K, BK)):
        x = tl.load(a_at, mask=k[None, :] < K - step * BK, other=0.0)
        y = tl.load(b_at, mask=k[:, None] < K - step * BK, other=0.0)
        total = tl.dot(x, y, total)
        a_at += BK * ak
        b_at += BK * bk
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    place = c + m[:, None] * cm + n[None, :] * cn
    tl.store(place, total.to(c.dtype.element_ty), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def attention(q, k, v, out, scale, head, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    n = tl.arange(0, BN)
    h = tl.program_id(1) * head
    query = tl.load(q + h + m[:, None] * D + d[None, :])
    keys = k + h + n[None, :] * D + d[:, None]
    values = v + h + n[:, None] * D + d[None, :]
    largest = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    sums = tl.zeros([BM, D], tl.float32)
    for start in range(0, T, BN):
        scores = tl.dot(query, tl.load(keys)).to(tl.float32) * scale
        scores = tl.where(start + n[None, :] <= m[:, None], scores, -1e30)
        new = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp(scores - new[:, None])
        by = tl.exp(largest - new)
        total = total * by + tl.sum(p, 1)
        sums = tl.dot(p.to(query.dtype), tl.load(values), sums * by[:, None])
        largest = new
        keys += BN * D
        values += BN * D
    tl.store(out + h + m[:, None] * D + d[None, :], (sums / total[:, None]).to(query.dtype))


@triton.jit
def binary(x, y, out, BLOCK: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i)
    b = tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "truediv":
        r = a / b
    elif OP == "floordiv":
        r = a // b
    elif OP == "mod":
        r = a % b
    elif OP == "maximum":
        r = tl.maximum(a, b)
    elif OP == "minimum":
        r = tl.minimum(a, b)
    elif OP == "and":
        r = a & b
    elif OP == "xor":
        r = a ^ b
    elif OP == "less":
        r = a < b
    elif OP == "ne":
        r = a != b
    elif OP == "where":
        r = tl.where(a > b, a, -b)
    tl.store(out + i, r)


@triton.jit
def cast(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(out.dtype.element_ty))


@triton.jit
def functions(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, tl.exp(v))
    tl.store(out + BLOCK + i, tl.log(tl.abs(v)))
    tl.store(out + 2 * BLOCK + i, tl.sin(v) + tl.cos(v))
    tl.store(out + 3 * BLOCK + i, libdevice.tanh(v))
    tl.store(out + 4 * BLOCK + i, tl.erf(v))
    tl.store(out + 5 * BLOCK + i, libdevice.pow(tl.abs(v), 1.5))
    tl.store(out + 6 * BLOCK + i, tl.sigmoid(v))
    tl.store(out + 7 * BLOCK + i, tl.floor(v) + tl.ceil(v))
    tl.store(out + 8 * BLOCK + i, tl.rsqrt(tl.abs(v)))
    tl.store(out + 9 * BLOCK + i, tl.exp2(v) + tl.log2(tl.abs(v)))


@triton.jit
def _welford(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):
    weight = weight_a + weight_b
    delta = mean_b - mean_a
    by = weight_b / weight
    return mean_a + delta * by, m2_a + m2_b + delta * delta * weight_a * by, weight


@triton.jit
def _last(a, b):
    return b


@triton.jit
def _compose(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def reductions(x, out, indices, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + rows[:, None] * N + columns[None, :])
    mean, m2, weight = tl.reduce((v, v * 0, v * 0 + 1), 1, _welford)
    tl.store(out + rows, mean)
    tl.store(out + M + rows, m2 / weight)
    tl.store(out + 2 * M + rows, tl.max(v, 1))
    tl.store(out + 3 * M + rows, tl.sum(v * v, 1))
    tl.store(out + 4 * M, tl.sum(tl.sum(v, 1), 0))
    tl.store(out + 5 * M + columns, tl.min(v, 0))
    tl.store(indices + rows, tl.argmax(v, 1))
    tl.store(indices + M + columns, tl.argmin(v, 0))


@triton.jit
def scans(x, out, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    v = tl.load(x + at)
    tl.store(out + at, tl.cumsum(v, 1))
    tl.store(out + M * N + at, tl.cumsum(v, 0, reverse=True))
    tl.store(out + 2 * M * N + at, tl.cumprod(v, 1))
    a, b = tl.associative_scan((v, v + 1), 1, _compose)
    tl.store(out + 3 * M * N + at, a + b)


@triton.jit
def moves(x, index, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    v = tl.load(x + at)
    tl.store(out + at, tl.trans(v))
    tl.store(out + N * N + at, tl.reshape(tl.trans(v), [N, N]))
    a, b = tl.split(tl.reshape(v, [N, N // 2, 2]))
    half = i[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :]
    tl.store(out + 2 * N * N + half, a - b)
    joined = tl.reshape(tl.join(a, b), [N, N])
    tl.store(out + 3 * N * N + at, joined)
    places = tl.load(index + at)
    tl.store(out + 4 * N * N + at, tl.gather(v, places, 1))
    tl.store(out + 5 * N * N + at, tl.sort(v, 1))
    tl.store(out + 6 * N * N + at, tl.flip(v, 1))


@triton.jit
def histogram(x, out, N: tl.constexpr, BINS: tl.constexpr):
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + tl.arange(0, N)), BINS))


@triton.jit
def atomics(x, index, sums, largest, least, old, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    v = tl.load(x + i, mask=mask)
    at = tl.load(index + i, mask=mask, other=0)
    tl.atomic_add(sums + at, v, mask=mask)
    tl.atomic_max(largest + at, i, mask=mask)
    tl.atomic_min(least + at, i, mask=mask)
    tl.store(old + tl.atomic_add(old, 1) + 1, tl.program_id(0))


@triton.jit
def control(x, out, n, limit):
    pid = tl.program_id(0)
    if pid >= n:
        return
    value = tl.load(x + pid)
    steps = 0
    while value < limit and steps < 100:
        value = value * 2
        steps += 1
    if steps % 2 == 0:
        value = -value
    else:
        value += 0.5
    tl.store(out + pid, value)


@triton.jit
def shifted(x, out, BLOCK: tl.constexpr):
    """Reads and writes elements in another order: all is read before any is written."""
    i = tl.arange(0, BLOCK)
    tl.store(out + (i + 1) % BLOCK, tl.load(x + i))


@triton.jit
def spins(lock, x):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(x, tl.load(x) + 1)
    tl.atomic_xchg(lock, 0)


@triton.jit
def assembled(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, v)


@triton.jit
def enormous(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + BLOCK - 1 - i, tl.cumsum(tl.load(x + i), 0))


@triton.jit
def asserts(x, index, out, n, BLOCK: tl.constexpr):
    """What an index out of range would read is behind a page that cannot be read."""
    i = tl.arange(0, BLOCK)
    at = tl.load(index + i)
    tl.device_assert((at >= 0) & (at < n), 'index {} is "100%" out of range')
    pid = tl.program_id(0)
    tl.device_assert(pid < 3)
    tl.store(out + pid * BLOCK + i, tl.load(x + at))


@triton.jit
def prints(x, n, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    tl.device_print('begin 10% "so"')
    tl.device_print("n", n, n.to(tl.uint8))
    tl.device_print("v", v)
    tl.device_print("hex", v, v.to(tl.float16), v.to(tl.bfloat16), (v * 4).to(tl.int64), hex=True)


@triton.jit
def overflows(x, y, out):
    tl.store(out, tl.load(x) * tl.load(y))


@triton.jit
def sums(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(out + i, tl.cumsum(v, 0) + tl.sum(v))


@triton.jit
def adds(x, index, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(index + i, mask=i < n, other=0), tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def exchanges(x, expected, new, old, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(old + i, tl.atomic_cas(x + i, tl.load(expected + i), tl.load(new + i)))


@triton.jit
def bits(x, out, BLOCK: tl.constexpr, TO: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i).to(TO, bitcast=True))


@triton.jit
def halves(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) // 2)


@triton.jit
def sums_begun_anew(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    v = tl.load(x + at)
    sums = tl.zeros([N, N], tl.float32)
    for k in range(6):
        sums = tl.dot(v, v, sums)
        if k % 3 == 1:
            tl.store(out + k // 3 * N * N + at, sums)
            sums = tl.zeros([N, N], tl.float32)


@triton.jit
def accumulators(x, out, n, BLOCK: tl.constexpr):
    """Blocks of which only the sums, the largest and the least are asked for."""
    sums = tl.zeros([BLOCK], tl.float32)
    backwards = tl.zeros([BLOCK], tl.float32)
    counts = tl.zeros([BLOCK], tl.int32)
    largest = tl.full([BLOCK], -1.5, tl.float32)
    least = tl.full([BLOCK], float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + c, mask=c < n, other=0.0)
        sums += v
        backwards = v * v + backwards
        counts += (v > 0).to(tl.int32)
        largest = tl.maximum(largest, tl.where(c < n, v, -float("inf")))
        least = tl.minimum(tl.where(c < n, v, float("inf")), least)
    tl.store(out, tl.sum(sums, 0))
    tl.store(out + 1, tl.sum(backwards, 0))
    tl.store(out + 2, tl.sum(counts, 0).to(tl.float32))
    tl.store(out + 3, tl.max(largest, 0))
    tl.store(out + 4, tl.min(least, 0))
    tl.store(out + 5, tl.sum(sums, 0) * 2)


@triton.jit
def whole_blocks(x, out, blocks, n, BLOCK: tl.constexpr):
    """Such blocks of which more is asked for than that, or that begin with what counts for each element."""
    begun = tl.full([BLOCK], 1.0, tl.float32)
    mixed = tl.zeros([BLOCK], tl.float32)
    kept = tl.zeros([BLOCK], tl.float32)
    running = tl.zeros([BLOCK], tl.float32)
    read = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + c, mask=c < n, other=0.0)
        begun += v
        mixed += v
        kept += v
        running += read
        read += v
    tl.store(out, tl.sum(begun, 0))
    tl.store(out + 1, tl.max(mixed, 0))
    tl.store(out + 2, tl.sum(kept, 0))
    tl.store(out + 3, tl.sum(running, 0))
    tl.store(blocks + tl.arange(0, BLOCK), kept)


@triton.jit
def product(x, y, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(x + m[:, None] * K + k[None, :]), tl.load(y + k[:, None] * N + n[None, :])
    tl.store(out + m[:, None] * N + n[None, :], tl.dot(a, b, out_dtype=out.dtype.element_ty))


@triton.jit(noinline=True)
def _twice(x, y):
    return x * 2, x + y


@triton.jit
def calls(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = _twice(tl.load(x), tl.load(x + 1))
    tl.store(out + i, tl.load(x + i) * a + b)


@triton.jit
def described(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """The one is a descriptor, the other becomes one."""
    to = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[columns, 1], block_shape=[M, N])
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    to.store([m, n], x.load([m, n + 1]) * 2)


@triton.jit
def of_tuples(pointers, numbers, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x, y, out = pointers[0], pointers[1][0], pointers[1][1]
    tl.store(out + i, tl.load(x + i) * numbers[0] + tl.load(y + i) + numbers[1])


@triton.jit
def running_sums(x, out, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    """Of columns, a block of rows after the other."""
    r, c = tl.arange(0, BR), tl.program_id(0) * BC + tl.arange(0, BC)
    before = tl.zeros((BC,), tl.float32)
    for i in range(tl.cdiv(rows, BR)):
        at = (i * BR + r)[:, None] * columns + c[None, :]
        mask = (i * BR + r < rows)[:, None] & (c < columns)[None, :]
        v = tl.load(x + at, mask=mask, other=0.0)
        tl.store(out + at, before[None, :] + tl.cumsum(v, axis=0), mask=mask)
        before += tl.sum(v, axis=0)


@triton.jit
def sums_begun_alike(a, w, b, out, n, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    x, bias = tl.load(a + at), tl.load(b + at) * 2
    total = tl.zeros([N, N], tl.float32)
    for k in range(n):
        total += tl.maximum(tl.dot(x, tl.load(w + k * N * N + at), bias), 0)
    tl.store(out + at, total)


@triton.jit
def doubled(x, n, HALVES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    at = at // 2 if HALVES else at % n
    tl.store(x + at, tl.load(x + at) * 2)


@triton.jit
def counted(x, out, count, BLOCK: tl.constexpr, SEM: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))
    if SEM == "relaxed":
        tl.debug_barrier()
    tl.atomic_add(count, 1, sem=SEM)
