"""How a kernel reports an error that it finds."""

from __future__ import annotations

# The first reporter wins; the host reads the words once the work is done.
HELPERS: dict[str, str] = {
    "tg_report": """\
inline void tg_report(GLOBAL int* words, int code, long index) {
  if (ATOMIC_CAS_int(words, 0, code) == 0) {
    words[1] = (int)index;
    words[2] = (int)(index >> 32);
  }
}"""
}
