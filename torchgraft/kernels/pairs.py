"""Products of blocks of bfloat16 by a processor's own instructions, as pieces of kernels' texts.

What the instructions take are pairs: two elements that follow each other along k, one after the other in 32 bits. A
block of A is `[row][k / 2]` of pairs, one of B `[k / 2][32 columns]`; the sums are 32 rows of two vectors of float32.
Tiles keep a block's sums from its beginning to its end; vectors keep those of 12 rows, and only while they add.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchgraft.codegen.x86 import VECTOR_ROWS, Way

LANES = 16
"""Pairs of a vector, rows of a tile."""
STEP = 2 * LANES
"""Elements along k that a tile has: copies have whole multiples of it, and what is not there is zero."""
ROWS = 2 * LANES
"""Rows of a block."""


def tiles_begin(way: Way) -> str:
    """What a kernel's products come after; at the head level of its body."""
    return "TILES_BEGIN;" if way == "tiles" else ""


def tiles_end(way: Way) -> str:
    """What comes after a kernel's products."""
    return "TILES_END();" if way == "tiles" else ""


@dataclass(frozen=True)
class Block:
    """Sums of products: `begin`, any number of `add`, `end`.

    Attributes:
        way: by which instructions.
        sums: where they are in private memory, as whole vectors of float32: two in each row.
        sums_pitch: bytes from a row of them to the next.
        rows: how many there are, at most 32: a number, or a text for one. Those up to the next multiple of 16 are
            computed, too.
        zero: a text, whether the sums are zero at the beginning and not what is there; the same for all of a block.
    """

    way: Way
    sums: str
    sums_pitch: str
    rows: int | str
    zero: str

    def begin(self, some: str = "1") -> str:
        """Before the first products; `some` is a text, whether there will be any."""
        if self.way == "vectors":
            return "" if some == "1" else self._zeros(f"!({some}) && ({self.zero})")
        load = self._of_tiles("TILE_LOAD({t}, {place}, {pitch});")
        if self.zero == "0":
            return load
        zero = " ".join(f"TILE_ZERO({t});" for t in range(4))
        return zero if self.zero == "1" else f"if ({self.zero}) {{ {zero} }} else {{ {load} }}"

    def add(self, a: str, a_pitch: str, b: str, beside: str, b_pitch: str, steps: str, first: str = "1") -> str:
        """Adds products.

        Args:
            a: where the rows of A begin, and the bytes from a row to the next.
            b: where the columns of B begin, the bytes to the second half of them, and from a row to the next.
            steps: elements along k; those up to a multiple of 32 are there, too, and zero.
            first: a text, whether these are the first since `begin`.
        """
        arguments = (a, a_pitch, b, beside, b_pitch, steps)
        return self._add_tiles(*arguments) if self.way == "tiles" else self._add_vectors(*arguments, first)

    def end(self) -> str:
        """After the last products."""
        return self._of_tiles("TILE_STORE({t}, {place}, {pitch});") if self.way == "tiles" else ""

    def _zeros(self, when: str) -> str:
        """What vectors leave undone without products."""
        place = f"((float16*)((uchar*)({self.sums}) + i * ({self.sums_pitch})))"
        return f"""
if ({when}) {{
  PLAIN for (int i = 0; i < min({ROWS}, {self.rows}); ++i) {place}[0] = {place}[1] = SPLAT_float16(0);
}}"""

    def _of_tiles(self, text: str) -> str:
        """The text for each tile of sums."""
        places = [
            f"(uchar*)({self.sums}) + {LANES * i} * ({self.sums_pitch}) + {64 * j}" for i in (0, 1) for j in (0, 1)
        ]
        low, high = (
            " ".join(text.format(t=t, place=places[t], pitch=self.sums_pitch) for t in tiles)
            for tiles in ((0, 1), (2, 3))
        )
        return f"{low} {self._if_both(high)}"

    def _if_both(self, text: str) -> str:
        """The text for the rows from the 16th on."""
        if isinstance(self.rows, int):
            return text if self.rows > LANES else ""
        return f"if ({self.rows} > {LANES}) {{ {text} }}"

    def _add_tiles(self, a: str, a_pitch: str, b: str, beside: str, b_pitch: str, steps: str) -> str:
        """Of the tiles 0 to 3 are sums, 4 and 5 A's, 6 and 7 B's."""
        both = self._if_both(
            f"TILE_LOAD(5, a + {LANES} * ({a_pitch}), {a_pitch}); TILE_MULTIPLY(2, 5, 6); TILE_MULTIPLY(3, 5, 7);"
        )
        return f"""
{{
  const uchar *a = (const uchar*)({a}), *b = (const uchar*)({b});
  PLAIN for (int k = 0; k < ({steps}); k += {STEP}, a += {2 * STEP}, b += {STEP // 2} * ({b_pitch})) {{
    TILE_LOAD(4, a, {a_pitch}); TILE_LOAD(6, b, {b_pitch});
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(7, b + ({beside}), {b_pitch}); TILE_MULTIPLY(1, 4, 7);
    {both}
  }}
}}"""

    def _add_vectors(self, a: str, a_pitch: str, b: str, beside: str, b_pitch: str, steps: str, first: str) -> str:
        """Blocks of as many rows as there is a word for, the largest first."""
        zero = self.zero if first == "1" or self.zero == "0" else f"({self.zero}) && ({first})"

        def block(rows: int, done: int | str) -> str:
            arguments = (
                f"(uchar*)({self.sums}) + {done} * ({self.sums_pitch})",
                self.sums_pitch,
                f"(const uchar*)({a}) + {done} * ({a_pitch})",
                a_pitch,
                *(b, beside, b_pitch),
                f"(({steps}) + 1) / 2",
                zero,
            )
            return f"VECTORS_MULTIPLY_{rows}({', '.join(arguments)});"

        if isinstance(self.rows, int):
            sizes = (8, 8) if self.rows <= LANES else (12, 12, 8)
            return "\n".join(block(rows, sum(sizes[:i])) for i, rows in enumerate(sizes))
        *fewer, most = VECTOR_ROWS
        tests = " ".join(f"if (left <= {rows}) {block(rows, 'done')} else" for rows in fewer)
        return f"""
PLAIN for (int done = 0; done < min({ROWS}, {self.rows}); done += {most}) {{
  const int left = min({ROWS}, {self.rows}) - done;
  {tests} {block(most, "done")}
}}"""
