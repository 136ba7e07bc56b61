"""Random numbers: kernels that draw from Philox counters.

Counter c of a reservation gives four 32-bit words, and a distribution takes a fixed number of words for a fixed
number of values: the value of an element depends on its index only, not on how a kernel deals the elements out.

On a CPU a group fills a block of words first - many counters side by side in vectors - and then turns it into values,
so that a distribution is written as if for one element. On a GPU each work-item draws one counter.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import Input, Number, convert, expression
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.functions.philox import COUNTERS

WORDS = 4 * COUNTERS
GPU_LOCAL = 256


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


@functools.cache
def draw_kernel(draw: Draw, form: str) -> Kernel:
    """Arguments: results, inputs, numbers, where errors are reported if it does that, then seed and offset of a
    reservation, count and chunk (i64)."""
    params: list[Parameter] = [Pointer(f"out{r}_p", storage) for r, (storage, _, _) in enumerate(draw.results)]
    params += [Pointer(f"{i.name}_p", i.storage, const=True) for i in draw.inputs]
    params += [Value(n.name, n.type) for n in draw.numbers]
    params += [Pointer("tg_errors", "i32"), Value("tg_code", "i32")] if draw.reports else []
    params += [Value("tg_seed", "u64"), Value("tg_offset", "u64"), Value("tg_n", "i64"), Value("tg_chunk", "i64")]
    body = _gpu_body(draw) if form == "gpu" else _cpu_body(draw)
    return Kernel(draw.name, tuple(params), body, local=(GPU_LOCAL,) if form == "gpu" else (1,))


def _cpu_body(draw: Draw) -> str:
    block = COUNTERS * draw.elements
    words = "\n".join(f"uint w{k} = tg_words[{draw.words} * tg_j + {k}];" for k in range(draw.words))
    last = ""
    if draw.values == 2:  # an odd end
        last = f"""
    if ((tg_count & 1) != 0) {{
      int tg_j = tg_count / 2;
{words}
{_unit(draw, "tg_first + 2 * tg_j", 1)}
    }}"""
    return f"""\
  long tg_begin = GROUP_ID(0) * tg_chunk;
  long tg_end = tg_n - tg_begin < tg_chunk ? tg_n : tg_begin + tg_chunk;
  uint tg_words[{WORDS}];
{draw.head}
  for (long tg_first = tg_begin; tg_first < tg_end; tg_first += {block}) {{
    tg_philox_block(tg_words, tg_seed, tg_offset + (ulong)(tg_first / {draw.elements}));
    int tg_count = (int)(tg_end - tg_first < {block} ? tg_end - tg_first : {block});
    VECTORIZE
    for (int tg_j = 0; tg_j < tg_count / {draw.values}; ++tg_j) {{
{words}
{_unit(draw, f"tg_first + {draw.values} * tg_j", draw.values)}
    }}{last}
  }}
{draw.tail}"""


def _gpu_body(draw: Draw) -> str:
    parts = []
    for unit in range(4 // draw.words):
        words = "\n".join(f"uint w{k} = LANE(tg_drawn, {unit * draw.words + k});" for k in range(draw.words))
        base = f"tg_i + {unit * draw.values}"
        part = f"if ({base} + {draw.values - 1} < tg_n) {{\n{words}\n{_unit(draw, base, draw.values)}\n}}"
        if draw.values == 2:
            part += f" else if ({base} < tg_n) {{\n{words}\n{_unit(draw, base, 1)}\n}}"
        parts.append(part)
    return f"""\
  long tg_counter = GLOBAL_ID(0);
  long tg_i = tg_counter * {draw.elements};
  if (tg_i >= tg_n) return;
{draw.head}
  uint4 tg_drawn = tg_philox(tg_seed, tg_offset + (ulong)tg_counter, 0);
""" + "\n".join([*parts, draw.tail])


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
    """In [from, to). Rounding may reach `to`: such a number becomes `from`."""
    compute, digits = BY_NAME[storage].compute, _DIGITS[storage]
    head, rounded = "T tg_to = to;", ""
    if digits < 24:
        head = f"T tg_to = tg_round_bits(to, {24 - digits});"
        rounded = f"x = tg_round_bits(x, {24 - digits});"
    text = f"T u = {_fraction(compute, digits)};\nT x = fma(u, to - from, from);\n{rounded}\nx = x < tg_to ? x : from;"
    return _one("uniform", storage, ("from", "to"), text, head)


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
    """Fisher and Yates's shuffle, by one work-item. Arguments: result, n (i64), seed, offset; takes two words for
    each element.
    """
    value = convert("i", "i64", storage)
    body = f"""\
  uint words[{WORDS}];
  for (long i = 0; i < n; ++i) store_{storage}(out, i, {value});
  for (long i = 0; i < n; ++i) {{
    int k = 2 * (int)(i % {WORDS // 2});
    if (k == 0) tg_philox_block(words, seed, offset + (ulong)(i / 2));
    long j = i + (long)MUL_HIGH_ulong(((ulong)words[k + 1] << 32) | words[k], (ulong)(n - i));
    {BY_NAME[storage].storage} kept = out[i];
    out[i] = out[j];
    out[j] = kept;
  }}"""
    if storage == "f16":  # 16 bits are moved, whatever they mean
        body = body.replace("half kept = out[i]", "ushort kept = ((GLOBAL ushort*)out)[i]")
        body = body.replace("out[i] = out[j];", "((GLOBAL ushort*)out)[i] = ((GLOBAL ushort*)out)[j];")
        body = body.replace("    out[j] = kept", "    ((GLOBAL ushort*)out)[j] = kept")
    params = (Pointer("out", storage), Value("n", "i64"), Value("seed", "u64"), Value("offset", "u64"))
    return Kernel("randperm", params, body)


@functools.cache
def multinomial_with_replacement(storage: str, total: str) -> Kernel:
    """A work-item takes a row: running sums, then a binary search for each sample.

    Arguments: result [rows, samples], weights [rows, n], room for the sums [rows, n] of type `total`, error words, a
        code for what is no weight and one for too few of them, n, samples, seed, offset; takes one counter for each
        sample.
    """
    ctype = value_ctype(total)
    value = convert("load_S(weights, row * n + i)".replace("_S", f"_{storage}"), storage, total)
    fraction = (
        "((ulong)LANE(drawn, 0) << 21 | LANE(drawn, 1) >> 11) * 1.1102230246251565e-16"
        if total == "f64"
        else "(LANE(drawn, 0) >> 8) * 5.9604644775390625e-8f"
    )
    body = f"""\
  long row = GLOBAL_ID(0), last = 0;
  int bad = 0;
  {ctype} sum = 0;
  for (long i = 0; i < n; ++i) {{
    {ctype} weight = {value};
    if (weight > 0) last = i;
    bad |= weight >= 0 && weight < INFINITY ? 0 : 1;
    sum += weight;
    sums[row * n + i] = sum;
  }}
  if (bad) tg_report(errors, not_weights, row);
  else if (!(sum > 0)) tg_report(errors, too_few, row);
  for (long s = 0; s < samples; ++s) {{
    uint4 drawn = tg_philox(seed, offset + (ulong)(row * samples + s), 0);
    {ctype} wanted = {fraction} * sum;
    long low = 0, high = last;
    while (low < high) {{
      long middle = (low + high) / 2;
      if (sums[row * n + middle] > wanted) high = middle; else low = middle + 1;
    }}
    out[row * samples + s] = low;
  }}"""
    return Kernel("multinomial", _multinomial_params(storage, total, "sums"), body)


@functools.cache
def multinomial_without_replacement(storage: str) -> Kernel:
    """A work-item takes a row. Every element runs for an exponential time with its weight as rate; the first ones win.

    Arguments as `multinomial_with_replacement`, the room being for times in float32; takes a word for each weight,
    rows beginning new blocks.
    """
    weight = convert(f"load_{storage}(weights, row * n + i + j)", storage, "f32")
    body = f"""\
  long row = GLOBAL_ID(0);
  uint words[{WORDS}];
  int bad = 0, positive = 0;
  GLOBAL float* times = room + row * n;
  ulong first = offset + (ulong)(row * ((n + {WORDS - 1}) / {WORDS}) * {COUNTERS});
  for (long i = 0; i < n; i += {WORDS}) {{
    tg_philox_block(words, seed, first + (ulong)(i / 4));
    int count = (int)(n - i < {WORDS} ? n - i : {WORDS});
    VECTORIZE
    for (int j = 0; j < count; ++j) {{
      float weight = {weight};
      float time = -tg_log_f32(((float)(words[j] >> 9) + 0.5f) * 1.1920928955078125e-07f) / weight;
      times[i + j] = weight > 0 ? time : INFINITY;
      bad |= weight >= 0 && weight < INFINITY ? 0 : 1;
      positive += weight > 0 ? 1 : 0;
    }}
  }}
  if (bad) tg_report(errors, not_weights, row);
  else if (positive < samples) tg_report(errors, too_few, row);
  for (long s = 0; s < samples; ++s) {{
    long best = 0;
    float least = INFINITY;
    for (long i = 0; i < n; ++i)
      if (times[i] < least) {{
        least = times[i];
        best = i;
      }}
    out[row * samples + s] = best;
    times[best] = INFINITY;
  }}"""
    return Kernel("multinomial", _multinomial_params(storage, "f32", "room"), body)


def _multinomial_params(storage: str, room: str, name: str) -> tuple[Parameter, ...]:
    return (
        Pointer("out", "i64"),
        Pointer("weights", storage, const=True),
        Pointer(name, room),
        Pointer("errors", "i32"),
        Value("not_weights", "i32"),
        Value("too_few", "i32"),
        Value("n", "i64"),
        Value("samples", "i64"),
        Value("seed", "u64"),
        Value("offset", "u64"),
    )
