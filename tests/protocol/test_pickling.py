"""Objects to bytes and back: buffers, bodies, tensors, errors that name their argument, exceptions that arrive."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.protocol import pickling
from monarch_kernel.protocol.pickling import (
    RemoteException,
    decode,
    dumps,
    dumps_call,
    dumps_exception,
    encode,
    loads,
    loads_exception,
)

ROOT = Path(__file__).parents[2]


def trip(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    body = bytearray(b"".join(encode(dumps_call(args, kwargs))))
    got, named = loads(*decode(body))
    assert named.keys() == kwargs.keys()
    return (*got, *named.values())


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN, st.dictionaries(st.text(min_size=1), PLAIN, max_size=3))
def test_plain_values_come_back_equal(value: Any, named: dict[str, Any]) -> None:
    data, buffers = dumps(value)
    assert loads(data, buffers) == value
    assert loads(*decode(b"".join(encode(dumps_call((value,), named))))) == ((value,), named)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_a_body_has_its_buffers_at_multiples_of_64(chunks: list[bytes]) -> None:
    body = bytearray(b"".join(encode(chunks)))
    pickled, buffers = decode(body)
    assert [bytes(part) for part in (pickled, *buffers)] == chunks
    start = np.frombuffer(body, np.uint8).ctypes.data
    for part in buffers:
        if len(part):
            assert (np.frombuffer(part, np.uint8).ctypes.data - start) % 64 == 0


@pytest.mark.parametrize("cut", [0, 3, 10, 30])
def test_a_body_cut_short_is_refused(cut: int) -> None:
    body = b"".join(encode([b"x" * 20, b"y" * 20]))
    with pytest.raises(ValueError, match="shorter"):
        decode(body[:cut])


def test_large_arrays_are_not_copied_and_arrive_writable() -> None:
    array = np.arange(100_000.0)
    chunks = dumps_call((array,), {})
    assert len(chunks) == 2
    assert np.shares_memory(np.frombuffer(chunks[1]), array)
    body = bytearray(b"".join(encode(chunks)))
    (back,), _ = loads(*decode(body))
    assert np.array_equal(back, array)
    assert np.shares_memory(back, np.frombuffer(body, np.uint8))
    back[0] = 7.0
    (copied,), _ = loads(*decode(bytes(body)))
    copied[0] = 8.0
    assert back[0] == 7.0


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10),
        np.zeros((0, 3)),
        np.arange(40_000).reshape(200, 200)[::2, ::3],
        np.asfortranarray(np.ones((300, 300))),
        np.array([{"a": 1}, None], dtype=object),
        np.array(["a", "bc"] * 20_000),
        np.zeros(20_000, dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=["small", "empty", "strided", "fortran", "objects", "text", "records"],
)
def test_arrays_of_every_kind_come_back(array: Any) -> None:
    (back,) = trip(array)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    assert back.flags.writeable


def test_an_array_that_was_read_only_arrives_writable() -> None:
    dates = np.array(["2020-01-01"], "M8[D]")
    for array in (np.arange(5), np.arange(200_000).reshape(2, -1), dates, np.broadcast_to(1, 9)):
        array.flags.writeable = False
        (back,) = trip(array)
        assert back.flags.writeable
        assert back.dtype == array.dtype
        assert np.array_equal(back, array)


def test_bytes_and_bytearrays_of_any_size_come_back() -> None:
    big = os.urandom(300_000)
    assert trip(big, bytearray(big), b"", a=memoryview(b"abc")) == (big, bytearray(big), b"", b"abc")


class TestTensors:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        import torch

        self.torch = torch

    def test_they_travel_beside_the_pickle_and_share_the_received_memory(self) -> None:
        torch = self.torch
        tensor = torch.arange(100_000.0)
        chunks = dumps_call((tensor,), {})
        assert len(chunks) == 2
        assert len(chunks[0]) < 600
        body = bytearray(b"".join(encode(chunks)))
        (back,), _ = loads(*decode(body))
        assert torch.equal(back, tensor)
        back[0] = 5
        assert np.frombuffer(body, np.uint8)[-400_000:].view("f4")[0] == 5

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
    def test_views_of_one_storage_stay_views_of_one(self, order: tuple[int, ...]) -> None:
        torch = self.torch
        base = torch.arange(200_000.0)
        views = [base, base[10:20], base[-50:].view(5, 10).t()]
        sent = [views[i] for i in order]
        chunks = dumps_call((sent,), {})
        assert sum(len(c) if isinstance(c, bytes) else c.nbytes for c in chunks) < 801_000
        (back,) = trip(sent)
        for have, want in zip(back, sent, strict=True):
            assert torch.equal(have, want)
            assert have.stride() == want.stride()
        whole, part = back[order.index(0)], back[order.index(1)]
        part[0] = -1
        assert whole[10] == -1

    def test_a_slice_does_not_carry_the_whole(self) -> None:
        base = self.torch.arange(10_000_000.0)
        chunks = dumps_call((base[1_000_001:1_000_101],), {})
        assert sum(len(c) for c in chunks) < 2000
        assert self.torch.equal(trip(base[1_000_001:1_000_101])[0], base[1_000_001:1_000_101])

    def test_kinds(self) -> None:
        torch = self.torch
        for tensor in (
            torch.tensor(3),
            torch.empty(0, 3),
            torch.randn(30, 40).bfloat16().t()[1:, ::2],
            torch.randn(5, dtype=torch.complex64).conj(),
            torch.ones(3, 1).expand(3, 4),
            torch.tensor([True, False]),
            torch.zeros(100_000, dtype=torch.uint8),
            torch.eye(3).to_sparse(),
        ):
            (back,) = trip(tensor)
            assert back.dtype == tensor.dtype
            assert back.shape == tensor.shape
            assert torch.equal(back.to_dense(), tensor.to_dense())

    def test_parameters_modules_and_what_requires_grad(self) -> None:
        torch = self.torch
        parameter, model = torch.nn.Parameter(torch.randn(3)), torch.nn.Sequential(torch.nn.Linear(3, 200))
        back, module, leaf, derived, frozen = trip(
            parameter,
            model,
            torch.randn(3, requires_grad=True),
            parameter * 2,
            torch.nn.Parameter(torch.ones(1), requires_grad=False),
        )
        assert type(back) is torch.nn.Parameter
        assert back.requires_grad
        assert torch.equal(module[0].weight, model[0].weight)
        assert leaf.requires_grad
        assert derived.is_leaf
        assert not frozen.requires_grad
        optimizer = torch.optim.Adam(model.parameters())
        kept, steps = trip((model, optimizer))[0]
        assert steps.param_groups[0]["params"][0] is kept[0].weight

    def test_attributes_of_tensors_come_along(self) -> None:
        parameter = self.torch.nn.Parameter(self.torch.ones(2))
        parameter.tag = [1]
        assert trip(parameter)[0].tag == [1]

    def test_the_reader_does_not_need_them_imported_first(self) -> None:
        chunks = encode(dumps_call((self.torch.arange(5), self.torch.arange(100_000)), {}))
        code = (
            "import sys; from monarch_kernel.protocol.pickling import *; assert 'torch' not in sys.modules;"
            "(a, b), _ = loads(*decode(bytearray(sys.stdin.buffer.read()))); b += 1; print(int(a.sum() + b[-1]))"
        )
        env = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], input=b"".join(chunks), env=env, capture_output=True, check=True
        )
        assert done.stdout.split() == [b"100010"]


class Holder:
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class TestWhatCannotBeSent:
    @pytest.mark.parametrize(
        ("args", "kwargs", "path"),
        [
            ((1, threading.Lock()), {}, r"args\[1\] \(_thread\.lock\)"),
            ((1, [0, (2, threading.Lock())]), {}, r"args\[1\]\[1\]\[1\] "),
            ((), {"batch": {"x": [1, 2, 3, threading.Lock()]}}, r"batch\['x'\]\[3\] \(_thread\.lock\)"),
            ((Holder([threading.Lock()]),), {}, r"args\[0\]\.inner\[0\] "),
            ((x for x in ()), {"g": (x for x in ())}, r"g \(builtins\.generator\)"),
        ],
    )
    def test_the_argument_and_the_place_in_it_are_named(self, args: Any, kwargs: Any, path: str) -> None:
        with pytest.raises(TypeError, match=rf"argument {path}.*cannot be sent: "):
            dumps_call(tuple(args), kwargs)

    def test_names_of_parameters_are_used_where_known(self) -> None:
        with pytest.raises(TypeError, match=r"argument data\['k'\] \(_thread\.lock\)"):
            dumps_call((1, {"k": threading.Lock()}), {}, ["lr", "data"])

    def test_what_a_function_drags_along_is_named(self) -> None:
        lock = threading.Lock()
        with pytest.raises(TypeError, match="args\\[0\\]→lock"):
            dumps_call((lambda: lock,), {})

    def test_an_object_whose_reduce_raises_is_named(self) -> None:
        class Odd:
            def __reduce__(self) -> Any:
                raise ValueError("no")

        with pytest.raises(ValueError, match="no") as caught:
            dumps_call(([1, Odd()],), {})
        (note,) = caught.value.__notes__
        assert re.search(r"argument args\[0\]\[1\] .*Odd\) cannot be sent", note)
        with pytest.raises(TypeError, match=r"value\[0\]"):
            dumps([Odd()])

    def test_a_structure_without_end_is_an_error_of_the_sender(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(TypeError, match="cannot be sent"):
            dumps_call((deep,), {})


class NeedsMore(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} at {where}")
        self.where = where


class Locked(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text, threading.Lock())
        self.text = text
        self.lock = threading.Lock()


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BadReduce(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no reduce")


class BadLoad(Exception):
    def __reduce__(self) -> Any:
        return int, ("not a number",)


class Own(OSError):
    pass


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class TestExceptions:
    @pytest.mark.parametrize(
        "error",
        [
            ValueError("x", 2),
            KeyError("k"),
            OSError(2, "gone", "file"),
            Own(13, "denied", "f"),
            UnicodeDecodeError("utf8", b"x", 0, 1, "bad"),
            NeedsMore(3, where="here"),
            ExceptionGroup("all", [ValueError(1), NeedsMore(1, where="x")]),
            KeyboardInterrupt(),
            SystemExit(3),
            StopIteration(4),
            ModuleNotFoundError("no m", name="m"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_they_come_back_as_themselves(self, error: BaseException) -> None:
        back, text = loads_exception(dumps_exception(raised(error)))
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert back.__dict__.keys() >= error.__dict__.keys()
        assert type(error).__name__ in text
        assert "raise error" in text
        if isinstance(error, OSError):
            assert isinstance(back, OSError)
            assert back.errno == error.errno
            assert back.filename == error.filename
        # and as plain values
        assert type(loads(*dumps([error]))[0]) is type(error)

    def test_what_in_them_cannot_travel_stays(self) -> None:
        back, _ = loads_exception(dumps_exception(raised(Locked("why"))))
        assert type(back) is Locked
        assert back.text == "why"
        assert not hasattr(back, "lock")

    @pytest.mark.parametrize("error", [BadText("a"), BadReduce("b"), BadLoad("c")], ids=lambda e: type(e).__name__)
    def test_what_cannot_be_rebuilt_is_reported_by_name_and_text(self, error: BaseException) -> None:
        back, text = loads_exception(dumps_exception(raised(error)))
        assert type(error).__name__ in text
        assert isinstance(back, (RemoteException, type(error)))
        if isinstance(back, RemoteException):
            assert back.type_name == type(error).__name__
            assert back.text == str(error)
            assert back.traceback_text == text
            assert type(pickle.loads(pickle.dumps(back))) is RemoteException

    def test_notes_causes_and_contexts_come_along(self) -> None:
        def fail() -> None:
            try:
                try:
                    {}["k"]
                except KeyError as error:
                    raise BadReduce("middle") from error
            except BadReduce:
                raise ValueError("last")

        try:
            fail()
        except ValueError as caught:
            caught.add_note("on rank 3")
            back, text = loads_exception(dumps_exception(caught))
        assert back.__notes__ == ["on rank 3"]
        assert isinstance(back.__context__, RemoteException)
        assert isinstance(back.__context__.__cause__, KeyError)
        assert "on rank 3" in text
        assert "direct cause" in text
        assert "on rank 3" in "".join(traceback.format_exception(back))

    def test_a_class_that_is_not_here_has_a_stand_in(self, tmp_path: Path) -> None:
        (tmp_path / "theirs.py").write_text("class Theirs(Exception):\n    pass\n")
        code = (
            "import sys, theirs; from monarch_kernel.protocol.pickling import *\n"
            "try: raise theirs.Theirs('far away')\n"
            "except Exception as e: sys.stdout.buffer.write(dumps_exception(e))"
        )
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(ROOT), os.fspath(tmp_path)])}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        back, text = loads_exception(done.stdout)
        assert isinstance(back, RemoteException)
        assert str(back) == "theirs.Theirs: far away"
        assert "theirs.Theirs: far away" in text

    def test_rubbish_is_reported_not_raised(self) -> None:
        for data in (b"", b"rubbish", pickle.dumps(3), pickle.dumps({"traceback": "x"})):
            back, text = loads_exception(data)
            assert isinstance(back, RemoteException)
            assert "could not be read" in text

    def test_a_chain_without_end_ends(self) -> None:
        one, two = ValueError("one"), ValueError("two")
        one.__cause__, two.__cause__ = two, one
        assert str(loads_exception(dumps_exception(one))[0]) == "one"


def test_many_threads_send_at_once() -> None:
    failures: list[BaseException] = []

    class Local:
        def f(self) -> int:
            return 1

    def work() -> None:
        try:
            for _ in range(50):
                assert type(trip(Local(), np.zeros(3))[0]) is Local
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    def best(f: Any, n: int = 1000) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(n):
                f()
            times.append((time.perf_counter() - start) / n)
        return min(times) * 1e6

    nested, small, array = [[1, 2], {"a": [3]}], np.zeros(4), np.zeros(100_000)
    lines = [
        f"dumps_call((1, 2.0, 'a')): {best(lambda: dumps_call((1, 2.0, 'a'), {})):.2f} us",
        f"dumps_call(k=1): {best(lambda: dumps_call((), {'k': 1})):.2f} us",
        f"dumps_call(small nested lists): {best(lambda: dumps_call((nested,), {})):.2f} us",
        f"dumps_call(small array): {best(lambda: dumps_call((small,), {})):.1f} us",
        f"dumps_call(800 kB array): {best(lambda: dumps_call((array,), {})):.1f} us",
    ]
    large = np.ones(100_000_000 // 8)
    body = bytearray(large.nbytes + 4096)
    start = time.perf_counter()
    at = 0
    for piece in encode(dumps_call((large,), {})):
        end = at + len(memoryview(piece).cast("B"))
        body[at:end] = piece
        at = end
    (back,), _ = loads(*decode(memoryview(body)[:at]))
    round_trip = time.perf_counter() - start
    start = time.perf_counter()
    body[: large.nbytes] = memoryview(large).cast("B")
    copy = time.perf_counter() - start
    lines.append(f"100 MB array: {round_trip * 1e3:.1f} ms, a plain copy {copy * 1e3:.1f} ms")
    assert back.flags.writeable
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert pickling.OUT_OF_BAND == 65536
