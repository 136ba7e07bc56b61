"""Sums into places of memory that other work-items add to at the same time.

A language may have words that add to a whole word of memory (`ATOMIC_ADDS`). What it must have replaces a word of 32 or
64 bits if it still is what it was: then a sum is tried until nothing has come between, and of a smaller element the
whole word around it is replaced. The order of sums is left to chance, and with it, in floating point, how they round.

The first read is an exchange of nothing for nothing, since a plain one would race with what others write. A word may
reach beyond the last element, but not beyond its memory, which the allocator gives out in units that are larger.
"""

from __future__ import annotations

from torchgraft.codegen.types import BY_NAME, value_ctype

__all__ = ["ATOMIC_ADDS", "add_into_place", "is_addable"]

_WORDS = {4: "int", 8: "long"}

# What is added up of a word's bits, for types that have their own there: (value of the bits, bits of the sum).
_SUMS = {
    "f32": "AS_int(AS_float(old) + value)",
    "f64": "AS_long(AS_double(old) + value)",
    "i32": "old + value",
    "i64": "old + value",
}

# Of a part of a word: the bits of the sum, of which those that are too many are cut off. Sums of 16-bit floating-point
# numbers are kept in float32.
_PARTS = {"b8": "bits | (uint)value", **dict.fromkeys(("i16", "i8", "u8"), "bits + (uint)value")}


def _add_by_trials(type_: str) -> str:
    """The word of a type, of those that replace words alone."""
    word = _WORDS[BY_NAME[type_].size]
    return f"""\
#define ATOMIC_ADD_{type_}(p, value) \\
  do {{ \\
    GLOBAL {word}* tg_word = (GLOBAL {word}*)(p); \\
    for ({word} old = ATOMIC_CAS_{word}(tg_word, 0, 0), seen;; old = seen) {{ \\
      seen = ATOMIC_CAS_{word}(tg_word, old, {_SUMS[type_]}); \\
      if (seen == old) break; \\
    }} \\
  }} while (0)"""


ATOMIC_ADDS = {f"ATOMIC_ADD_{type_}": _add_by_trials(type_) for type_ in _SUMS}
"""What the words ``ATOMIC_ADD_<type>(place, value)`` are in languages that have none of their own."""


def is_addable(type_: str, long_words: bool) -> bool:
    """Whether there is such a sum of an element type.

    Args:
        type_: element type of the memory.
        long_words: whether words may have 64 bits.
    """
    return type_ in _PARTS or (type_ in _SUMS and (BY_NAME[type_].size < 8 or long_words))


def add_into_place(type_: str) -> str:
    """The function ``tg_add_into_place_<type>(place, value)``, for a type that `is_addable`."""
    size, t = BY_NAME[type_].size, value_ctype(type_)
    head = f"TG_FUNCTION void tg_add_into_place_{type_}(GLOBAL {BY_NAME[type_].storage}* place, {t} value) {{"
    if type_ in _SUMS:
        return f"{head} ATOMIC_ADD_{type_}(place, value); }}"
    mask = f"{(1 << 8 * size) - 1:#x}u"
    return f"""\
{head}
  const int within = (int)((ulong)place & 3);
  GLOBAL int* word = (GLOBAL int*)((GLOBAL uchar*)place - within);
  const int shift = 8 * within;
  int old = ATOMIC_CAS_int(word, 0, 0);
  for (;;) {{
    const uint bits = (uint)old >> shift & {mask}, sum = {_PARTS[type_]};
    const int seen = ATOMIC_CAS_int(word, old, (int)(((uint)old & ~({mask} << shift)) | (sum & {mask}) << shift));
    if (seen == old) return;
    old = seen;
  }}
}}"""
