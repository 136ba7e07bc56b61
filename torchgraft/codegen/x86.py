"""Words for instructions of x86-64 processors that no kernel language has a function for.

They are written in the assembly that g++ and clang take within C, so that a compiler which does not know the processor
makes them all the same: whether a device has them is its driver's to say (TG_CAP_BFLOAT16_TILES and
TG_CAP_BFLOAT16_VECTORS in driver.h), and kernels use them only where it does.

Source: the architecture's Software Developer's Manual, volume 1, on AMX, and volume 2, on VDPBF16PS.
"""

from __future__ import annotations

from typing import Literal

Way = Literal["tiles", "vectors"]
"""By which instructions pairs of bfloat16 are multiplied."""

# Of the eight tiles each has 16 rows of 64 bytes. LDTILECFG reads the palette from byte 0, the bytes of the tiles' rows
# from byte 16 (two each) and their rows from byte 48 (one each).
_TILES_BEGIN = """\
#define TILES_BEGIN \\
  do { \\
    uint tg_tiles[16] = {1, 0, 0, 0, \\
      0x400040, 0x400040, 0x400040, 0x400040, 0, 0, 0, 0, 0x10101010, 0x10101010, 0, 0}; \\
    __asm__ volatile("ldtilecfg (%0)" : : "r"(tg_tiles) : "memory"); \\
  } while (0)"""


VECTOR_ROWS = (4, 8, 12)
"""Rows of the blocks that there are words for: a row has two registers of sums, and 12 keep the processor busiest."""
# The registers for two vectors of B, and for a pair of A in all lanes.
_LOW, _HIGH, _EACH = 24, 25, 26

_REGISTERS = 32


def _save(instruction: str, operands: str) -> str:
    """All registers, to or from the stack's top."""
    places = (f"{64 * r or ''}(%%rsp)" for r in range(_REGISTERS))
    return "".join(instruction + operands.format(place=place, r=r) + "\\n" for r, place in enumerate(places))


def _vector_registers() -> str:
    """What assembly on the vectors' registers begins and ends with, and its list of them.

    A compiler that does not know the upper sixteen does not use them, and takes no word of them. One that makes SPIR
    first, a machine without registers, takes no word of any: so they are saved where no other variable lies, behind
    the 128 bytes below the stack's top that a function may use (System V ABI, AMD64 supplement, 3.2.2). Moving the
    stack's top is safe since all operands are in registers ("r"): none is addressed by it. `torchgraft doctor` tries
    it.
    """
    # All of them are listed, since `vzeroupper` makes their upper halves zero.
    lower, upper = ("".join(f', "xmm{r}"' for r in range(*part)) for part in ((0, 16), (16, 32)))
    size = 128 + 64 * _REGISTERS
    return f"""\
#ifdef __SPIR__
#define VECTORS_BEGIN "sub ${size}, %%rsp\\n{_save("vmovups ", "%%zmm{r}, {place}")}"
#define VECTORS_END "{_save("vmovups ", "{place}, %%zmm{r}")}add ${size}, %%rsp\\n"
#define VECTOR_REGISTERS
#else
#define VECTORS_BEGIN
#define VECTORS_END "vzeroupper\\n"
#ifdef __AVX512F__
#define VECTOR_REGISTERS{lower}{upper}
#else
#define VECTOR_REGISTERS{lower}
#endif
#endif"""


def _assembly(word: str, declarations: list[str], code: list[str], outputs: str, inputs: str) -> str:
    """A word of instructions on the vectors' registers, which are as after a function's end behind it."""
    lines = [
        f"#define {word}",
        "  do {",
        *(f"    {declaration}" for declaration in declarations),
        "    __asm__ volatile(VECTORS_BEGIN",
        *(f'      "{line}\\n"' for line in code),
        f"      VECTORS_END : {outputs}",
        f"      : {inputs}",
        '      : "memory", "cc" VECTOR_REGISTERS);',
        "  } while (0)",
    ]
    return " \\\n".join(lines)


def _vector_multiply(rows: int) -> str:
    """The word for a block of so many rows. Three rows share a base, since an address has one register and twice
    another; sums are walked to at the beginning, and back at the end.
    """
    bases = range(0, rows, 3)
    code = ["testl %[z], %[z]", "jnz 1f"]
    for i in range(rows):
        code += [f"vmovups (%[s]), %%zmm{2 * i}", f"vmovups 64(%[s]), %%zmm{2 * i + 1}", "add %[sp], %[s]"]
    code += ["jmp 2f", "1:"]
    code += [f"vpxord %%zmm{r}, %%zmm{r}, %%zmm{r}" for r in range(2 * rows)] + ["add %[sp], %[s]"] * rows
    code += ["2:", f"vmovups (%[at]), %%zmm{_LOW}", f"vmovups (%[at],%[np]), %%zmm{_HIGH}"]
    for i in range(rows):
        place = f"(%[a{i // 3 * 3}]{('', ',%[ap]', ',%[ap],2')[i % 3]})"
        code += [f"vpbroadcastd {place}, %%zmm{_EACH}"]
        code += [f"vdpbf16ps %%zmm{b}, %%zmm{_EACH}, %%zmm{2 * i + j}" for j, b in enumerate((_LOW, _HIGH))]
    code += [f"add $4, %[a{i}]" for i in bases] + ["add %[bp], %[at]", "dec %[k]", "jnz 2b"]
    for i in reversed(range(rows)):
        code += ["sub %[sp], %[s]", f"vmovups %%zmm{2 * i}, (%[s])", f"vmovups %%zmm{2 * i + 1}, 64(%[s])"]
    # An input of an equal number must not share a register with what is moved on.
    moved = ", ".join(f'[a{i}] "+&r"(tg_a{i})' for i in bases)
    return _assembly(
        f"VECTORS_MULTIPLY_{rows}(sums, sums_pitch, a, a_pitch, b, next, b_pitch, steps, zero)",
        [
            "const long tg_sp = (sums_pitch), tg_ap = (a_pitch), tg_np = (next), tg_bp = (b_pitch);",
            "const uint tg_zero = (zero);",
            "uchar* tg_s = (uchar*)(sums);",
            "const uchar* tg_b = (const uchar*)(b);",
            *(f"const uchar* tg_a{i} = (const uchar*)(a) + {i} * tg_ap;" for i in bases),
            "long tg_k = (steps);",
        ],
        code,
        f'{moved}, [at] "+&r"(tg_b), [s] "+&r"(tg_s), [k] "+&r"(tg_k)',
        '[ap] "r"(tg_ap), [bp] "r"(tg_bp), [np] "r"(tg_np), [sp] "r"(tg_sp), [z] "r"(tg_zero)',
    )


LINES = {pixels: 2 if pixels >= 7 else 4 for pixels in range(4, 15)}
"""Pixels of a line whose sums registers hold -> vectors of 16 channels that each has: at least 14 sums, so that the
processor need not wait for one, and at most 28."""


def _line_multiply(pixels: int) -> str:
    """The word for a line of so many pixels. They lie beside each other, so that one register finds them all."""
    vectors = LINES[pixels]
    sums = pixels * vectors
    places = [f"{64 * i or ''}(%[s])" for i in range(sums)]
    code = [f"vpxord %%zmm{r}, %%zmm{r}, %%zmm{r}" for r in range(sums)] + ["1:", "movslq (%[o]), %[at]"]
    code += [f"vmovups {64 * v or ''}(%[f]), %%zmm{sums + v}" for v in range(vectors)]
    for i in range(pixels):
        code += [f"vpbroadcastd {4 * i or ''}(%[l],%[at],4), %%zmm{sums + vectors}"]
        code += [f"vdpbf16ps %%zmm{sums + v}, %%zmm{sums + vectors}, %%zmm{i * vectors + v}" for v in range(vectors)]
    code += ["add $4, %[o]", f"add ${64 * vectors}, %[f]", "dec %[k]", "jnz 1b", "testl %[z], %[z]", "jnz 2f"]
    code += [f"vaddps {place}, %%zmm{r}, %%zmm{r}" for r, place in enumerate(places)] + ["2:"]
    code += [f"vmovups %%zmm{r}, {place}" for r, place in enumerate(places)]
    return _assembly(
        f"VECTORS_LINE_{pixels}(sums, line, offsets, b, steps, zero)",
        [
            "const uint tg_zero = (zero);",
            "float16* tg_s = (sums);",
            "const uint* tg_l = (line);",
            "const int* tg_o = (offsets);",
            "const float16* tg_b = (b);",
            "long tg_k = (steps), tg_at;",
        ],
        code,
        '[o] "+&r"(tg_o), [f] "+&r"(tg_b), [k] "+&r"(tg_k), [at] "=&r"(tg_at)',
        '[s] "r"(tg_s), [l] "r"(tg_l), [z] "r"(tg_zero)',
    )


def bfloat16_words() -> dict[str, str]:
    """The words for tiles and vectors of bfloat16, which docs/kernel-language.md describes: name -> text."""
    words = {
        "uint16h": "typedef uint16 uint16h __attribute__((aligned(2), may_alias));",
        "TO_PAIRS": "#define TO_PAIRS(low, high) (CONVERT_uint16(low) | CONVERT_uint16(high) << 16)",
        "TILES_BEGIN": _TILES_BEGIN,
        "VECTOR_REGISTERS": _vector_registers(),
        **{f"VECTORS_MULTIPLY_{rows}": _vector_multiply(rows) for rows in VECTOR_ROWS},
        **{f"VECTORS_LINE_{pixels}": _line_multiply(pixels) for pixels in LINES},
    }
    for name, instruction in {
        "TILES_END()": '"tilerelease"',
        "TILE_ZERO(t)": '"tilezero %%tmm" #t',
        "TILE_MULTIPLY(c, a, b)": '"tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c',
        "TILE_LOAD(t, p, pitch)": '"tileloadd (%0,%1,1), %%tmm" #t',
        "TILE_STORE(t, p, pitch)": '"tilestored %%tmm" #t ", (%0,%1,1)"',
    }.items():
        operands = '"r"(p), "r"((long)(pitch))' if "pitch" in name else ""
        words[name.partition("(")[0]] = f'#define {name} __asm__ volatile({instruction} : : {operands} : "memory")'
    return words
