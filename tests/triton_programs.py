"""Random programs of blocks in Triton's language, beside Triton's own interpreter."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

SIZES = (1, 2, 4, 8, 16, 32)
STRIDE, ROWS = 96, 96  # of the matrices in memory
OUT = 1 << 15  # elements of results


class Program:
    """One kernel, `kernel(x, y, i, out, spare, n, m, f)`: x, y of float32, i of int32, out of what it makes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.names = 0
        self.kinds: dict[str, tuple[str, str]] = {}  # shape ("MN", "M", "N", "") and type ("f", "i")
        self.slots = 0
        self.m, self.n = (self.random.choice(SIZES) for _ in range(2))
        self.head()
        for _ in range(self.random.randint(3, 9)):
            self.statement(1)
        self.end()

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def new(self, shape: str, kind: str) -> str:
        self.names += 1
        name = f"v{self.names}"
        self.kinds[name] = shape, kind
        return name

    def let(self, depth: int, shape: str, kind: str, text: str) -> str:
        name = self.new(shape, kind)
        self.put(depth, f"{name} = {text}")
        return name

    def pick(self, shape: str, kind: str) -> str:
        known = [name for name, each in self.kinds.items() if each == (shape, kind)]
        if known:
            return self.random.choice(known)
        value = {"f": "0.5", "i": "3"}[kind]
        size = {"MN": "[M, N]", "M": "[M]", "N": "[N]", "": ""}[shape]
        return f"tl.full({size}, {value}, tl.{'float32' if kind == 'f' else 'int32'})" if shape else f"({value})"

    def head(self) -> None:
        self.put(1, "pid = tl.program_id(0)")
        self.put(1, "rows = tl.arange(0, M)")
        self.put(1, "cols = tl.arange(0, N)")
        self.put(1, "out += pid * OUT")
        self.kinds |= {"rows": ("M", "i"), "cols": ("N", "i"), "pid": ("", "i"), "n": ("", "i"), "f": ("", "f")}
        self.load(1)
        self.load(1)

    def statement(self, depth: int) -> None:
        kinds = [self.load, self.arithmetic, self.arithmetic, self.broadcast, self.reduce, self.where, self.view,
                 self.convert, self.scan, self.memory, self.integers, self.product]  # fmt: skip
        if depth < 3:
            kinds += [self.loop, self.loop, self.branch]
        self.random.choice(kinds)(depth)

    def mask(self, shape: str) -> str:
        row = self.random.choice(["rows < m", "rows + pid < n", "rows >= 1", "rows * 2 < n", "(rows & 1) == 0"])
        col = self.random.choice(["cols < n", "cols + pid * 3 < m", "cols > 0", "cols <= n - 2", "cols % 3 != 1"])
        if shape == "M":
            return row
        if shape == "N":
            return col
        return self.random.choice([f"({row})[:, None] & ({col})[None, :]", f"({col})[None, :]", f"({row})[:, None]"])

    def offset(self, shape: str) -> str:
        shift = self.random.choice(["0", "pid", "n", "3"])
        row = self.random.choice(["rows", "(rows + pid) % 7", "rows", "(rows * 3) % n"])
        col = self.random.choice(["cols", "(cols + n) % 61", "cols", "cols * 2"])
        row, col = f"({row})", f"({col})"
        if shape == "M":
            return self.random.choice([f"{row} * {STRIDE} + {shift}", f"{row} + {shift}"])
        if shape == "N":
            return f"{col} + {shift}"
        if self.random.random() < 0.2:
            return f"{col}[None, :] * {STRIDE} + {row}[:, None] + {shift}"
        return f"{row}[:, None] * {STRIDE} + {col}[None, :] + {shift}"

    def load(self, depth: int) -> None:
        shape = self.random.choice(["MN", "MN", "M", "N"])
        source, kind = self.random.choice([("x", "f"), ("y", "f"), ("i", "i")])
        masks = "" if self.random.random() < 0.4 else f", mask={self.mask(shape)}, other={self.random.choice([0, 1])}"
        text = f"tl.load({source} + {self.offset(shape)}{masks})"
        self.let(depth, shape, kind, text)

    def arithmetic(self, depth: int) -> None:
        shape = self.random.choice(["MN", "MN", "M", "N", ""])
        a, b = self.pick(shape, "f"), self.pick(shape, "f")
        text = self.random.choice(["{a} + {b}", "{a} - {b}", "{a} * {b} * 0.5", "tl.maximum({a}, {b})",
                                   "tl.exp(-tl.abs({a}))",
                                   "{a} / (1.0 + tl.abs({b}))", "tl.sqrt(tl.abs({a})) - {b}", "-{a}",
                                   "tl.sigmoid({a}) + {b}"])  # fmt: skip
        if not shape:
            text = self.random.choice(["{a} + {b}", "{a} * {b} * 0.25", "{a} - 1.5"])
        text = text.format(a=a, b=b)
        self.let(depth, shape, "f", text)

    def integers(self, depth: int) -> None:
        shape = self.random.choice(["MN", "M", "N"])
        a, b = self.pick(shape, "i"), self.pick(shape, "i")
        text = self.random.choice(["{a} + {b}", "{a} * 3 - {b}", "{a} ^ {b}", "({a} << 2) | ({b} & 7)", "{a} >> 1",
                                   "{a} // 5", "{a} % 6", "tl.minimum({a}, {b})",
                                   "{a} // (({b} & 3) + 1)"])  # fmt: skip
        text = text.format(a=a, b=b)
        self.let(depth, shape, "i", f"({text}) & 1023")

    def broadcast(self, depth: int) -> None:
        kind = self.random.choice("ffi")
        a, b = self.pick("M", kind), self.pick("N", kind)
        other = self.pick("MN", kind)
        text = self.random.choice(["{a}[:, None] + {b}[None, :]", "{c} + {a}[:, None]", "{c} - {b}[None, :]"])
        self.let(depth, "MN", kind, text.format(a=a, b=b, c=other))

    def reduce(self, depth: int) -> None:
        shape = self.random.choice(["MN", "MN", "M", "N"])
        kind = self.random.choice("ffi")
        source = self.pick(shape, kind)
        function = self.random.choice(["sum", "max", "min", "argmax", "argmin"] + (["xor_sum"] if kind == "i" else []))
        if shape == "MN":
            axis, left = self.random.choice([(0, "N"), (1, "M")])
        else:
            axis, left = 0, ""
        result = "i" if function.startswith("arg") else kind
        scale = " * 0.125" if function == "sum" and kind == "f" else ""
        self.let(depth, left, result, f"tl.{function}({source}, axis={axis}){scale}")

    def where(self, depth: int) -> None:
        shape = self.random.choice(["MN", "M", "N"])
        a, b, c = (self.pick(shape, "f") for _ in range(3))
        condition = self.random.choice([f"{a} > {b}", f"({a} < 0.3) | ({b} >= {a})", self.mask(shape)])
        self.let(depth, shape, "f", f"tl.where({condition}, {b}, {c})")

    def view(self, depth: int) -> None:
        a = self.pick("MN", "f")
        if self.m == self.n and self.random.random() < 0.5:
            self.let(depth, "MN", "f", f"tl.trans({a})")
            return
        text = self.random.choice(["tl.reshape(tl.trans({a}), [M, N])", "tl.reshape(tl.reshape({a}, [M * N]), [M, N])",
                                   "tl.trans(tl.reshape({a}, [N, M]))"])  # fmt: skip
        self.let(depth, "MN", "f", text.format(a=a))

    def convert(self, depth: int) -> None:
        shape = self.random.choice(["MN", "M", "N"])
        if self.random.random() < 0.5:
            text = f"{self.pick(shape, 'i')}.to(tl.float32)"
        else:
            to = self.random.choice(["float16", "float32"])
            text = f"({self.pick(shape, 'f')}).to(tl.{to}).to(tl.float32)"
        self.let(depth, shape, "f", text)

    def scan(self, depth: int) -> None:
        shape = self.random.choice(["MN", "M", "N"])
        axis = self.random.choice([0, 1]) if shape == "MN" else 0
        reverse = self.random.choice([", reverse=True", ""])
        self.let(depth, shape, "f", f"tl.cumsum({self.pick(shape, 'f')} * 0.25, axis={axis}{reverse})")

    def product(self, depth: int) -> None:
        self.let(depth, "MN", "f", self.dot(self.pick("MN", "f")))

    def dot(self, start: str) -> str:
        a, b, c = (self.pick("MN", "f") for _ in range(3))
        inner = f"tl.dot(tl.sigmoid({a}), tl.trans(tl.sigmoid({b}))) * 0.03"
        return f"tl.dot({inner}, tl.sigmoid({c}), {start})"

    def memory(self, depth: int) -> None:
        """Writes, and reads it in another way."""
        a = self.pick("MN", "f")
        self.put(depth, f"tl.store(spare + pid * 4096 + rows[:, None] * N + cols[None, :], {a})")
        name = self.new("MN", "f")
        where = self.random.choice(["rows[:, None] + cols[None, :] * M", "rows[:, None] * N + (N - 1 - cols)[None, :]"])
        self.put(depth, f"{name} = tl.load(spare + pid * 4096 + {where})")
        if self.random.random() < 0.5:
            self.put(depth, f"tl.store(spare + pid * 4096 + {where}, {name} * 0.5 + {self.pick('MN', 'f')})")
            self.let(depth, "MN", "f", "tl.load(spare + pid * 4096 + rows[:, None] * N + cols[None, :])")

    def loop(self, depth: int) -> None:
        count = self.random.choice(["3", "n // 8", "2"])
        carried = []
        for _ in range(self.random.randint(1, 3)):
            shape = self.random.choice(["MN", "M", "N", ""])
            kind = "f"
            source = self.pick(shape, kind)
            name = self.new(shape, kind)
            self.put(depth, f"{name} = {source} * 1.0")
            carried.append((name, shape))
        index = f"k{self.names}"
        pointer = f"p{self.names}"
        self.put(depth, f"{pointer} = x + rows[:, None] * {STRIDE} + cols[None, :]")
        self.put(depth, f"for {index} in range(0, {count}):")
        before = dict(self.kinds)
        moved = self.new("MN", "f")
        self.put(depth + 1, f"{moved} = tl.load({pointer}, mask=cols[None, :] + {index} < n, other=0.0)")
        for _ in range(self.random.randint(0, 3)):
            self.statement(depth + 1)
        for name, shape in carried:
            if self.random.random() < 0.25:
                others = [other for other, s in carried if s == shape and other != name]
                if others:
                    self.put(depth + 1, f"{name}, {others[0]} = {others[0]}, {name}")
                    continue
            text = self.random.choice(["{a} * 0.5 + {b}", "tl.maximum({a}, {b})", "{b}", "{a} - {b} * 0.25"])
            if shape == "MN" and self.random.random() < 0.7:
                self.sums(depth + 1, name, index)
                continue
            if not shape:
                text = self.random.choice(["{a} * 0.5 + {b}", "{a} - {b} * 0.25"])
            self.put(depth + 1, f"{name} = {text.format(a=name, b=self.pick(shape, 'f'))}")
        self.put(depth + 1, f"{pointer} += {self.random.choice(['1', 'N', str(STRIDE)])}")
        self.kinds = before

    def sums(self, depth: int, name: str, index: str) -> None:
        """What a loop carries gets a product, and begins anew at times, before or after it is used."""
        shape = self.kinds.pop(name)  # nothing else reads it, so that the product may be made in its place
        self.put(depth, f"{name} = {self.dot(self.random.choice([name, f'{name} * 0.5']))}")
        self.kinds[name] = shape
        if self.random.random() < 0.5:
            self.put(depth, f"if {index} % 2 == 1:")
            self.put(depth + 1, f"tl.store(spare + pid * 4096 + rows[:, None] * N + cols[None, :], {name})")
            self.put(depth + 1, f"{name} = {self.random.choice(['tl.zeros([M, N], tl.float32)', f'{name} * 0.5'])}")

    def branch(self, depth: int) -> None:
        shape = self.random.choice(["MN", "M", "N", ""])
        source = self.pick(shape, "f")
        name = self.new(shape, "f")
        self.put(depth, f"{name} = {source} * 1.0")
        condition = self.random.choice(["pid == 0", "n > 20", "pid % 2 == 1", "m < n"])
        self.put(depth, f"if {condition}:")
        before = dict(self.kinds)
        self.statement(depth + 1)
        self.put(depth + 1, f"{name} = {name} * 0.5 + {self.pick(shape, 'f')}")
        self.kinds = before
        if self.random.random() < 0.5:
            self.put(depth, "else:")
            self.put(depth + 1, f"{name} = {self.pick(shape, 'f')} - {name}")

    def end(self) -> None:
        for name, (shape, kind) in self.kinds.items():
            if name in ("rows", "cols", "n", "f", "pid"):
                continue
            where = {"MN": "rows[:, None] * N + cols[None, :]", "M": "rows", "N": "cols", "": "0"}[shape]
            size = {"MN": self.m * self.n, "M": self.m, "N": self.n, "": 1}[shape]
            if self.slots + size > OUT:
                continue
            value = f"{name}.to(tl.float32)" if kind == "i" else name
            self.put(1, f"tl.store(out + {self.slots} + {where}, {value})")
            self.slots += size

    @property
    def text(self) -> str:
        head = [
            "import triton",
            "import triton.language as tl",
            "",
            "",
            "def kernel(x, y, i, out, spare, n, m, f, OUT: tl.constexpr, M: tl.constexpr, N: tl.constexpr):",
        ]
        return "\n".join([*head, *self.lines, ""])

    def module(self, folder: Path) -> ModuleType:
        path = folder / f"program_{abs(hash(self.text))}.py"
        path.write_text(self.text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
