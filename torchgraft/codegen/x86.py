"""Words for instructions of x86-64 processors that no kernel language has a function for.

They are written in the assembly that g++ and clang take within C, so that a compiler which does not know the processor
makes them all the same: whether a device has them is its driver's to say (TG_CAP_BFLOAT16_TILES in driver.h), and
kernels use them only where it does.

Source: the architecture's Software Developer's Manual, volume 1, on AMX.
"""

from __future__ import annotations

# Of the eight tiles each has 16 rows of 64 bytes. LDTILECFG reads the palette from byte 0, the bytes of the tiles' rows
# from byte 16 (two each) and their rows from byte 48 (one each).
_TILES_BEGIN = """\
#define TILES_BEGIN \\
  do { \\
    uint tg_tiles[16] = {1, 0, 0, 0, \\
      0x400040, 0x400040, 0x400040, 0x400040, 0, 0, 0, 0, 0x10101010, 0x10101010, 0, 0}; \\
    __asm__ volatile("ldtilecfg (%0)" : : "r"(tg_tiles) : "memory"); \\
  } while (0)"""


def bfloat16_words() -> dict[str, str]:
    """The words for tiles of bfloat16, which docs/kernel-language.md describes: name -> text."""
    words = {
        "uint16h": "typedef uint16 uint16h __attribute__((aligned(2), may_alias));",
        "TO_PAIRS": "#define TO_PAIRS(low, high) (CONVERT_uint16(low) | CONVERT_uint16(high) << 16)",
        "TILES_BEGIN": _TILES_BEGIN,
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
