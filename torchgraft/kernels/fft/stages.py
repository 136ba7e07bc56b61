"""Stages of Stockham's algorithm in mixed radix, for lines in scratch: x to y, both with parts apart."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.kernels.fft.butterflies import butterfly

GPU_RADICES = (8, 4, 2, 3, 5, 7)
CPU_RADICES = (16, 10, 9, 8, 7, 6, 5, 4, 3, 2)
"""Radices that have a text of their own; others are summed up term by term."""


def _stage_text(radix: int, is_first: bool, x: Sequence[str], y: Sequence[str], turn: str) -> str:
    """Reads, multiplies, transforms and writes: the indices of number q's parts, and of its twiddle factor."""
    lines = []
    for q in range(radix):
        real, imag = (part.format(q=q) for part in x)
        if q == 0 or is_first:
            lines.append(f"const V x{q}r = {real}, x{q}i = {imag};")
            continue
        lines.append(
            f"const T w{q}r = twiddles[{turn.format(q=q)}], w{q}i = twiddles[{turn.format(q=q)} + 1];\n"
            f"const V v{q}r = {real}, v{q}i = {imag};\n"
            f"const V x{q}r = v{q}r * w{q}r - v{q}i * w{q}i, x{q}i = v{q}r * w{q}i + v{q}i * w{q}r;"
        )
    lines.append(butterfly(radix))
    for q in range(radix):
        real, imag = (part.format(q=q) for part in y)
        lines.append(f"{real} = y{q}r; {imag} = y{q}i;")
    return "\n".join(lines)


_GPU_PARAMETERS = (
    "const SPACE V* xr, const SPACE V* xi, SPACE V* yr, SPACE V* yi, const GLOBAL T* twiddles, "
    "int n, int finer, int done"
)
_GPU_LOOP = """const int apart = n / {radix}, step = finer * (apart / done);
  for (int from = LOCAL_ID(0); from < apart; from += LOCAL_SIZE(0)) {{
    const int k = from % done, to = (from - k) * {radix} + k;"""


def _gpu_stage(radix: int, is_first: bool) -> str:
    """`done` is the product of the radices before, and k / done the power of w."""
    x = ("xr[from + {q} * apart]", "xi[from + {q} * apart]")
    y = ("yr[to + {q} * done]", "yi[to + {q} * done]")
    text = _stage_text(radix, is_first, x, y, "2 * ({q} * k * step)")
    return f"""static inline void {"first" if is_first else "stage"}_{radix}({_GPU_PARAMETERS}) {{
  {_GPU_LOOP.format(radix=radix)}
{text}
  }}
}}
"""


_CPU_PARAMETERS = (
    "const SPACE V* a, SPACE V* b, const GLOBAL T* twiddles, long n, long finer, long done, const GLOBAL T* fetch"
)


def _cpu_stage(radix: int, is_first: bool) -> str:
    """Real and imaginary parts take turns in memory, and so each number has two lines of cache. Meanwhile as many are
    fetched as the numbers have, from `fetch` on, if that is given: to be read after the first stage, to be written
    after others.
    """
    x = ("x[{q} * read_apart]", "x[{q} * read_apart + 1]")
    y = ("y[{q} * write_apart]", "y[{q} * write_apart + 1]")
    text = _stage_text(radix, is_first, x, y, "{q} * turn")
    word = "PREFETCH" if is_first else "PREFETCH_TO_WRITE"
    fetch = f"""if (fetch)
        for (int q = 0; q < {2 * radix}; ++q, fetch += WIDTH) {word}(fetch);"""
    loops = (
        f"""for (long k = 0; k < apart; ++k) {{
      const SPACE V* const x = a + 2 * k;
      SPACE V* const y = b + {2 * radix} * k;
      {fetch}"""
        if is_first
        else f"""for (long first = 0; first < apart; first += done)
    for (long k = 0; k < done; ++k) {{
      const SPACE V* const x = a + 2 * (first + k);
      SPACE V* const y = b + 2 * ({radix} * first + k);
      const long turn = k * step;
      {fetch}"""
    )
    return f"""WIDE inline void {"first" if is_first else "stage"}_{radix}({_CPU_PARAMETERS}) {{
  const long apart = n / {radix}, step = 2 * finer * (apart / done), read_apart = 2 * apart;
  const long write_apart = {"2" if is_first else "2 * done"};
  {loops}
{text}
    }}
}}
"""


_CPU_LOOP = """const int apart = n / radix, step = finer * (apart / done);
  for (int first = 0; first < apart; first += done)
    for (int k = 0; k < done; ++k) {
      const int from = first + k, to = first * radix + k;
      {"""


def _any_stage(form: str) -> str:
    """Any other radix: the numbers are turned where they are, which nobody else reads, and then summed up R times."""
    close = "}}" if form == "cpu" else "}"
    parameters = _GPU_PARAMETERS.replace("const SPACE", "SPACE")
    return f"""WIDE inline void stage_any({parameters}, int radix) {{
  {_CPU_LOOP if form == "cpu" else _GPU_LOOP.format(radix="radix")}
    for (int q = 1; q < radix; ++q) {{
      const T wr = twiddles[2 * (q * k * step)], wi = twiddles[2 * (q * k * step) + 1];
      const V vr = xr[AT(from + q * apart)], vi = xi[AT(from + q * apart)];
      xr[AT(from + q * apart)] = vr * wr - vi * wi;
      xi[AT(from + q * apart)] = vr * wi + vi * wr;
    }}
    for (int m = 0; m < radix; ++m) {{
      V sr = xr[AT(from)], si = xi[AT(from)];
      for (int q = 1, at = m; q < radix; ++q, at = at + m < radix ? at + m : at + m - radix) {{
        const T wr = twiddles[2 * (at * apart * finer)], wi = twiddles[2 * (at * apart * finer) + 1];
        const V vr = xr[AT(from + q * apart)], vi = xi[AT(from + q * apart)];
        sr += vr * wr - vi * wi;
        si += vr * wi + vi * wr;
      }}
      yr[AT(to + m * done)] = sr;
      yi[AT(to + m * done)] = si;
    }}
  {close}
}}
"""


def stages(form: str) -> str:
    """Their functions, by radix."""
    stage, radices = (_gpu_stage, GPU_RADICES) if form == "gpu" else (_cpu_stage, CPU_RADICES)
    return "".join(stage(radix, is_first) for radix in radices for is_first in (True, False)) + _any_stage(form)


# Number `number` of the radices, which are bytes; `low` has the first eight of them.
_RADIX = "(int)((number < 8 ? low >> (8 * number) : high >> (8 * (number - 8))) & 255)"


def gpu_run() -> str:
    """Runs through the radices, the lowest byte first."""
    calls = [(r, f"stage_{r}") for r in GPU_RADICES] + [(-r, f"first_{r}") for r in GPU_RADICES]
    cases = "\n    ".join(f"case {r}: {stage}(ar, ai, br, bi, twiddles, n, finer, done); break;" for r, stage in calls)
    return f"""
for (int done = 1, number = 0; done < n; ++number) {{
  const int radix = {_RADIX};
  BARRIER;
  switch (done == 1 ? -radix : radix) {{
    {cases}
    default: stage_any(ar, ai, br, bi, twiddles, n, finer, done, radix);
  }}
  done *= radix;
  SPACE V* swap = ar; ar = br; br = swap;
  swap = ai; ai = bi; bi = swap;
}}
BARRIER;
"""


SWAP = "{ SPACE V* swap = a; a = b; b = swap; }"


def cpu_run() -> str:
    """A function that does the same. Returns whether what the last has written lies in b.

    The first stage fetches the memory from `ahead` on, which is read next, and the last the one from `fetch` on, where
    its results go.
    """
    calls = [(r, f"stage_{r}", "fetched") for r in CPU_RADICES] + [(-r, f"first_{r}", "ahead") for r in CPU_RADICES]
    cases = "\n    ".join(f"case {r}: {stage}(a, b, twiddles, n, finer, done, {at}); break;" for r, stage, at in calls)
    return f"""WIDE inline int stages(SPACE V* a, SPACE V* b, const GLOBAL T* twiddles, int n,
    int finer, ulong low, ulong high, const GLOBAL T* ahead, const GLOBAL T* fetch) {{
  int number = 0;
  for (int done = 1; done < n; ++number) {{
    const int radix = {_RADIX};
    const GLOBAL T* const fetched = done * radix == n ? fetch : 0;
    switch (done == 1 ? -radix : radix) {{
      {cases}
      default: stage_any(a, a + 1, b, b + 1, twiddles, n, finer, done, radix);
    }}
    done *= radix;
    {SWAP}
  }}
  return number & 1;
}}
"""
