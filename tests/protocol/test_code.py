"""By-value code between real processes: a controller whose ``__main__`` is a notebook, and workers that last."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A worker: answers (function, args) until its input ends; `names` are kept between calls.
WORKER = """
import struct, sys
from monarch_kernel.protocol import pickling
names = sys.names = {}
source, sink = sys.stdin.buffer, sys.stdout.buffer
while head := source.read(8):
    try:
        fn, args = pickling.loads(*pickling.decode(bytearray(source.read(struct.unpack("<Q", head)[0]))))[0]
        reply = (True, fn(*args))
    except BaseException as error:
        reply = (False, pickling.dumps_exception(error))
    body = b"".join(pickling.encode(pickling.dumps_call((reply,), {})))
    sink.write(struct.pack("<Q", len(body)) + body)
    sink.flush()
"""

PRELUDE = f"""
import linecache, struct, subprocess, sys, textwrap
from monarch_kernel.protocol import code, pickling
from monarch_kernel.protocol.code import registry
registry().namespace = globals()
_cells = 0

def cell(source):
    global _cells
    _cells += 1
    name = f"/tmp/ipykernel_{{__import__('os').getpid()}}/{{_cells}}.py"
    source = textwrap.dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), globals())

class Worker:
    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdin=pipe, stdout=pipe)
    def send(self, fn, *args):
        body = b"".join(pickling.encode(pickling.dumps_call((fn, args), {{}})))
        self.process.stdin.write(struct.pack("<Q", len(body)) + body)
        self.process.stdin.flush()
        return len(body)
    def get(self):
        size, = struct.unpack("<Q", self.process.stdout.read(8))
        (ok, value), = pickling.loads(*pickling.decode(bytearray(self.process.stdout.read(size))))[0]
        if ok:
            return value
        error, self.text = pickling.loads_exception(value)
        raise error
    def __call__(self, fn, *args):
        self.send(fn, *args)
        return self.get()
    def close(self):
        self.process.stdin.close(); self.process.stdout.close(); self.process.wait()
"""


def controller(script: str, **env: str) -> str:
    """Run a script whose ``__main__`` is the notebook; it asserts by itself."""
    whole = PRELUDE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", whole],
        env={**os.environ, "PYTHONPATH": os.fspath(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_instances_stay_instances_over_calls_re_runs_and_round_trips() -> None:
    controller("""
        CELL = '''
        class A:
            n = 0
            def me(self): return self, type(self), B()
            def mine(self, other): return isinstance(other, A)
        class B:
            def a(self): return A()
        '''
        cell(CELL)
        w = Worker()
        old = A()
        me, cls, b = w(lambda a: a.me(), old)
        assert type(me) is A and cls is A and type(b) is B, (me, cls, b)
        w(lambda a: sys.names.__setitem__("kept", a), A())
        cell(CELL)
        assert type(old) is not A
        assert w(lambda a: sys.names["kept"].mine(a), A()) is True
        assert w(lambda a: type(sys.names["kept"]) is type(a), old) is True
        assert type(w(lambda: sys.names["kept"])) is A
        w.close()
    """)


def test_class_state_on_the_worker_survives_re_sends() -> None:
    controller("""
        CELL = '''
        class Counter:
            n = 0
            seen = []
            def bump(self):
                type(self).n += 1
                self.seen.append(self.n)
                return self.n, list(self.seen)
        '''
        cell(CELL)
        w = Worker()
        assert w(lambda c: c.bump(), Counter()) == (1, [1])
        assert w(lambda c: c.bump(), Counter()) == (2, [1, 2])
        cell(CELL)
        assert w(lambda c: c.bump(), Counter()) == (3, [1, 2, 3])
        back = w(lambda c: c, Counter())
        assert type(back) is Counter and Counter.n == 0
        Counter.n = 7     # data: state of this process, neither another class nor sent
        assert w(lambda c: c.bump(), Counter())[0] == 4
        w.close()
    """)


def test_an_edited_or_patched_class_is_another_and_the_old_one_lives_on() -> None:
    controller("""
        cell("class A:\\n    def f(self): return 1")
        w = Worker()
        first = A()
        w(lambda a: sys.names.__setitem__("kept", a), first)
        assert w(lambda a: a.f(), A()) == 1
        cell("class A:\\n    def f(self): return 2")
        assert w(lambda a: a.f(), A()) == 2
        assert w(lambda: sys.names["kept"].f()) == 1
        assert w(lambda a: a.f(), first) == 1
        A.f = lambda self: 3
        assert w(lambda a: a.f(), A()) == 3
        A.g = lambda self: 4
        assert w(lambda a: (a.f(), a.g()), A()) == (3, 4)
        assert type(w(lambda a: a, A())) is A
        assert type(w(lambda: sys.names["kept"])) is type(first)
        cell("def helper(): return 5")
        A.f = lambda self: helper()
        assert w(lambda a: a.f(), A()) == 5
        cell("def helper(): return 6")
        assert w(lambda a: a.f(), A()) == 6
        helper.__code__ = (lambda: 7).__code__
        assert w(lambda a: a.f(), A()) == 7
        w.close()
    """)


def test_a_new_kernel_finds_the_classes_of_the_old_one() -> None:
    # The third process is the worker: two controllers after each other talk to it over the same pipe.
    source = """
        CELL = '''
        import enum
        class Mode(enum.Enum):
            FAST = 1
        class A:
            mode = Mode.FAST
            def me(self): return self, self.mode
        '''
        first = A_bytes = None
        cell(CELL)
        import pickle, base64
        print(base64.b64encode(pickling.dumps((A(), Mode.FAST, A))[0]).decode())
    """
    theirs = controller(source, PYTHONHASHSEED="5").strip()
    controller(
        source.replace("print(", "0 and print(")
        + f"""
        a, mode, cls = pickling.loads(base64.b64decode({theirs!r}))
        assert type(a) is A and cls is A and mode is Mode.FAST
        w = Worker()
        a2, mode = w(lambda data: pickling.loads(data)[0].me(), base64.b64decode({theirs!r}))
        assert type(a2) is A and mode is Mode.FAST
        assert w(lambda a, data: type(a) is pickling.loads(data)[2], A(), base64.b64decode({theirs!r}))
        w.close()
    """,
        PYTHONHASHSEED="9",
    )


def test_all_kinds_of_classes_travel_and_come_back_as_themselves() -> None:
    controller("""
        cell('''
        import abc, dataclasses, enum, functools, threading, typing
        T = typing.TypeVar("T")
        class Color(enum.Enum):
            RED = 1
            ROUGE = 1
            def paint(self): return self.name
        class Planet(enum.Enum):
            EARTH = (5.9, 6.3)
            def __init__(self, mass, radius): self.mass = mass; self.radius = radius
            @property
            def ratio(self): return self.mass / self.radius
        class Perm(enum.Flag):
            R = enum.auto()
            W = enum.auto()
        class Level(enum.IntEnum):
            LOW = 1
        class Word(str, enum.Enum):
            HI = "hi"
        class Meta(type):
            def __new__(meta, name, bases, space, **kw):
                return super().__new__(meta, name, bases, space)
            def __call__(cls, *args): return super().__call__(*args)
        class WithMeta(metaclass=Meta):
            def f(self): return type(type(self)).__name__
        class Shape(abc.ABC):
            @abc.abstractmethod
            def f(self): ...
        class Square(Shape):
            def f(self): return super().f is not None, isinstance(self, Shape)
            class Inner:
                def f(self): return Square
        class Inner2(Square.Inner): pass
        @dataclasses.dataclass(order=True)
        class Point:
            x: int = 1
            y: list = dataclasses.field(default_factory=list)
        @dataclasses.dataclass(slots=True, frozen=True)
        class Slim:
            x: int = 1
        class Slots:
            __slots__ = ("a", "__b")
            def __init__(self): self.a = 1; self.__b = 2
            def f(self): return self.a, self.__b
        class Named(typing.NamedTuple):
            a: int = 0
        class Row(typing.TypedDict):
            a: int
        class Box(typing.Generic[T]):
            def __init__(self, v=None): self.v = v
        class IntBox(Box[int]): pass
        class Proto(typing.Protocol):
            def f(self) -> int: ...
        class Plugin:
            known = {}
            def __init_subclass__(cls): Plugin.known[cls.kind] = cls
        class One(Plugin):
            kind = "one"
        class Err(Exception):
            def __init__(self, code, *, where): super().__init__(f"{code} at {where}"); self.where = where
        class Node(dict):
            pass
        class Helped:
            lock = threading.Lock()
            @functools.lru_cache(maxsize=2)
            def cached(self): return object()
            @functools.cached_property
            def once(self): return [type(self)]
            @functools.singledispatchmethod
            def kind(self, v): return "any"
            @kind.register
            def _(self, v: int): return "int"
            part = functools.partialmethod(kind, 3)
        ''')
        w = Worker()
        for cls in (Color, Planet, Perm, Level, Word, Meta, WithMeta, Shape, Square, Square.Inner, Inner2, Point, Slim,
                    Slots, Named, Row, Box, IntBox, Proto, Plugin, One, Err, Node, Helped):
            assert w(lambda c: c, cls) is cls, cls
            assert w(lambda c: c, cls) is cls, cls
        for value in (Color.RED, Planet.EARTH, Perm.R, Level.LOW, Word.HI):
            assert w(lambda v: v, value) is value
        assert w(lambda v: v, Perm.R | Perm.W) == Perm.R | Perm.W
        assert w(lambda: (Color.RED.paint(), Color.ROUGE is Color.RED, Planet.EARTH.ratio > 0)) == ("RED", True, True)
        assert w(lambda: (WithMeta().f(), Square().f(), Slots().f())) == ("Meta", (True, True), (1, 2))
        assert w(lambda: hasattr(Slots(), "__dict__")) is False
        for value in (Point(2, [3]), Slim(4), Named(5), Node(a=1)):
            back = w(lambda v: v, value)
            assert back == value and type(back) is type(value), back
        assert type(w(lambda: IntBox(3))) is IntBox and w(lambda: issubclass(IntBox, Box))
        assert w(lambda: sorted(Plugin.known)) == ["one"]
        assert w(lambda: Square.Inner().f()) is Square
        assert w(lambda h: (h.cached() is h.cached(), h.once is h.once, h.kind("a"), h.part()), Helped()) == (
            True, True, "any", "int")
        assert w(lambda: Row(a=1)) == {"a": 1}
        w.close()
    """)


def test_the_copy_has_the_fingerprint_of_the_original() -> None:
    controller(
        "RICH = '''"
        + __import__("inspect").cleandoc((Path(__file__).parent / "test_fingerprint.py").read_text().split("'''")[1])
        + """'''
cell(RICH)
w = Worker()
for cls in (Trainer, Other, Color, Point, Named, Table, helper):
    mine = __import__("monarch_kernel.protocol.fingerprint").protocol.fingerprint.fingerprint(cls)
    theirs = w(lambda c: __import__("monarch_kernel.protocol.fingerprint").protocol.fingerprint.fingerprint(c), cls)
    assert mine == theirs, cls
w.close()
"""
    )


def test_functions_are_the_same_in_every_call_until_they_change() -> None:
    controller("""
        cell('''
        n = 0
        data = [1]
        def bump():
            global n
            n += 1
            return n
        def read(): return list(data)
        def put(v): data.append(v); return data
        ''')
        w, v = Worker(), Worker()
        assert [w(bump), w(bump), v(bump)] == [1, 2, 1] and n == 0
        assert w(lambda f, g: f is g, bump, bump)
        assert w(lambda: bump()) == 3
        assert w(lambda f: f, bump) is bump
        cell("def bump():\\n    global n\\n    n += 10\\n    return n")
        assert w(bump) == 10
        # values that a function reads: in-place changes stay, rebinding ships them
        assert (w(put, 2), w(put, 3)) == ([1, 2], [1, 2, 3])
        assert w(read) == [1]
        data = [5]
        assert (w(read), w(put, 6), w(put, 7)) == ([5], [5, 6], [5, 6, 7])
        w.close(); v.close()
    """)


def test_a_rebound_global_is_rebound_in_the_receiver_too() -> None:
    controller("""
        CELL = '''
        class Handle:
            def __init__(self, n): self.n = n
        config = {"lr": 1}
        handle = Handle(1)
        class A:
            def get(self): return config["lr"], handle.n
            def set(self, v): config["lr"] = v
        class B(A):
            def both(self): return self.get(), A().get()
        '''
        cell(CELL)
        w, v = Worker(), Worker()
        key = registry().key(A)
        a = A()
        w(lambda b: sys.names.__setitem__("kept", b), B())
        assert w(lambda a: a.get(), a) == (1, 1)
        w(lambda a: a.set(9), a)
        assert w(lambda a: a.get(), a) == (9, 1)
        handle = Handle(2)
        assert w(lambda a: a.get(), a) == (9, 2)
        assert w(lambda b: b.both(), B()) == ((9, 2), (9, 2))
        config = {"lr": 5}
        assert w(lambda a: a.get(), A()) == (5, 2)
        assert w(lambda: sys.names["kept"].both()) == ((5, 2), (5, 2))
        assert registry().key(A) == key and type(w(lambda a: a, a)) is A
        # who got it from elsewhere never takes anything back
        w(lambda a: a.set(6), a)
        back = w(lambda a: __import__("monarch_kernel.protocol.pickling").protocol.pickling.dumps(a)[0], a)
        assert v(lambda a: a.get(), A()) == (5, 2)
        assert v(lambda data: __import__("pickle").loads(data).get(), back) == (5, 2)
        # an unchanged value of a new kernel (or a cell run again) resets nothing that can be compared
        cell(CELL.replace('"lr": 1', '"lr": 5'))
        assert w(lambda a: a.get(), A()) == (6, 1)
        before = registry().edition(A)
        config = {"lr": 7}
        assert registry().edition(A) != before
        w.close(); v.close()
    """)


def test_an_instance_among_the_globals_of_its_own_class_ends() -> None:
    controller("""
        cell('''
        class A:
            def all(self): return len(instances), type(instances[0]) is A, type(other) is B
        class B:
            def all(self): return [type(i).__name__ for i in instances], type(other) is B
        instances = [A(), A(), B()]
        other = B()
        ''')
        w, v = Worker(), Worker()
        for worker, order in ((w, (A, B)), (v, (B, A))):
            for cls in order * 2:
                got = worker(lambda x: x.all(), cls())
                assert got == ((3, True, True) if cls is A else (["A", "A", "B"], True)), got
        w.close(); v.close()
    """)


def test_what_code_drags_along_and_cannot_travel_is_named() -> None:
    controller("""
        cell('''
        import socket, threading
        lock = threading.Lock()
        class Guarded:
            def f(self):
                with lock: return 1
        line = open("/dev/null", "wb")
        def helper(): return line.closed
        class A:
            def f(self): return helper()
        ''')
        w = Worker()
        assert w(lambda a: a.f(), Guarded()) == 1
        for value in (A(), A, helper):
            try:
                w.send(lambda x: x, value)
            except TypeError as error:
                assert "helper uses 'line' (_io.BufferedWriter)" in str(error) and "args[1][0]" in str(error), error
            else:
                raise AssertionError
        line.close()
        w.close()
    """)


def test_local_classes_are_told_apart_by_what_they_close_over() -> None:
    controller("""
        cell('''
        def factory(n, extra):
            class Local:
                def get(self): return n, extra
                class Inner: pass
            return Local
        ''')
        w = Worker()
        one, two, three = factory(1, [1]), factory(2, [1]), factory(1, [2])
        odd, even = object(), object()
        for cls, want in ((one, (1, [1])), (two, (2, [1])), (three, (1, [2]))):
            assert w(lambda c: c().get(), cls) == want
            assert w(lambda c: c, cls) is cls
        import threading
        four, five = factory(1, iter([1])), factory(1, iter([2]))
        assert w(lambda c: next(c().get()[1]), four) == 1
        assert w(lambda c: next(c().get()[1]), five) == 2
        w.close()
    """)


def test_remote_tracebacks_show_the_lines_of_the_cell() -> None:
    controller("""
        cell('''
        class A:
            def fail(self):
                x = 1
                return x / 0   # this line
        def outer(a): return a.fail()  # and this one
        ''')
        w = Worker()
        try:
            w(outer, A())
        except ZeroDivisionError:
            pass
        assert "# this line" in w.text and "# and this one" in w.text, w.text
        w.close()
    """)


def test_unused_globals_stay_and_large_used_ones_warn() -> None:
    controller("""
        import warnings
        unused = bytearray(200_000_000)
        used = bytes(150_000_000)
        cell("def f(): return len('a')\\nclass A:\\n    def size(self): return len(used)")
        assert len(pickling.dumps(f)[0]) < 10_000
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            pickling.dumps(A)
        assert seen[0].category is code.LargeCaptureWarning, seen
        assert "'used' (150 MB)" in str(seen[0].message)
    """)


def test_extension_types_named_by_a_cell_do_not_hinder_it() -> None:
    controller("""
        cell('''
        import datetime, decimal, numpy as np, _struct, grpc
        from numpy.random import Generator
        from grpc._cython.cygrpc import CompletionQueue
        from datetime import timedelta
        class A:
            kind = Generator
            queue = CompletionQueue
            packer = _struct.Struct
            span = timedelta(seconds=3)
            def f(self): return Generator, np.float32(1), A.span, decimal.Decimal(1), CompletionQueue
        ''')
        w = Worker()
        got = w(lambda a: a.f(), A())
        assert got[0] is Generator and got[2] == timedelta(seconds=3) and got[4] is CompletionQueue
        assert w(lambda a: type(a), A()) is A
        w.close()
    """)


def test_a_local_module_that_the_worker_lacks_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "mylib.py").write_text("class Model:\n    def f(self): return 1\n")
    controller(f"""
        w = Worker()
        sys.path.insert(0, {os.fspath(tmp_path)!r})
        import mylib
        try:
            w(lambda m: m.f(), mylib.Model())
        except ImportError as error:
            assert "mylib" in str(error) and "register_pickle_by_value" in str(error) and error.name == "mylib"
        else:
            raise AssertionError("no error")
        import cloudpickle
        cloudpickle.register_pickle_by_value(mylib)
        assert w(lambda m: m.f(), mylib.Model()) == 1
        assert type(w(lambda m: m, mylib.Model())) is mylib.Model
        w.close()
    """)


def test_an_object_whose_load_raises_fails_that_call_only() -> None:
    controller("""
        cell('''
        def explode(): raise RuntimeError("boom")
        class Bad:
            def __reduce__(self): return explode, ()
        ''')
        w = Worker()
        for _ in range(2):
            try:
                w(lambda b: b, Bad())
            except RuntimeError as error:
                assert str(error) == "boom"
            else:
                raise AssertionError
        assert w(lambda: 1) == 1
        # A class that cannot be made is not half registered.
        cell('''
        class Base:
            def __init_subclass__(cls, **kw):
                if hasattr(sys, "names") and not sys.names.get("ready"): raise ValueError("not yet")
        class Child(Base):
            def f(self): return 2
        ''')
        try:
            w(lambda c: c.f(), Child())
        except ValueError:
            pass
        else:
            raise AssertionError
        w(lambda: sys.names.__setitem__("ready", 1))
        assert w(lambda c: c.f(), Child()) == 2
        w.close()
    """)


def test_old_versions_do_not_pile_up() -> None:
    controller("""
        import gc, weakref
        alive = weakref.WeakSet()
        for number in range(60):
            cell(f"class A:\\n    def f(self): return {number}, super().__init__")
            pickling.dumps(A)
            alive.add(A)
        gc.collect()
        assert len(alive) < 25, len(alive)
    """)


def test_what_a_hit_costs(capsys: pytest.CaptureFixture[str]) -> None:
    out = controller("""
        import time
        many = lambda what: "\\n".join(f"    def f{i}(self): return {what}" for i in range(12))
        cell("def helper(n): return n\\nK = 3\\nclass A:\\n" + many("helper(K)"))
        cell("class B:\\n" + many("A, helper(K)"))
        def best(f, n=500):
            times = []
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(n): f()
                times.append((time.perf_counter() - start) / n * 1e6)
            return min(times)
        from monarch_kernel.protocol.fingerprint import fingerprint
        a, b = A(), B()
        data = pickling.dumps(b)[0]
        key = registry().key
        print(f"key(A): {best(lambda: key(A)):.1f} us, key(B, reaches A): {best(lambda: key(B)):.1f} us")
        print(f"dumps(A()): {best(lambda: pickling.dumps(a)):.1f} us, "
              f"loads in the kernel: {best(lambda: pickling.loads(data)):.1f} us")
        registry().namespace = None
        print(f"loads in a proc: {best(lambda: pickling.loads(data)):.1f} us")
        print(f"fingerprint(B): {best(lambda: fingerprint(B), 20):.0f} us, blob {len(registry().ticket(B)[3])} B")
    """)
    with capsys.disabled():
        print("\n" + out, end="")
