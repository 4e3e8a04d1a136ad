"""Equal source is equal code, in every cell, process and run; an edit that changes behaviour is not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from typing import Any

import pytest

from monarch_kernel.protocol.fingerprint import arguments_digest, fingerprint


def cell(source: str, filename: str = "<cell>", line: int = 0, space: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run source as a notebook would, in a namespace that calls itself __main__."""
    space = {"__name__": "__main__"} if space is None else space
    exec(compile("\n" * line + textwrap.dedent(source), filename, "exec"), space)
    return space


RICH = '''
import abc, dataclasses, enum, functools, typing
from dataclasses import dataclass, field
WIDTH = 3
T = typing.TypeVar("T")
class Color(enum.Enum):
    RED = 1
    BLUE = "b"
    def paint(self): return self.name
def helper(n, scale=2, *, extra=frozenset({"a", "b", "c"})):
    return n * WIDTH * scale if n in {"x", "y", "z"} else extra
def wrap(fn):
    @functools.wraps(fn)
    def inner(*args): return fn(*args)
    return inner
class Base(abc.ABC):
    @abc.abstractmethod
    def run(self) -> int: ...
class Trainer(Base, typing.Generic[T]):
    """Text."""
    rate: float = 0.1
    log: typing.ClassVar[list] = []
    def __init__(self, peer=None): self.peer = peer
    @property
    def width(self): return WIDTH
    @staticmethod
    def make(): return Trainer(Other())
    @classmethod
    def other(cls) -> "Other": return Other()
    @functools.lru_cache(maxsize=4)
    def cached(self): return helper(1)
    @functools.cached_property
    def once(self): return [i * WIDTH for i in range(3)]
    @wrap
    def run(self): return super().__init__, Color.RED, Point()
class Other:
    def back(self): return Trainer
@dataclass(frozen=True)
class Point(typing.Generic[T]):
    x: int = 1
    y: list = field(default_factory=list)
class Named(typing.NamedTuple):
    a: int = 0
partial = functools.partial(helper, 3)
class Table:
    __slots__ = ("a", "__b")
    def f(self): return partial(), Named
'''


def test_equal_source_in_another_cell_at_another_line_is_equal() -> None:
    one, two = cell(RICH), cell(RICH, "/tmp/ipykernel_1/99.py", line=40)
    for name in ("Trainer", "Other", "Color", "helper", "Point", "Named", "Table", "partial"):
        assert fingerprint(one[name]) == fingerprint(two[name]), name


def test_each_is_another() -> None:
    space = cell(RICH)
    prints = [fingerprint(space[name]) for name in ("Trainer", "Other", "Color", "helper", "Point", "Named", "Table")]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Trainer", "return n * WIDTH", "return n + WIDTH"),
        ("Trainer", "WIDTH = 3", "WIDTH = 4"),
        ("Trainer", "scale=2", "scale=3"),
        ("Trainer", '"a", "b", "c"', '"a", "b", "d"'),
        ("Trainer", '"x", "y", "z"', '"x", "y", "w"'),
        ("Trainer", "rate: float = 0.1", "rate: float = 0.2"),
        ("Trainer", "rate: float = 0.1", "rate: int = 0.1"),
        ("Trainer", "maxsize=4", "maxsize=8"),
        ("Trainer", "return fn(*args)", "return fn(*args), 1"),
        ("Trainer", "RED = 1", "RED = 2"),
        ("Trainer", "def back(self): return Trainer", "def back(self): return 1"),
        ("Trainer", "x: int = 1", "x: int = 2"),
        ("Trainer", "default_factory=list", "default_factory=dict"),
        ("Trainer", "frozen=True", "frozen=False"),
        ("Trainer", "return helper(1)", "return helper(2)"),
        ("Trainer", "def width", "def breadth"),
        ("Trainer", "@staticmethod\n    def make()", "@classmethod\n    def make(cls)"),
        ("Trainer", "[i * WIDTH for", "[i + WIDTH for"),
        ("Trainer", "(Base, typing", "(typing"),
        ("Other", "self.peer = peer", "self.peer = None"),
        ("Table", "partial(helper, 3)", "partial(helper, 4)"),
        ("Table", "a: int = 0", "a: int = 1"),
        ("Table", '"__b"', '"__c"'),
        ("helper", "WIDTH = 3", "WIDTH = 3.0"),
        ("helper", "WIDTH = 3", "WIDTH = True"),
    ],
)
def test_an_edit_that_changes_behaviour_is_seen(name: str, before: str, after: str) -> None:
    assert before in RICH
    assert fingerprint(cell(RICH)[name]) != fingerprint(cell(RICH.replace(before, after))[name])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Text."""', '"""Other text."""'),
        ("log: typing.ClassVar[list] = []", "log: typing.ClassVar[list] = [1]"),
        ("class Named", "# a comment\nclass Named"),
        ('{"x", "y", "z"}', '{"z", "x", "y"}'),
        ("WIDTH = 3", "WIDTH = 3; UNUSED = object()"),
    ],
)
def test_an_edit_without_effect_is_not_seen(before: str, after: str) -> None:
    assert before in RICH
    assert fingerprint(cell(RICH)["Trainer"]) == fingerprint(cell(RICH.replace(before, after))["Trainer"])


def test_a_docstring_counts_where_code_reads_it() -> None:
    source = "class A:\n    'prompt {}'\n    def f(self): return {}\n"
    plain = {fingerprint(cell(source.format(n, 0))["A"]) for n in "12"}
    read = {fingerprint(cell(source.format(n, "self.__doc__"))["A"]) for n in "12"}
    assert (len(plain), len(read)) == (1, 2)


def test_a_name_that_the_code_assigns_is_state_not_code() -> None:
    space = cell("""
        count = 0
        cache = None
        def bump():
            global count, cache
            count += 1
            cache = [count]
            return count
        def make():
            total = 0
            def add(n):
                nonlocal total
                total += n
                return total
            return add
        add = make()
    """)
    before = fingerprint(space["bump"]), fingerprint(space["add"])
    space["bump"]()
    space["add"](5)
    assert (fingerprint(space["bump"]), fingerprint(space["add"])) == before


def test_a_mutable_global_counts_by_its_type() -> None:
    source = "data = {}\ndef f(): return data"
    assert fingerprint(cell(source.format("[1]"))["f"]) == fingerprint(cell(source.format("[1, 2]"))["f"])
    assert fingerprint(cell(source.format("[1]"))["f"]) != fingerprint(cell(source.format("{}"))["f"])


def test_a_descriptor_object_holding_a_function_is_looked_into() -> None:
    source = """
        class endpoint:
            def __init__(self, fn, port=False): self._fn, self._port = fn, port
            def __get__(self, obj, owner): return self
        class A:
            def f(self): return 1
            f = endpoint(f, {})
    """
    base = fingerprint(cell(source.format(False))["A"])
    assert base == fingerprint(cell(source.format(False))["A"])
    assert base != fingerprint(cell(source.format(True))["A"])
    assert base != fingerprint(cell(source.format(False).replace("return 1", "return 2"))["A"])


def test_sharing_that_was_lost_on_the_way_does_not_matter() -> None:
    shared, split = cell("def k(h, i): return lambda: (h(), i())"), cell("def k(h, i): return lambda: (h(), i())")
    make = "(lambda: 1)"
    one = eval(make, shared)
    assert fingerprint(shared["k"](one, one)) == fingerprint(split["k"](eval(make, split), eval(make, split)))


def test_mutual_references_end() -> None:
    source = "class A:\n    def f(self): return B\nclass B:\n    def f(self): return A, B\n    x = {}"
    one, two = cell(source.format(1)), cell(source.format(2))
    assert fingerprint(one["A"]) != fingerprint(two["A"])
    assert fingerprint(one["A"]) != fingerprint(one["B"])
    assert fingerprint(one["A"]) == fingerprint(cell(source.format(1))["A"])


PRINT = """
import sys
sys.path.insert(0, {path!r})
from monarch_kernel.protocol.fingerprint import arguments_digest, fingerprint
exec(compile({source!r}, sys.argv[1], "exec"), globals())
for name in ("Trainer", "Color", "Point", "Table", "helper"):
    print(fingerprint(globals()[name]))
print(arguments_digest(({{"a", "b", "c"}}, {{"k": [1, (2.5, None)]}}, Color.RED, Point(3)), {{"cls": Trainer}}))
"""


def test_the_same_in_every_process_and_under_every_hash_seed() -> None:
    outputs = set()
    root = os.fspath(__import__("pathlib").Path(__file__).parents[2])
    for seed in ("0", "1", "77"):
        run = subprocess.run(
            [sys.executable, "-c", PRINT.format(path=root, source=RICH), f"<cell {seed}>"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert len(set(outputs.pop().split())) == 6


def test_what_is_importable_counts_by_name() -> None:
    assert fingerprint(os.path.join) == fingerprint(os.path.join)
    assert fingerprint(os.path.join) != fingerprint(os.path.split)
    assert fingerprint(types.ModuleType) != fingerprint(types.FunctionType)


def test_arguments_are_compared_by_content() -> None:
    import numpy as np

    same = [
        (1, "a", 2.5, None, b"x"),
        ([1, [2, {"k": (3,)}]],),
        ({"b", "a"}, frozenset({1, 2})),
        (np.arange(6).reshape(2, 3), np.float32(1), np.dtype("int8")),
        (np.array(["a", "b"]), np.arange(6).reshape(2, 3).T, np.array(3)),
        (np.array(["2020-01-01"], dtype="M8[D]"), np.array([[1], "x"], dtype=object)),
        (bytearray(b"12"), range(3), slice(1, 2)),
    ]
    for args in same:
        digest = arguments_digest(args, {"lr": 1e-3})
        assert digest is not None, args
        assert digest == arguments_digest(args, {"lr": 1e-3})
        assert digest != arguments_digest(args, {"lr": 1e-4})
    assert arguments_digest((np.zeros(3),), {}) != arguments_digest((np.zeros(3, "f4"),), {})
    assert arguments_digest((np.zeros((2, 3)),), {}) != arguments_digest((np.zeros((3, 2)),), {})
    assert arguments_digest((1,), {}) != arguments_digest((True,), {})
    assert arguments_digest(({"a": 1, "b": 2},), {}) == arguments_digest(({"b": 2, "a": 1},), {})
    assert arguments_digest((1, 2), {}) != arguments_digest(((1, 2),), {})


def test_arguments_that_cannot_be_compared_have_no_digest() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (object(), [object()], {"k": object()}, endless, open, lambda: 1, iter([])):
        digest = arguments_digest((value,), {})
        assert (digest is None) == (value not in (open,) and not isinstance(value, types.FunctionType)), value


def test_tensors_are_compared_by_content() -> None:
    import torch

    one = torch.arange(6.0).reshape(2, 3)
    assert arguments_digest((one,), {}) == arguments_digest((one.t().contiguous().t(),), {})
    assert arguments_digest((one,), {}) != arguments_digest((one + 1,), {})
    assert arguments_digest((one.bfloat16(),), {}) is not None
    assert arguments_digest((torch.nn.Parameter(one),), {}) != arguments_digest((one,), {})
    assert arguments_digest((torch.float32, torch.device("cpu")), {}) is not None
