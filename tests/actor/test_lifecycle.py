"""How actors end, and what they may do then."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lifecycle_actors import (
    AsyncCleaner,
    AsyncEndless,
    AsyncNeverDone,
    AsyncNeverMade,
    AsyncOwner,
    Cleaner,
    Endless,
    Heir,
    NeverDone,
    NeverMade,
    Owner,
)

from monarch_kernel import config
from monarch_kernel.actor import Actor, ActorError, MeshFailure, SupervisionError, context, endpoint
from monarch_kernel.actor._endpoint import endpoints_of
from monarch_kernel.actor._executor import Executor
from monarch_kernel.protocol import pickling, records
from monarch_kernel.protocol.faults import error_from_json
from monarch_kernel.protocol.loop import IOThread
from monarch_kernel.protocol.records import Status
from monarch_kernel.state.records import MeshRecord

WAIT = 30.0
BOTH = pytest.mark.parametrize("cleaner", [Cleaner, AsyncCleaner])


@pytest.fixture
def notes(tmp_path: Path) -> Any:
    """What the actors have written down."""
    path = tmp_path / "notes"
    path.touch()
    return path


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@BOTH
def test_a_stop_comes_after_the_messages_that_were_sent_before_and_waits_for_the_cleanup(one, notes, cleaner):
    mesh = one.spawn("cleaned", cleaner, str(notes))
    answers = [mesh.note.call_one(str(n)) for n in range(5)]
    mesh.stop("enough").get(timeout=WAIT)
    assert lines(notes) == ["0", "1", "2", "3", "4", "cleanup None"]
    assert [answer.get(timeout=WAIT) for answer in answers] == [None] * 5
    with pytest.raises(SupervisionError, match="stopped: enough"):
        mesh.note.call_one("late").get(timeout=WAIT)
    mesh.stop().get(timeout=WAIT)


@BOTH
def test_an_actor_that_fails_cleans_up_and_is_given_the_reason(one, notes, until, cleaner):
    mesh = one.spawn("failing", cleaner, str(notes))
    mesh.fail.broadcast()
    until(lambda: any(line.startswith("cleanup The actor") for line in lines(notes)))
    assert "failing" in lines(notes)[0]
    with pytest.raises(SupervisionError, match=r"(?s)ValueError in fail.*on purpose"):
        mesh.note.call_one("late").get(timeout=WAIT)
    mesh.stop().get(timeout=WAIT)
    assert sum(line.startswith("cleanup") for line in lines(notes)) == 1


@BOTH
@pytest.mark.parametrize(("how", "word"), [("abort", "aborted"), ("kill", "killed")])
def test_an_actor_can_fail_itself(one, notes, until, cleaner, how, word):
    mesh = one.spawn("given-up", cleaner, str(notes))
    answer, queued = mesh.end.call_one(how, "no more disk"), mesh.note.call_one("queued")
    assert answer.get(timeout=WAIT) == "still here"
    with pytest.raises(SupervisionError, match=f"it was {word}: no more disk"):
        queued.get(timeout=WAIT)
    until(lambda: "no more disk" in notes.read_text())
    assert "queued" not in lines(notes)


@BOTH
def test_an_actor_can_stop_itself(one, notes, until, cleaner):
    mesh = one.spawn("leaving", cleaner, str(notes))
    assert mesh.end.call_one("stop", "done here").get(timeout=WAIT) == "still here"
    until(lambda: "cleanup None" in lines(notes))
    with pytest.raises(SupervisionError, match="stopped: done here"):
        mesh.note.call_one("late").get(timeout=WAIT)
    mesh.stop().get(timeout=WAIT)


def test_who_is_no_actor_cannot_be_stopped_by_itself():
    for how in ("stop", "abort", "kill"):
        with pytest.raises(RuntimeError, match=f"{how} is for actors; <root> is none"):
            getattr(context().actor_instance, how)()


@BOTH
def test_processes_that_are_stopped_let_their_actors_clean_up(fresh, notes, cleaner):
    procs = fresh(gpus=1)
    mesh = procs.spawn("cleaned", cleaner, str(notes))
    mesh.note.call("x").get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    assert sorted(lines(notes)) == ["cleanup None"] * 2 + ["x"] * 2


def test_a_process_that_is_stopped_exits_as_a_program_does(fresh, notes):
    procs = fresh(gpus=1)
    procs.spawn("exits", Cleaner, str(notes)).note_at_exit.call().get(timeout=WAIT)
    procs.stop().get(timeout=WAIT)
    assert sorted(lines(notes)) == ["cleanup None"] * 2 + ["exit"] * 2


@pytest.mark.parametrize("endless", [Endless, AsyncEndless])
def test_nobody_waits_long_for_a_cleanup_that_never_ends(fresh, endless):
    with config.configured(cleanup_timeout="1s"):
        procs = fresh(gpus=1)
        mesh = procs.spawn("endless", endless)
        mesh.ping.call().get(timeout=WAIT)
    began = time.monotonic()
    mesh.stop().get(timeout=WAIT)
    assert 0.9 < time.monotonic() - began < 5
    procs.stop().get(timeout=WAIT)


def test_a_stop_gives_up_what_never_ends_and_says_so_to_who_waits_for_it(fresh, notes):
    procs = fresh(gpus=1)
    kinds = {NeverMade: (), NeverDone: (), AsyncNeverMade: (), AsyncNeverDone: (str(notes),)}
    meshes = [procs.spawn(f"endless-{cls.__name__}", cls, *args) for cls, args in kinds.items()]
    waiting = [mesh.ping.call() for mesh in meshes] + [mesh.ping.call() for mesh in meshes]
    stops = [mesh.stop("enough") for mesh in meshes]
    for stop in stops:
        stop.get(timeout=WAIT)
    for answer in waiting:
        with pytest.raises(SupervisionError, match=r"was stopped.*: enough"):
            answer.get(timeout=WAIT)
    assert lines(notes) == ["cleanup None"] * 2
    procs.stop().get(timeout=WAIT)


def test_concurrent_endpoints_overlap_and_are_cancelled_by_a_stop(one, notes):
    mesh = one.spawn("beside", AsyncCleaner, str(notes))
    waiting = [mesh.wait.call_one(name) for name in "ab"]
    mesh.free.call_one().get(timeout=WAIT)
    assert [answer.get(timeout=WAIT) for answer in waiting] == ["a", "b"]
    other = one.spawn("cut-off", AsyncCleaner, str(notes))
    waiting = [other.wait.call_one("c")]
    other.note.call_one("n").get(timeout=WAIT)
    other.stop("enough").get(timeout=WAIT)
    with pytest.raises(SupervisionError, match="stopped: enough"):
        waiting[0].get(timeout=WAIT)
    assert lines(notes)[-2:] == ["c cancelled", "cleanup None"]


def test_a_concurrent_endpoint_that_raises_leaves_the_others_alone_and_one_that_exits_does_not(one, notes):
    mesh = one.spawn("raising", AsyncCleaner, str(notes))
    waiting = mesh.wait.call_one("a")
    with pytest.raises(ActorError, match="on purpose"):
        mesh.raise_beside.call_one(ValueError).get(timeout=WAIT)
    assert not waiting.done()
    with pytest.raises(SupervisionError, match="SystemExit in raise_beside ended the actor"):
        mesh.raise_beside.call_one(SystemExit).get(timeout=WAIT)
    with pytest.raises(SupervisionError, match="SystemExit in raise_beside ended the actor"):
        waiting.get(timeout=WAIT)


def test_hooks_that_do_not_fit_the_endpoints_are_refused():
    class Sync(Actor):
        @endpoint
        def work(self) -> None: ...

    class Async(Actor):
        @endpoint
        async def work(self) -> None: ...

    async def later(self: Any, what: Any = None) -> None: ...

    def now(self: Any, what: Any = None) -> None: ...

    for hook in ("__cleanup__", "__supervise__", "_handle_undeliverable_message"):
        with pytest.raises(ValueError, match=f"sync endpoints .work., but an async {hook}"):
            endpoints_of(type("Wrong", (Sync,), {hook: later}))
        assert endpoints_of(type("Right", (Sync,), {hook: now}))
        assert endpoints_of(type("AlsoRight", (Async,), {hook: later}))
    with pytest.raises(ValueError, match=r"async endpoints .work., but a synchronous __cleanup__"):
        endpoints_of(type("Wrong", (Async,), {"__cleanup__": now}))


# -- what an actor is told of the meshes it owns; the executor alone, without daemons

MESH = 7


class Alone:
    """An executor, and what it says."""

    def __init__(self) -> None:
        self.io = IOThread("alone")
        self.io.start()
        self.said: list[bytes] = []
        self.some = threading.Condition()
        self.executor = Executor(self.io, self._say, 0)
        self.numbers = itertools.count(1)

    def _say(self, sender: int, at_once: bool, *chunks: Any) -> None:
        with self.some:
            self.said.append(b"".join(bytes(chunk) for chunk in chunks))
            self.some.notify_all()

    def create(self, cls: type, *args: Any) -> None:
        record = MeshRecord(
            id=MESH,
            kind="actors",
            name="owner",
            hosts=(0,),
            endpoints=tuple(endpoints_of(cls)),
            qualname=cls.__name__,
        )
        payload = b"".join(pickling.encode(pickling.dumps_call((cls, *args), {})))
        self.io.post(self.executor.create, record, 0, payload, None)
        assert self.state() == {"mesh": MESH, "rank": 0, "state": "ok"}

    def state(self) -> dict[str, Any]:
        """The next thing that is told of the actor."""
        return records.parse_notice(self._next(records.Kind.CREATED))[0]

    def call(self, endpoint: str) -> None:
        ends = records.call_ends(
            flags=0, sender=1, mesh=MESH, hosts=b"", ranks=b"", endpoint=endpoint.encode(), region=b""
        )
        body = b"".join(pickling.encode(pickling.dumps_call((), {})))
        self.io.post(self.executor.on_call, records.call_head(ends, next(self.numbers)) + body)

    def answer(self) -> tuple[int, Any]:
        """Status and value, or text, of the next answer."""
        record = self._next(records.Kind.REPLY)
        status, _, _ = records.parse_reply(record)
        body = record[records.REPLY_BODY :]
        if status == Status.RESULT:
            return status, pickling.loads(*pickling.decode(body))
        return status, str(error_from_json(body))

    def supervise(self, name: str) -> None:
        failure = MeshFailure(name, (0,), f"{name} has failed").to_dict()
        self.io.post(self.executor.supervise, MESH, failure)

    def _next(self, kind: records.Kind) -> bytes:
        def found() -> int | None:
            return next((at for at, said in enumerate(self.said) if said[0] == kind), None)

        with self.some:
            assert self.some.wait_for(lambda: found() is not None, WAIT)
            at = found()
            assert at is not None
            return self.said.pop(at)


@pytest.fixture
def alone() -> Iterator[Alone]:
    made = Alone()
    yield made
    made.io.post(made.executor.stop_all, "the test is over")
    made.io.stop()


@pytest.mark.parametrize("owner", [Owner, AsyncOwner])
def test_a_failure_that_supervise_handles_ends_there(alone, notes, owner):
    alone.create(owner, str(notes))
    alone.supervise("handled")
    alone.supervise("handled")
    alone.call("ping")
    assert alone.answer() == (Status.RESULT, "pong")


@pytest.mark.parametrize("owner", [Owner, AsyncOwner])
def test_failures_are_told_one_by_one_in_their_order_with_the_actor_as_context(alone, notes, until, owner):
    alone.create(owner, str(notes))
    for _ in range(3):
        alone.supervise("handled")
    until(lambda: lines(notes) == ["supervise handled owner"] * 3)


@pytest.mark.parametrize("owner", [Owner, AsyncOwner, Heir])
def test_a_failure_that_nobody_handles_fails_the_owner_with_the_cause_in_its_text(alone, notes, owner):
    alone.create(owner, *([] if owner is Heir else [str(notes)]))
    alone.supervise("left")
    state = alone.state()
    assert state["state"] == "failed"
    assert "left has failed" in state["fault"]["text"]
    assert ("it has no __supervise__" if owner is Heir else "did not handle it") in state["fault"]["text"]
    alone.call("ping")
    status, text = alone.answer()
    assert status == Status.FAULT
    assert "left has failed" in text
    alone.supervise("left")  # it is over: nothing happens


@pytest.mark.parametrize("owner", [Owner, AsyncOwner])
def test_a_supervise_that_raises_fails_the_owner_with_both_texts(alone, notes, owner):
    alone.create(owner, str(notes))
    alone.supervise("raises")
    text = alone.state()["fault"]["text"]
    assert "LookupError: in the hook" in text
    assert "raises has failed" in text


def test_an_async_actor_is_told_while_a_message_waits(alone, notes):
    alone.create(AsyncOwner, str(notes))
    alone.call("until_told")
    alone.supervise("handled")
    assert alone.answer() == (Status.RESULT, "told")


def test_a_message_that_waits_is_cut_off_when_its_actor_fails(alone, notes):
    alone.create(AsyncCleaner, str(notes))
    alone.call("wait")
    alone.supervise("left")
    status, text = alone.answer()
    assert status == Status.FAULT
    assert "left has failed" in text
    assert alone.state()["state"] == "failed"
