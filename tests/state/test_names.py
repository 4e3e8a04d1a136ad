"""The name that a cell gives by assigning, and what a name may look like."""

from __future__ import annotations

import inspect
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.state.names import assigned_name, check_name


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = x.spawn_procs()", ["a"]),
        ("a: Mesh = x.spawn_procs()", ["a"]),
        ("a: Mesh", []),
        ("print(a := x.spawn_procs())", ["a"]),
        ("a, b = x.spawn_procs(), y.spawn('n', C)", ["a", "b"]),
        ("(a, [b, c]) = x.spawn(), (y.spawn(), z.spawn())", ["a", "b", "c"]),
        ("a, *rest, b = x.spawn(), 1, 2, y.spawn()", ["a", "b"]),
        ("*rest, b = x.spawn(), y.spawn()", [None, "b"]),
        ("a, *rest = [x.spawn()]", ["a"]),
        ("a, b = *things, x.spawn()", [None]),
        ("a, b = x.spawn()", [None]),
        ("a = b = x.spawn_procs()", ["a"]),
        ("self.a = x.spawn_procs()", [None]),
        ("self.a = b = x.spawn_procs()", ["b"]),
        ("d['a'] = x.spawn_procs()", [None]),
        ("a = [x.spawn() for _ in y]", [None]),
        ("a = f(x.spawn())", [None]),
        ("x.spawn_procs()", [None]),
        ("a = await x.spawn_procs()", ["a"]),
        ("a = x.spawn_procs() if q else y.spawn_procs()", ["a", "a"]),
        ("a = q or x.spawn_procs()", ["a"]),
        ("with x.spawn_procs() as v: pass", ["v"]),
        ("async def f():\n  async with x.spawn_procs() as v, y.spawn() as (w): pass", ["v", "w"]),
        ("a = x.spawn_procs().spawn('t', T)", [None, "a"]),
        ("a = x.spawn_procs().slice(gpus=0)", ["a"]),
        ("a = this_host().options(exclusive=True).spawn_procs()", ["a"]),
        ("for i in y:\n  a = x.spawn()", ["a"]),
        ("def f():\n  return x.spawn()", [None]),
        ("a = spawn()", []),
        ("ä = x.spawn_procs(); ö = y.spawn()", ["ä", "ö"]),
    ],
)
def test_the_variable_names_the_mesh(source: str, names: list[str | None]) -> None:
    assert [assigned_name(source, ordinal=number) for number in range(len(names))] == names
    assert assigned_name(source, ordinal=len(names)) is None


class Probe:
    """Finds its own call from the frame, as the kernel does."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.by_end: list[str | None] = []
        self.by_line: list[str | None] = []

    def spawn(self, *args: object) -> Probe:
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        assert caller is not None
        _, end_line, _, end_column = list(caller.f_code.co_positions())[caller.f_lasti // 2]
        assert end_line is not None
        assert end_column is not None
        self.by_end.append(assigned_name(self.source, end=(end_line, end_column)))
        self.by_line.append(assigned_name(self.source, line=caller.f_lineno))
        return self


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="positions of instructions are CPython's")
@pytest.mark.parametrize(
    ("source", "by_end", "by_line"),
    [
        ("é, b = x.spawn(), x.spawn()", ["é", "b"], [None, None]),
        ("a = (\n  x\n  .spawn(\n    1,\n  )\n)", ["a"], ["a"]),
        ("a = (x\n  .spawn(1)\n  .spawn(\n 2))", [None, "a"], [None, "a"]),
        ("x.spawn()\nb = x.spawn(x.spawn())", [None, None, "b"], [None, None, None]),
    ],
)
def test_a_call_is_found_where_its_frame_says(source: str, by_end: list[str], by_line: list[str]) -> None:
    probe = Probe(source)
    exec(compile(source, "<cell>", "exec"), {"x": probe})
    assert (probe.by_end, probe.by_line) == (by_end, by_line)


@given(st.text(), st.integers(), st.integers())
def test_any_text_gives_a_name_or_none(source: str, line: int, column: int) -> None:
    assert assigned_name(source, line=line) is None or source
    assert assigned_name(source, end=(line, column)) is None or source
    assert assigned_name(source) is None


@pytest.mark.parametrize("source", ["%magic", "a = ", "\0", "a = x.spawn()" + "(" * 10000, "x" + ".spawn()" * 5000])
def test_what_cannot_be_read_gives_none(source: str) -> None:
    assert assigned_name(source, line=1) is None


@pytest.mark.parametrize("name", ["trainers", "my-mesh_2", "größe", "a.b", "a/b:c", "x" * 100])
def test_names_that_may_be(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a~2", "a[0]", "a b", "a\n", "a,b", "-a", "%a", "x" * 101, "a\u200b", "it's"])
def test_names_that_may_not_be(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a mesh"):
        check_name(name)
    with pytest.raises(TypeError, match="is a string, not int"):
        check_name(3)
