"""The calling side: calls under way, the order in which they leave, and what becomes of them after a break.

A call keeps its bytes until every rank has answered or its hosts are known to have it. When a host's daemon was
restarted, or a root was lost, whatever is unanswered is sent again, in order, under the same numbers; receivers drop
what they have had and repeat the answer. Where the bytes are gone, the outcome is asked for. So nothing runs twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ActorError, HostLost, MonarchError, SpawnError, SupervisionError
from ..protocol import pickling, records
from ..protocol.faults import error_from_json
from ..protocol.frames import Record, check_size
from ..protocol.loop import IOThread
from ..protocol.records import REPLY_BODY, Status
from ..state.routing import Routes
from . import _config
from ._context import acting
from ._future import Future
from ._region import Region
from ._supervision import MeshFailure
from ._valuemesh import ValueMesh

if TYPE_CHECKING:
    from ._handle import Carried, Handle

CAUSE_WITHIN = 0.3
"""Seconds that an exception of one rank waits for the death of another, see `GatheredCall`."""

CLAIM_WITHIN = 5.0
"""Seconds after a call within which whoever got a port with it has claimed it."""

_FAILED = frozenset({int(Status.RAISED), int(Status.FAULT)})
_SMALL = 1 << 20  # no limit is below it that is worth a look at each message
_RELEASE_CALLS = 256
_RELEASE_AFTER = 0.05
_ALL = 0xFFFFFFFF

Ends = tuple[bytes, bytes]


class Call:
    """One call under way; the subclasses say what is made of the answers.

    Parameters
    ----------
    handle
        The mesh that it goes to.
    region
        The part of it, and `ranks` the same as ranks of the mesh.
    """

    __slots__ = (
        "carried",
        "endpoint",
        "got",
        "handle",
        "hosts",
        "left",
        "number",
        "record",
        "region",
        "sender",
        "waits",
    )
    quiet = False

    def __init__(self, handle: Handle, region: Region, endpoint: str, hosts: Sequence[int]) -> None:
        self.handle = handle
        self.region = region
        self.endpoint = endpoint
        self.hosts = hosts
        self.left = len(region)
        self.sender = 0
        self.number = 0
        self.record: Sequence[Record] | None = None
        self.waits: Sequence[Future[Any]] = ()
        self.carried: Sequence[Carried] = ()  # what it keeps alive on its way
        self.got = bytearray(self.left)  # 1 where a position has answered

    # Both on the I/O thread.

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """The actor at this position of the region answered; `make` opens the answer, or raises."""
        raise NotImplementedError

    def finished(self) -> None:
        """All have answered."""

    def missing(self) -> list[int]:
        """The ranks whose answers it waits for; none while it waits to leave, unless that is for their construction."""
        ready = self.handle.ready
        if self.waits and (ready is None or ready.done()):
            return []
        whole = self.region is self.handle.region
        return [p if whole else self.region.rank_at(p) for p, answered in enumerate(self.got) if not answered]

    def needs_all(self) -> Sequence[Future[Any]]:
        """The futures that wait for every rank."""
        return ()


class GatheredCall(Call):
    """All answers as a ValueMesh; the first error ends it.

    When a rank dies, its peers often raise before the death is known here ("connection reset by peer"), and a person
    wants to see the cause. So an exception waits a moment, while others have not answered, for a fault to come.
    """

    __slots__ = ("_raised", "future", "values")

    def __init__(self, handle: Handle, region: Region, endpoint: str, hosts: Sequence[int]) -> None:
        super().__init__(handle, region, endpoint, hosts)
        self.future: Future[ValueMesh[Any]] = Future()
        self.values: list[Any] = [None] * len(region)
        self._raised: Callable[[], Any] | None = None

    def needs_all(self) -> Sequence[Future[Any]]:
        """The one."""
        return (self.future,)

    def missing(self) -> list[int]:
        """None once there is an error, which is told soon."""
        return super().missing() if self._raised is None else []

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Keep it, or fail the whole."""
        if not failed:
            self.values[position] = make
        elif not isinstance(make, Answer) or make.status != Status.RAISED:
            self.future._resolve(make)
        elif self._raised is None:
            self._raised = make
            self.handle.runtime.io.loop.call_later(CAUSE_WITHIN, self.future._resolve, make)

    def finished(self) -> None:
        """Give the mesh out."""
        if self._raised is not None:
            self.future._resolve(self._raised)
        elif not self.future.done():
            values, extent = self.values, self.region.extent
            self.future._resolve(lambda: ValueMesh(extent, [make() for make in values]))


class SingleCall(Call):
    """The one answer."""

    __slots__ = ("future",)

    def __init__(self, handle: Handle, region: Region, endpoint: str, hosts: Sequence[int]) -> None:
        super().__init__(handle, region, endpoint, hosts)
        self.future: Future[Any] = Future()

    def needs_all(self) -> Sequence[Future[Any]]:
        """The one."""
        return (self.future,)

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Give it out."""
        self.future._resolve(make)


class StreamedCall(Call):
    """The answers as they arrive."""

    __slots__ = ("_next", "futures")

    def __init__(self, handle: Handle, region: Region, endpoint: str, hosts: Sequence[int]) -> None:
        super().__init__(handle, region, endpoint, hosts)
        self.futures: list[Future[Any]] = [Future() for _ in range(len(region))]
        self._next = 0

    def needs_all(self) -> Sequence[Future[Any]]:
        """The last: which rank the others wait for is not known."""
        return self.futures[-1:]

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Give it to the next in line."""
        self._next += 1
        self.futures[self._next - 1]._resolve(make)


class QuietCall(Call):
    """No answer is wanted."""

    __slots__ = ("actor",)
    quiet = True

    def __init__(self, handle: Handle, region: Region, endpoint: str, hosts: Sequence[int]) -> None:
        super().__init__(handle, region, endpoint, hosts)
        self.actor = acting()

    def answer(self, position: int, make: Callable[[], Any], failed: bool) -> None:
        """Nobody waits, and what fails there comes as an event; that it did not get there is told to its actor."""
        if not failed or not self.actor:
            return
        try:
            make()
        except Exception as error:
            where = f"{self.handle.name}.{self.endpoint}, rank {self.region.rank_at(position)}"
            self.handle.runtime.executor.undelivered(self.actor, where, str(error))


class Caller:
    """The calls of one process.

    Parameters
    ----------
    sender
        The number that names this process in calls.
    send
        Hands a record to a host, on the I/O thread.
    send_from
        The same from any thread, for a lone call: the I/O thread is not woken for it.
    own_host
        For a proc, whose messages all go through the daemon of its host; None for a controller.
    """

    def __init__(
        self,
        io: IOThread,
        sender: int,
        send: Callable[..., None],
        send_from: Callable[..., None],
        own_host: int | None = None,
    ) -> None:
        self.sender = sender
        self.calls: dict[tuple[int, int, int], Call] = {}
        self.routes = Routes()
        self._lost: dict[int, MonarchError] = {}
        self._io = io
        self._send_to = send
        self._send_from = send_from
        self._posted = 0  # calls given to the I/O thread, and how many of them it has taken
        self._taken = 0
        self._own_host = own_host
        self._numbers: dict[int, int] = {}
        self._lock = threading.Lock()
        self._held: dict[int, deque[Call]] = {}
        self._released: dict[tuple[int, int], list[int]] = {}
        self._release_count = 0
        self._release_due = False
        self._broken: MonarchError | None = None
        self.on_refused: Callable[[MeshFailure], None] = lambda failure: None  # a message that was too large

    def submit(self, call: Call, ends: Ends, body: Sequence[Record], waits: Sequence[Future[Any]]) -> None:
        """Send a call. From any thread; calls of one thread leave in its order.

        Parameters
        ----------
        ends
            Its head but for the number, see `Caller.ends`.
        waits
            What must be there before it may leave: meshes still being spawned that it goes to or mentions.
        """
        self._io.check_process()
        for carried in call.carried:
            carried.taken_along, carried.for_one = True, len(call.got) == 1
        size = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if size > _SMALL:
            self._check_size(call, size)
        mesh = call.handle.id
        call.waits = waits
        call.sender = self.sender
        with self._lock:
            if self._broken is not None:
                raise self._broken.with_traceback(None)
            call.number = number = self._numbers.get(mesh, 0) + 1
            self._numbers[mesh] = number
            call.record = (records.call_head(ends, number), *body)
            self.calls[(self.sender, mesh, number)] = call
            if not waits and len(self.calls) == 1 and self._posted == self._taken and not self._lost:
                # Nothing is under way, so nothing can be overtaken; a burst is better sent as one frame.
                root = self._own_host if self._own_host is not None else self.routes.known(mesh)
                if root is not None:
                    self._send_from(root, *call.record)
                    return
            self._posted += 1
            self._io.post(self._leave, call)

    def _check_size(self, call: Call, size: int) -> None:
        """Refuse a message that is over the program's own limit, or that no receiver would take."""
        most = _config.setting("codec_max_frame_length")
        if size > most:
            mesh = call.handle.name
            why = f"rejecting oversize frame: len={size} > max={most} (HYPERACTOR_CODEC_MAX_FRAME_LENGTH)"
            sent = f"undeliverable message for {mesh}.{call.endpoint}(), sent by the client (RootClientActor)"
            self.on_refused(MeshFailure(mesh, (), f"{sent}: {why}"))
            raise SupervisionError(
                f"Endpoint call {mesh}.{call.endpoint}() failed, Actor {mesh} is unhealthy with reason: {why}. The "
                "message was not sent, and the actor itself is well: send less at once, or raise "
                "codec_max_frame_length (monarch_kernel.config.configure)",
                mesh=mesh,
            )
        check_size(size)

    def ends(
        self, handle: Handle, region: Region, hosts: Sequence[int], endpoint: str, flags: int, sender: int | None = None
    ) -> tuple[bytes, bytes]:
        """The head of calls of one endpoint of one slice, but for the number."""
        # A daemon knows the layout of the meshes that have ranks on its host; of others it is told each rank.
        whole = region is handle.region and (self._own_host is None or self._own_host in handle.hosts_used)
        if region is handle.region and not whole and len(hosts) > 1:
            hosts = handle.hosts
        return records.call_ends(
            flags=flags,
            sender=self.sender if sender is None else sender,
            mesh=handle.id,
            hosts=handle.hosts_packed if whole else records.pack_hosts(hosts),
            ranks=b"" if whole else records.pack_ranks(region.ranks()),
            endpoint=endpoint.encode(),
            region=b"" if whole else pack_region(region),
        )

    # -- the rest runs on the I/O thread

    def under_way(self) -> list[Call]:
        """The calls that have not been answered."""
        return list(self.calls.values())

    def _leave(self, call: Call) -> None:
        self._taken += 1
        mesh = call.handle.id
        held = self._held.get(mesh)
        if held is None:
            if not call.waits:
                self._transmit(call)
                return
            if all(wait.done() for wait in call.waits):
                self._go(call)
                return
            held = self._held[mesh] = deque()
        held.append(call)
        if len(held) == 1:
            self._wait_for(call)

    def _wait_for(self, call: Call) -> None:
        wait = next((w for w in call.waits if not w.done()), None)
        if wait is not None:
            wait._when_done(lambda: self._io.post(self._unhold, call.handle.id))
        else:
            self._io.post(self._unhold, call.handle.id)

    def _unhold(self, mesh: int) -> None:
        held = self._held.get(mesh)
        while held:
            call = held[0]
            if not all(wait.done() for wait in call.waits):
                self._wait_for(call)
                return
            held.popleft()
            self._go(call)
        self._held.pop(mesh, None)

    def _go(self, call: Call) -> None:
        for wait in call.waits:
            try:
                wait._open()
            except BaseException as error:
                self._fail(call, error if isinstance(error, MonarchError) else SpawnError(str(error)))
                return
        call.waits = ()
        self._transmit(call)

    def _transmit(self, call: Call) -> None:
        root = self._own_host
        if root is None:
            root = self.routes.root(call.handle.id, call.handle.hosts_used)
            if root is None:
                self._fail(call, HostLost(f"all hosts of {call.handle.name} are lost", mesh=call.handle.name))
                return
        for host, error in self._lost.items():
            if host in call.handle.hosts_used:
                self._without(call, host, error)
        if not call.left:
            return
        if call.record is not None:
            self._send_to(root, *call.record)
        else:
            self._send_to(root, self.question(call))

    def question(self, call: Call, flags: int = records.UNKNOWN_IS_LOST) -> bytes:
        """A record that asks for the outcome of a call."""
        flags |= records.ASK | (records.QUIET if call.quiet else 0)
        ends = self.ends(call.handle, call.region, call.hosts, call.endpoint, flags, call.sender)
        return records.call_head(ends, call.number)

    def adopt(self, call: Call, sender: int, number: int) -> None:
        """Take over a call of a caller that is gone, and ask for its answers."""
        call.sender, call.number = sender, number
        self.calls[(sender, call.handle.id, number)] = call
        self._transmit(call)

    def on_reply(self, record: Record) -> None:
        """A REPLY record came."""
        status, rank, key = records.parse_reply(record)
        call = self.calls.get(key)
        if call is None:
            if key[0] == self.sender:  # had before: whoever kept it did not hear that
                self._release(key[0], key[1], key[2])
            return
        if rank == _ALL:
            self._fail(call, failed_call(call, error_from_json(record[REPLY_BODY:])))
            return
        region = call.region
        whole = region is call.handle.region or len(call.got) == 1
        position = (rank if len(call.got) > 1 else 0) if whole else region.position_of(rank)
        self._answer(call, position, Answer(call, rank, status, record), status in _FAILED)

    def _answer(self, call: Call, position: int, make: Callable[[], Any], failed: bool) -> None:
        if call.got[position]:
            return
        call.got[position] = 1
        call.left -= 1
        call.answer(position, make, failed)
        if call.left == 0:
            call.finished()
            self._done(call)

    def _done(self, call: Call) -> None:
        key = (call.sender, call.handle.id, call.number)
        if self.calls.pop(key, None) is None:
            return
        call.record = None
        for carried in call.carried:
            self._io.loop.call_later(CLAIM_WITHIN, carried.let_go)
        self._release(*key)

    def _release(self, sender: int, mesh: int, number: int) -> None:
        self._released.setdefault((sender, mesh), []).append(number)
        self._release_count += 1
        if self._release_count >= _RELEASE_CALLS:
            self.flush_releases()
        elif not self._release_due:
            self._release_due = True
            self._io.loop.call_later(_RELEASE_AFTER, self.flush_releases)

    def flush_releases(self) -> None:
        """Say of all finished calls that what is kept of them may go."""
        self._release_due = False
        self._release_count = 0
        released, self._released = self._released, {}
        for (sender, mesh), numbers in released.items():
            root = self._own_host if self._own_host is not None else self.routes.root(mesh, ())
            if root is not None:
                self._send_to(root, records.release(sender, mesh, numbers))

    def on_stable(self, record: Record) -> None:
        """A STABLE record came: the hosts have the call. A quiet one is over with that."""
        call = self.calls.get(records.parse_keyed(record))
        if call is not None:
            call.record = None
            if call.quiet:
                call.left = 0
                self._done(call)

    def resend(self, root: int) -> None:
        """The daemon of this root knows nothing of us any more: tell it again, in order."""
        for call in list(self.calls.values()):
            if not call.waits and (self._own_host is not None or self._root_of(call) == root):
                self._transmit(call)

    def _root_of(self, call: Call) -> int | None:
        return self.routes.root(call.handle.id, call.handle.hosts_used)

    def host_lost(self, host: int, error: MonarchError) -> None:
        """No word from a host: its ranks fail, and calls that had it as their root go through another."""
        self._lost[host] = error
        moved = set(self.routes.lost(host))
        for call in list(self.calls.values()):
            if host not in call.handle.hosts_used or call.waits:
                continue
            self._without(call, host, error)
            if call.handle.id in moved and call.left > 0:
                self._transmit(call)

    def host_back(self, host: int) -> None:
        """It is there again."""
        self._lost.pop(host, None)
        self.routes.back(host)

    def _without(self, call: Call, host: int, error: MonarchError) -> None:
        """The ranks on a lost host fail."""
        handle = call.handle
        whole = call.region is handle.region
        for position in range(len(call.region)):
            if handle.hosts[position if whole else call.region.rank_at(position)] == host:
                self._answer(call, position, _raiser(error), True)

    def fail_all(self, error: MonarchError, *, broken: bool) -> None:
        """Every call fails; with `broken`, later ones too."""
        with self._lock:
            if broken:
                self._broken = error
            calls = list(self.calls.values())
        for call in calls:
            self._fail(call, error)
        self._held.clear()

    def _fail(self, call: Call, error: MonarchError) -> None:
        for position in range(len(call.region)):
            if not call.got[position]:
                call.answer(position, _raiser(error), True)
        call.got = bytearray(b"\1" * len(call.got))
        call.left = 0
        call.finished()
        self._done(call)


class Answer:
    """One answer, unopened; calling it opens it."""

    __slots__ = ("call", "rank", "record", "status")

    def __init__(self, call: Call, rank: int, status: int, record: Record) -> None:
        self.call = call
        self.rank = rank
        self.status = status
        self.record = record

    def __call__(self) -> Any:
        body = memoryview(self.record)[REPLY_BODY:]
        if self.status == Status.RESULT:
            return pickling.loads(*pickling.decode(body))
        if self.status == Status.FAULT:
            raise failed_call(self.call, error_from_json(body))
        exception, trace = pickling.loads_exception(body)
        handle = self.call.handle
        text = f"{self.where()} raised {type(exception).__name__}.\n{trace}"
        raise ActorError(exception, text, mesh=handle.name, rank=self.rank, host=handle.hosts[self.rank])

    def where(self) -> str:
        """Which call of which rank this answers, for error texts."""
        handle = self.call.handle
        rank = f"rank {self.rank} of {handle.region.extent!r} (host {handle.hosts[self.rank]})"
        return f"Actor call {handle.name}.{self.call.endpoint} failed: {rank}"


def failed_call(call: Call, error: MonarchError) -> MonarchError:
    """Why a call was not answered, with the call in front."""
    if not isinstance(error, SupervisionError):
        return error
    text = f"Endpoint call {call.handle.name}.{call.endpoint}() failed, {error.message}"
    return type(error)(text, mesh=error.mesh, rank=error.rank, host=error.host)


def _raiser(error: BaseException) -> Callable[[], Any]:
    def make() -> Any:
        raise error

    return make


def pack_region(region: Region) -> bytes:
    """Labels and sizes of a slice, for the head of a call."""
    return ",".join(f"{label}={size}" for label, size in zip(region.labels, region.sizes, strict=True)).encode()


def unpack_region(packed: bytes) -> Region:
    """What `pack_region` wrote. A slice of no dimensions is the empty text."""
    parts = [part.rpartition("=") for part in packed.decode().split(",") if part]
    return Region.row_major([label for label, _, _ in parts], [int(size) for _, _, size in parts])
