"""Random numbers: kernels that draw from Philox counters.

Counter c of a reservation gives four 32-bit words, and a distribution takes a fixed number of words for a fixed
number of values: the value of an element depends on its index only, not on how a kernel partitions the elements.

Kernels walk over blocks of counters: the words of a block are drawn first and then turned into values, so that a
distribution is written as if for one element. On a CPU a block has many counters, side by side in vectors, on a GPU
one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.pointwise import Input, Number, convert, expression
from torchgraft.codegen.types import BY_NAME, MOVES, value_ctype
from torchgraft.codegen.walk import FEW, Walk
from torchgraft.functions.philox import COUNTERS

WORDS = 4 * COUNTERS


@dataclass(frozen=True)
class Draw:
    """A distribution as a kernel.

    Attributes:
        words: 32-bit words that a unit takes: 1, 2 or 4. They are called w0, w1, ...
        values: elements of a unit: 1 or 2.
        numbers: launch arguments, by name.
        inputs: operands that are loaded for each element, as <name>0 and <name>1.
        head: statements before all elements.
        text: statements of a unit.
        results: for each result its storage type, the type of its expression, and the expressions of the unit's values.
        reports: whether the kernel has the arguments `tg_errors` and `tg_code`.
        tail: statements after all elements.
    """

    name: str
    words: int
    values: int
    numbers: tuple[Number, ...]
    inputs: tuple[Input, ...]
    head: str
    text: str
    results: tuple[tuple[str, str, tuple[str, ...]], ...]
    reports: bool = False
    tail: str = ""

    @property
    def elements(self) -> int:
        """Elements of one counter."""
        return 4 * self.values // self.words


def _unit(draw: Draw, base: str, count: int) -> str:
    """Statements for the first `count` values of the unit whose first element is number `base`."""
    lines = []
    for e in range(count):
        for i in draw.inputs:
            value = convert(f"load_{i.storage}({i.name}_p, {base} + {e})", i.storage, i.compute)
            lines.append(f"{value_ctype(i.compute)} {i.name}{e} = {value};")
    for e in range(count, draw.values):
        lines += [f"{value_ctype(i.compute)} {i.name}{e} = 0;" for i in draw.inputs]
    lines.append(draw.text)
    for r, (storage, compute, texts) in enumerate(draw.results):
        for e in range(count):
            lines.append(f"store_{storage}(out{r}_p, {base} + {e}, {convert(texts[e], compute, storage)});")
    return "\n".join(lines)


def block_counters(form: str) -> int:
    """Counters of a block."""
    return COUNTERS if form == "cpu" else 1


@functools.cache
def draw_kernel(draw: Draw, form: str) -> Kernel:
    """A walk over blocks. Parameters: results ``out<r>_p``, inputs ``<name>_p``, numbers, `tg_errors` and `tg_code` if
    it reports errors, `tg_seed` and `tg_offset` of a reservation, and `tg_elements`."""
    walk = Walk(form, prefix="tg_")
    counters = block_counters(form)
    block = counters * draw.elements
    if form == "cpu":
        fill = f"tg_philox_block(tg_words, tg_seed, tg_offset + (ulong)(tg_i * {counters}));"
    else:
        fill = "uint4 tg_drawn = tg_philox(tg_seed, tg_offset + (ulong)tg_i, 0);\n"
        fill += " ".join(f"tg_words[{k}] = LANE(tg_drawn, {k});" for k in range(4))
    words = "\n".join(f"uint w{k} = tg_words[{draw.words} * tg_j + {k}];" for k in range(draw.words))
    base = f"tg_first + {draw.values} * tg_j"
    odd_end = f"""
    if ((tg_count & 1) != 0) {{
      const int tg_j = tg_count / 2;
{words}
{_unit(draw, base, 1)}
    }}"""
    statements = f"""\
    uint tg_words[{4 * counters}];
    {fill}
    const long tg_first = tg_i * {block};
    const int tg_count = (int)(tg_elements - tg_first < {block} ? tg_elements - tg_first : {block});
    {"VECTORIZE" if form == "cpu" else ""}
    for (int tg_j = 0; tg_j < tg_count / {draw.values}; ++tg_j) {{
{words}
{_unit(draw, base, draw.values)}
    }}{odd_end if draw.values == 2 else ""}"""
    params = [f"{storage}* out{r}_p" for r, (storage, _, _) in enumerate(draw.results)]
    params += [f"const {i.storage}* {i.name}_p" for i in draw.inputs]
    params += [f"{n.type} {n.name}" for n in draw.numbers]
    params += ["i32* tg_errors; i32 tg_code" if draw.reports else "", "u64 tg_seed, tg_offset; i64 tg_elements"]
    body = f"{draw.head}\n{walk.each(statements, vectorize=False)}\n{draw.tail}"
    return walk.kernel(draw.name, parameters("; ".join(params)), body)


# ---- distributions ----

_DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


def _fraction(compute: str, digits: int) -> str:
    """In [0, 1), a multiple of 2^-digits."""
    if compute == "f64":
        return "(double)(long)(((ulong)w0 << 21) | (w1 >> 11)) * 1.1102230246251565e-16"
    return f"(float)(w0 >> {32 - digits}) * {2.0**-digits!r}f"


def _open_fraction(compute: str) -> str:
    """In (0, 1), without its ends."""
    if compute == "f64":
        return "((double)(long)(((ulong)w0 << 20) | (w1 >> 12)) + 0.5) * 2.2204460492503131e-16"
    return "((float)(w0 >> 9) + 0.5f) * 1.1920928955078125e-07f"


def _one(name: str, storage: str, numbers: tuple[str, ...], text: str, head: str = "", compute: str = "") -> Draw:
    """One value for each element, of a floating type; the text says what `x` is. A T in it is the compute type."""
    compute = compute or BY_NAME[storage].compute
    typed = tuple(Number(n, compute) for n in numbers)
    words = 2 if compute == "f64" else 1
    return Draw(
        name, words, 1, typed, (), expression(head, compute), expression(text, compute), ((storage, compute, ("x",)),)
    )


@functools.cache
def uniform(storage: str) -> Draw:
    """In [low, high). Rounding may reach `high`: such a number becomes `low`."""
    compute, digits = BY_NAME[storage].compute, _DIGITS[storage]
    head, rounded = "T tg_high = high;", ""
    if digits < 24:
        head = f"T tg_high = tg_round_bits(high, {24 - digits});"
        rounded = f"x = tg_round_bits(x, {24 - digits});"
    text = f"T u = {_fraction(compute, digits)};\nT x = fma(u, high - low, low);\n{rounded}\nx = x < tg_high ? x : low;"
    return _one("uniform", storage, ("low", "high"), text, head)


@functools.cache
def normal(storage: str, mean: str | None = None, std: str | None = None, pairs: bool = False) -> Draw:
    """mean + std * z.

    Args:
        storage: of the result.
        mean, std: storage types of operands, None for numbers.
        pairs: the elements are real and imaginary parts of complex numbers: the variance is shared out, the mean not.
    """
    compute = BY_NAME[storage].compute
    numbers = tuple(Number(n, compute) for n, given in (("mean", mean), ("std", std)) if given is None)
    inputs = tuple(Input(n, given, compute) for n, given in (("mean", mean), ("std", std)) if given is not None)
    if compute == "f64":
        words, draw = 4, "tg_normal_pair_f64(((ulong)w0 << 32) | w1, ((ulong)w2 << 32) | w3, &x, &y);"
    else:
        words, draw = 2, "tg_normal_pair_f32(w0, w1, &x, &y);"
    means = ["mean0", "mean1"] if mean else ["mean", "mean"]
    stds = ["std0", "std1"] if std else ["std", "std"]
    if pairs:
        stds = [f"{s} * (T)0.70710678118654752440" for s in stds]
    text = f"T x, y;\n{draw}\nx = fma({stds[0]}, x, (T){means[0]});\ny = fma({stds[1]}, y, (T){means[1]});"
    return Draw("normal", words, 2, numbers, inputs, "", expression(text, compute), ((storage, compute, ("x", "y")),))


@functools.cache
def log_normal(storage: str) -> Draw:
    plain = normal(storage)
    compute = BY_NAME[storage].compute
    text = expression("x = @exp(x);\ny = @exp(y);", compute)
    return Draw("log_normal", plain.words, 2, plain.numbers, (), "", f"{plain.text}\n{text}", plain.results)


@functools.cache
def exponential(storage: str) -> Draw:
    compute = BY_NAME[storage].compute
    log = "tg_log_positive_f64" if compute == "f64" else "tg_log_f32"
    return _one(
        "exponential",
        storage,
        ("lambd",),
        f"T u = {_open_fraction(compute)};\nT x = -{log}(u) * rate;",
        "T rate = 1 / lambd;",
    )


@functools.cache
def cauchy(storage: str) -> Draw:
    compute = BY_NAME[storage].compute
    text = f"T u = {_open_fraction(compute)};\nT x = median + sigma * @tan((T)3.14159265358979323846 * (u - (T)0.5));"
    return _one("cauchy", storage, ("median", "sigma"), text)


@functools.cache
def geometric(storage: str) -> Draw:
    """Of integers too, computed in float32."""
    compute = "f64" if storage == "f64" else "f32"
    log = "tg_log_positive_f64" if compute == "f64" else "tg_log_f32"
    head = "T tg_scale = 1 / log1p(-p);"
    text = f"T u = {_open_fraction(compute)};\nT x = @ceil({log}(u) * tg_scale);\nx = x < 1 ? (T)1 : x;"
    return _one("geometric", storage, ("p",), text, head, compute)


_CHANCE = """\
uint tg_limit = {p} >= 1 ? 0xffffffffu : (uint)({p} * 4294967296.0f);
uchar tg_always = {p} >= 1;"""


@functools.cache
def bernoulli(storage: str) -> Draw:
    return Draw(
        "bernoulli",
        1,
        1,
        (Number("p", "f32"),),
        (),
        _CHANCE.format(p="p"),
        "uchar x = w0 < tg_limit || tg_always;",
        ((storage, "u8", ("x",)),),
    )


@functools.cache
def bernoulli_of(storage: str, chance: str) -> Draw:
    """The chance of each element is an operand."""
    text = f"float u = {_fraction('f32', 24)};\nuchar x = u < p0;\ntg_bad |= !(p0 >= 0 && p0 <= 1);"
    tail = "if (tg_bad) tg_report(tg_errors, tg_code, 0);"
    inputs = (Input("p", chance, "f32"),)
    return Draw("bernoulli_of", 1, 1, (), inputs, "int tg_bad = 0;", text, ((storage, "u8", ("x",)),), True, tail)


@functools.cache
def dropout(storage: str) -> Draw:
    """Results: the input, scaled or zero, and the mask. What is zero is multiplied by zero: a NaN stays one."""
    compute = BY_NAME[storage].compute
    ctype = value_ctype(compute)
    head = f"float tg_keep = 1 - p;\n{_CHANCE.format(p='tg_keep')}\n{ctype} tg_scale = p < 1 ? 1 / (1 - p) : 0;"
    text = "uchar kept = w0 < tg_limit || tg_always;"
    value = f"input0 * (kept ? tg_scale : ({ctype})0)"
    return Draw(
        "dropout",
        1,
        1,
        (Number("p", compute),),
        (Input("input", storage, compute),),
        head,
        text,
        ((storage, compute, (value,)), ("b8", "u8", ("kept",))),
    )


@functools.cache
def integers(storage: str, words: int, whole: bool) -> Draw:
    """base + a number in [0, span).

    Args:
        storage: of the result.
        words: 1 if span is at most 2^32.
        whole: span is 2^64.
    """
    numbers = (Number("base", "i64"), Number("span", "u64"))
    if words == 1:
        text = "long x = base + (long)(((ulong)w0 * span) >> 32);"
    elif whole:
        text = "long x = (long)((ulong)base + (((ulong)w1 << 32) | w0));"
    else:
        text = "long x = (long)((ulong)base + MUL_HIGH_ulong(((ulong)w1 << 32) | w0, span));"
    return Draw("random", words, 1, numbers, (), "", text, ((storage, "i64", ("x",)),))


# ---- kernels of their own shape ----


@functools.cache
def permutation(storage: str) -> Kernel:
    """Fisher and Yates's shuffle, by one work-item; takes two words for each element."""
    moved = BY_NAME[MOVES[BY_NAME[storage].size]].storage
    body = f"""\
  uint words[{WORDS}];
  GLOBAL {moved}* bits = (GLOBAL {moved}*)out;
  for (long i = 0; i < n; ++i) store_{storage}(out, i, {convert("i", "i64", storage)});
  for (long i = 0; i < n; ++i) {{
    int k = 2 * (int)(i % {WORDS // 2});
    if (k == 0) tg_philox_block(words, seed, offset + (ulong)(i / 2));
    long j = i + (long)MUL_HIGH_ulong(((ulong)words[k + 1] << 32) | words[k], (ulong)(n - i));
    {moved} kept = bits[i];
    bits[i] = bits[j];
    bits[j] = kept;
  }}"""
    return Kernel("randperm", parameters(f"{storage}* out; i64 n; u64 seed, offset"), body)


def _multinomial(storage: str, room: str, form: str, statements: str) -> Kernel:
    """A work-item takes row ``i``: `out` [rows, samples], `weights` and `room` [rows, size], and where errors are
    reported, with a code for what is no weight and one for too few of them."""
    walk = Walk(form, group=FEW)
    params = f"""i64* out; const {storage}* weights; {room}* room; i32* errors; i32 not_weights, too_few;
        i64 size, samples; u64 seed, offset"""
    return walk.kernel("multinomial", parameters(params), walk.each(statements, vectorize=False))


@functools.cache
def multinomial_with_replacement(storage: str, total: str, form: str) -> Kernel:
    """Running sums of each row, of type `total`, then a binary search for each sample; takes one counter for each
    sample."""
    ctype = value_ctype(total)
    value = convert(f"load_{storage}(weights, i * size + e)", storage, total)
    fraction = (
        "((ulong)LANE(drawn, 0) << 21 | LANE(drawn, 1) >> 11) * 1.1102230246251565e-16"
        if total == "f64"
        else "(LANE(drawn, 0) >> 8) * 5.9604644775390625e-8f"
    )
    statements = f"""\
  GLOBAL {ctype}* sums = room + i * size;
  long last = 0;
  int bad = 0;
  {ctype} sum = 0;
  for (long e = 0; e < size; ++e) {{
    {ctype} weight = {value};
    if (weight > 0) last = e;
    bad |= weight >= 0 && weight < INFINITY ? 0 : 1;
    sum += weight;
    sums[e] = sum;
  }}
  if (bad) tg_report(errors, not_weights, i);
  else if (!(sum > 0)) tg_report(errors, too_few, i);
  for (long s = 0; s < samples; ++s) {{
    uint4 drawn = tg_philox(seed, offset + (ulong)(i * samples + s), 0);
    {ctype} wanted = {fraction} * sum;
    long low = 0, high = last;
    while (low < high) {{
      long middle = (low + high) / 2;
      if (sums[middle] > wanted) high = middle; else low = middle + 1;
    }}
    out[i * samples + s] = low;
  }}"""
    return _multinomial(storage, total, form, statements)


@functools.cache
def multinomial_without_replacement(storage: str, form: str) -> Kernel:
    """Every element runs for an exponential time with its weight as rate; the first ones win. Takes a word for each
    weight, rows beginning new blocks."""
    weight = convert(f"load_{storage}(weights, i * size + first + j)", storage, "f32")
    statements = f"""\
  uint words[{WORDS}];
  int bad = 0, positive = 0;
  GLOBAL float* times = room + i * size;
  const ulong own = offset + (ulong)(i * ((size + {WORDS - 1}) / {WORDS}) * {COUNTERS});
  for (long first = 0; first < size; first += {WORDS}) {{
    tg_philox_block(words, seed, own + (ulong)(first / 4));
    int count = (int)(size - first < {WORDS} ? size - first : {WORDS});
    VECTORIZE
    for (int j = 0; j < count; ++j) {{
      float weight = {weight};
      float time = -tg_log_f32(((float)(words[j] >> 9) + 0.5f) * 1.1920928955078125e-07f) / weight;
      times[first + j] = weight > 0 ? time : INFINITY;
      bad |= weight >= 0 && weight < INFINITY ? 0 : 1;
      positive += weight > 0 ? 1 : 0;
    }}
  }}
  if (bad) tg_report(errors, not_weights, i);
  else if (positive < samples) tg_report(errors, too_few, i);
  for (long s = 0; s < samples; ++s) {{
    long best = 0;
    float least = INFINITY;
    for (long e = 0; e < size; ++e)
      if (times[e] < least) {{
        least = times[e];
        best = e;
      }}
    out[i * samples + s] = best;
    times[best] = INFINITY;
  }}"""
    return _multinomial(storage, "f32", form, statements)
