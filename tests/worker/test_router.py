"""Casts under every death: the real router, book of calls, callers and executors, on a network that the test is.

Three hosts, one mesh of four ranks (two of them on host 0, the root), a controller, and two actors that call the mesh
themselves. Records are delivered one at a time from links that are first in, first out; between any two deliveries a
daemon may be restarted (what is queued on its links is lost, and who notices when is open), a host lost, the
controller killed.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from monarch_worker.router import Router

from monarch_kernel.actor._actors import NONE
from monarch_kernel.actor._calls import Call, Caller
from monarch_kernel.actor._executor import Executor
from monarch_kernel.actor._handle import Handle
from monarch_kernel.errors import HostLost, MonarchError, OutcomeUnknown, SupervisionError
from monarch_kernel.protocol import records
from monarch_kernel.protocol.records import Kind, Status
from monarch_kernel.state.ledger import Ledger
from monarch_kernel.state.records import MeshRecord

MESH = 7
HOSTS = (0, 0, 1, 2)
RECORD = MeshRecord(
    id=MESH, kind="actors", name="m", labels=("r",), sizes=(4,), hosts=HOSTS, procs=5, proc_ranks=(0, 1, 2, 3)
)
PARTS = {"all": slice(None), "0": 0, "2": 2, "3": 3, "1-2": slice(1, 3), "2-3": slice(2, 4), "0,3": slice(0, 4, 3)}


class Way:
    """A link: two queues, and whether the end that accepts knows it."""

    def __init__(self) -> None:
        self.there: deque[bytes] = deque()  # from the end that dials
        self.back: deque[bytes] = deque()
        self.up = False
        self.carried = False  # by a stream, ever, as the end knows that dials

    def renew(self) -> None:
        """An end forgot it: what was on the way is lost."""
        self.there.clear()
        self.back.clear()
        self.up = False


class Sends:
    """What has `send`, for the real code."""

    def __init__(self, queue: deque[bytes]) -> None:
        self.queue = queue

    def send(self, *chunks: Any) -> None:
        self.queue.append(b"".join(map(bytes, chunks)))


class Origin(Sends):
    """A controller, a host or a process, as the daemon sees it that it dialled (or that dials it)."""

    def __init__(self, kind: str, number: Any, queue: deque[bytes]) -> None:
        super().__init__(queue)
        self.kind, self.id = kind, number
        self.dead = self.ending = None
        self.sender = 0
        self.link = self


class Made(Call):
    """A call that writes down what it is answered."""

    def __init__(self, handle: Handle, region: Any, hosts: Any) -> None:
        super().__init__(handle, region, "f", hosts)
        self.answers: dict[int, Any] = {}
        self.is_finished = False

    def answer(self, position: int, make: Any, failed: bool) -> None:
        rank = self.region.rank_at(position)
        assert rank not in self.answers
        try:
            self.answers[rank] = make()
        except MonarchError as error:
            self.answers[rank] = error

    def finished(self) -> None:
        assert not self.is_finished
        self.is_finished = True


class IO:
    """An I/O thread that runs everything at once, and timers when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Any] = []
        self.loop = SimpleNamespace(call_later=lambda seconds, job: self.timers.append(job))

    def check_process(self) -> None:
        pass

    def post(self, job: Any, *args: Any) -> None:
        job(*args)

    def due(self) -> None:
        timers, self.timers = self.timers, []
        for job in timers:
            job()


class Program:
    """Whoever calls: the real `Caller`."""

    def __init__(self, sender: int, way_to: Any, own_host: int | None) -> None:
        self.io = IO()

        def send(host: int, *chunks: Any) -> None:
            way_to(host).append(b"".join(map(bytes, chunks)))

        self.caller = Caller(self.io, sender, send, send, own_host)
        runtime = SimpleNamespace(io=self.io)
        self.handle = Handle(runtime, RECORD)
        self.made: list[Made] = []
        self.own_host = own_host

    def call(self, part: str) -> Made:
        handle = self.handle
        region = handle.region if part == "all" else handle.region.sliced({"r": PARTS[part]})
        hosts = sorted({HOSTS[rank] for rank in region.ranks()})
        if region is not handle.region and len(hosts) > 1:
            hosts = [HOSTS[rank] for rank in region.ranks()]
        made = Made(handle, region, hosts)
        ends = self.caller.ends(handle, region, hosts, "f", 0)
        self.caller.submit(made, ends, [b"body"], ())
        self.made.append(made)
        return made

    def take(self, record: bytes) -> None:
        if record[0] == Kind.REPLY:
            self.caller.on_reply(record)
        elif record[0] == Kind.STABLE:
            self.caller.on_stable(record)


class Rank:
    """One process with one actor: the real `Executor`, an actor that answers when it is told to, and its own calls."""

    def __init__(self, world: World, rank: int) -> None:
        self.rank, self.host = rank, HOSTS[rank]
        self.way = Way()
        self.ran: list[tuple[int, int, int]] = []
        self.inbox: deque[Any] = deque()
        self.executor = Executor(IO(), lambda sender, at_once, *chunks: self._say(*chunks), self.host)
        self.executor.actors[MESH] = self
        self.program = Program(1000 + rank, lambda host: self.way.there, self.host)
        self.thread = threading.current_thread()

    def _say(self, *chunks: Any) -> None:
        self.way.there.append(b"".join(map(bytes, chunks)))

    def put(self, item: Any) -> None:
        key = item[0].key
        assert key not in self.ran, f"rank {self.rank} runs {key} a second time"
        last = max((number for sender, _, number in self.ran if sender == key[0]), default=0)
        assert key[2] > last, f"rank {self.rank} runs {key} after {last}"
        self.ran.append(key)
        self.inbox.append(item)

    def finish(self) -> None:
        item = self.inbox.popleft()
        self.executor.answer(item, self.rank, Status.RESULT, [NONE], False)

    def take(self, record: bytes) -> None:
        if record[0] == Kind.CALL:
            self.executor.on_call(record)
        elif record[0] == Kind.RELEASE:
            self.executor.on_release(record)
        else:
            self.program.take(record)

    def tell_again(self) -> None:
        under_way = self.executor.under_way()
        if under_way:
            self._say(*records.notice(Kind.PULSE, {"under_way": under_way}))
        for _, chunks in self.executor.unreleased():
            self._say(*chunks)
        self.program.caller.resend(self.host)


class Daemon:
    """One host: the real `Router` and `Ledger`, and the other ends as it knows them."""

    def __init__(self, world: World, index: int) -> None:
        self.world, self.index = world, index
        self.lost: set[int] = set()
        self.start()

    def start(self) -> None:
        world = self.world
        registry = SimpleNamespace(get=lambda mesh: RECORD if mesh == MESH else None)
        self.ledger = Ledger()
        host = SimpleNamespace(index=self.index, ledger=self.ledger, registry=registry)
        self.router = Router(host, lambda proc, record: None)
        self.ranks = {}
        for rank in world.ranks:
            if rank.host == self.index:
                self.ranks[rank.rank] = origin = Origin("proc", rank.rank, rank.way.back)
                origin.sender = rank.program.caller.sender
        self.router.procs = SimpleNamespace(
            actors={MESH: self.ranks}, why_not=lambda record, rank: SupervisionError("no"), stopped={}
        )
        self.router.peers = self
        # Who dialled in, by number of the host or controller.
        self.hosts: dict[int, Origin] = {}
        self.controllers: dict[int, Origin] = {}

    # -- as `Peers`

    def to(self, host: int) -> Any:
        return None if host in self.lost else Origin("host", host, self.world.between[self.index, host].there)

    def caller(self, sender: int) -> Any:
        return self.controllers.get(sender) or next((o for o in self.ranks.values() if o.sender == sender), None)

    def heard(self, origin: Any, what: Any) -> None:
        raise AssertionError


class World(RuleBasedStateMachine):
    """All of it, and what may happen."""

    @initialize(deaths=st.sets(st.sampled_from(["daemon", "host", "controller", "silence"])))
    def begin(self, deaths: set[str]) -> None:
        self.deaths = deaths  # the kinds that there are this time, or rare ones would hardly ever come alone
        self.given_up = False
        self.ranks = [Rank(self, rank) for rank in range(4)]
        self.between = {(a, b): Way() for a in range(3) for b in range(3) if a != b}
        self.daemons = [Daemon(self, index) for index in range(3)]
        self.dead_hosts: set[int] = set()
        self.old: list[Program] = []
        self.restarted: set[int] = set()
        self.links: dict[tuple[int, int], Way] = {}
        self.number = 0
        self.attach()
        for pair in self.between:
            self.meet(pair)
        for rank in self.ranks:
            rank.way.up = True

    def attach(self) -> None:
        """A new controller; every host ends the links of the one before."""
        self.number += 1
        sender = self.number
        for host in range(3):
            self.links[sender, host] = Way()
        self.controller: Program | None = Program(sender, lambda host: self.links[sender, host].there, None)
        for host in self.alive():
            for old in list(self.daemons[host].controllers):
                self.forget_controller(host, old)
            self.join(host)
        for host in self.dead_hosts:
            self.controller.caller.host_lost(host, HostLost("lost", host=host))

    def alive(self) -> list[int]:
        return [host for host in range(3) if host not in self.dead_hosts]

    # -- links come up

    def join(self, host: int) -> None:
        """The controller's link to a host's daemon that does not know it."""
        assert self.controller is not None
        sender = self.controller.caller.sender
        way, daemon = self.links[sender, host], self.daemons[host]
        if way.up:
            return
        first = not way.carried
        way.back.clear()  # what was queued for a link that is not taken up again
        if not first:
            way.there.clear()
        way.up = way.carried = True
        origin = daemon.controllers[sender] = Origin("controller", sender, way.back)
        daemon.router.origin_renewed(origin)
        if not first:
            self.controller.caller.resend(host)

    def meet(self, pair: tuple[int, int]) -> None:
        """The link that one daemon dials to another."""
        a, b = pair
        way = self.between[pair]
        if way.up or a in self.dead_hosts or b in self.dead_hosts:
            return
        first = not way.carried
        way.back.clear()
        if not first:
            way.there.clear()
        way.up = way.carried = True
        there = self.daemons[b].hosts.get(a)
        if there is None:
            there = self.daemons[b].hosts[a] = Origin("host", a, way.back)
        there.queue = way.back
        self.daemons[b].router.origin_renewed(there)
        if not first:
            self.daemons[a].router.peer_renewed(b)

    def come_back(self, rank: Rank) -> None:
        """A process finds its daemon's successor."""
        if not rank.way.up and rank.host not in self.dead_hosts:
            rank.way.there.clear()
            rank.way.up = True
            rank.tell_again()

    # -- deliveries

    def queues(self) -> list[Any]:
        """Every queue that has something, with what takes it."""
        found: list[tuple[deque[bytes], Any]] = []
        for (a, b), way in self.between.items():
            if way.up and a not in self.dead_hosts and b not in self.dead_hosts:
                found.append((way.there, lambda r, a=a, b=b: self.to_daemon(b, self.daemons[b].hosts.get(a), r)))
                other = Origin("host", b, way.there)
                found.append((way.back, lambda r, a=a, o=other: self.to_daemon(a, o, r)))
        if self.controller is not None:
            sender = self.controller.caller.sender
            for host in self.alive():
                way = self.links[sender, host]
                if way.up:
                    d = self.daemons[host]
                    found.append((way.there, lambda r, h=host, d=d: self.to_daemon(h, d.controllers[sender], r)))
                    found.append((way.back, self.controller.take))
        for rank in self.ranks:
            if rank.way.up and rank.host not in self.dead_hosts:
                origin = self.daemons[rank.host].ranks[rank.rank]
                found.append((rank.way.there, lambda r, k=rank, o=origin: self.to_daemon(k.host, o, r)))
                found.append((rank.way.back, rank.take))
        return [pair for pair in found if pair[0]]

    def to_daemon(self, host: int, origin: Any, record: bytes) -> None:
        if origin is not None:
            self.daemons[host].router.take(origin, [record])

    @rule(choice=st.lists(st.integers(0, 20), min_size=1, max_size=6))
    def deliver(self, choice: list[int]) -> None:
        for number in choice:
            if queues := self.queues():
                queue, take = queues[number % len(queues)]
                take(queue.popleft())

    # -- what programs do

    @precondition(lambda self: self.controller is not None)
    @rule(parts=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4))
    def controller_calls(self, parts: list[str]) -> None:
        assert self.controller is not None
        for part in parts:
            self.controller.call(part)

    @rule(rank=st.sampled_from([0, 2]), part=st.sampled_from(sorted(PARTS)))
    def an_actor_calls(self, rank: int, part: str) -> None:
        if HOSTS[rank] not in self.dead_hosts:
            self.ranks[rank].program.call(part)

    @rule(choice=st.integers(0, 3))
    def an_actor_answers(self, choice: int) -> None:
        rank = self.ranks[choice]
        if rank.inbox and rank.host not in self.dead_hosts:
            rank.finish()

    @rule()
    def releases_are_due(self) -> None:
        for program in self.programs():
            program.io.due()

    def programs(self) -> list[Program]:
        live = [rank.program for rank in self.ranks if rank.host not in self.dead_hosts]
        return [*live, *([self.controller] if self.controller is not None else [])]

    # -- what dies

    @precondition(lambda self: "daemon" in self.deaths)
    @rule(host=st.integers(0, 2))
    def a_daemon_is_restarted(self, host: int) -> None:
        if host in self.dead_hosts:
            return
        self.restarted.add(host)
        for pair, way in self.between.items():
            if pair[0] == host:
                way.renew()
                way.carried = False
            elif pair[1] == host and way.carried:
                way.renew()
        for (_, other), way in self.links.items():
            if other == host:
                way.renew()
        for rank in self.ranks:
            if rank.host == host:
                rank.way.renew()
        lost = self.daemons[host].lost
        self.daemons[host].start()
        self.daemons[host].lost = lost

    @rule(choice=st.integers(0, 20))
    def somebody_finds_a_daemons_successor(self, choice: int) -> None:
        waiting: list[Any] = [lambda p=pair: self.meet(p) for pair, way in self.between.items() if not way.up]
        waiting += [lambda r=rank: self.come_back(r) for rank in self.ranks if not rank.way.up]
        if self.controller is not None:
            waiting += [lambda h=host: self.join(h) for host in self.alive()]
        waiting[choice % len(waiting)]() if waiting else None

    @precondition(lambda self: not self.dead_hosts and "host" in self.deaths)
    @rule(host=st.integers(0, 2))
    def a_host_is_lost(self, host: int) -> None:
        self.dead_hosts.add(host)

    @rule(who=st.integers(0, 3), timer=st.booleans())
    def somebody_notices_a_lost_host(self, who: int, timer: bool) -> None:
        for host in self.dead_hosts:
            self.notice(who, host, timer)

    def notice(self, who: int, host: int, timer: bool) -> None:
        """A daemon or (3) the controller; a daemon has two links to a host, whose windows close at their own times."""
        error = HostLost("lost", host=host)
        if who == 3:
            if self.controller is not None and host not in self.controller.caller._lost:
                self.controller.caller.host_lost(host, error)
            return
        daemon = self.daemons[who]
        if who in self.dead_hosts:
            return
        if timer:
            if (origin := daemon.hosts.pop(host, None)) is not None:
                daemon.router.origin_gone(origin)
        elif host not in daemon.lost:
            daemon.lost.add(host)
            daemon.router.host_lost(host, error)

    @precondition(lambda self: self.controller is not None and "controller" in self.deaths)
    @rule()
    def the_controller_is_killed(self) -> None:
        assert self.controller is not None
        self.old.append(self.controller)
        self.controller = None

    @precondition(lambda self: self.controller is None)
    @rule(host=st.integers(0, 2))
    def a_host_gives_a_killed_controller_up(self, host: int) -> None:
        for sender in list(self.daemons[host].controllers):
            if host not in self.dead_hosts:
                self.forget_controller(host, sender)

    @precondition(lambda self: self.controller is not None and "silence" in self.deaths)
    @rule(host=st.integers(0, 2))
    def a_host_gives_a_silent_controller_up(self, host: int) -> None:
        """It was stopped for longer than the window, and will go on."""
        sender = self.controller.caller.sender
        if host not in self.dead_hosts and sender in self.daemons[host].controllers:
            self.given_up = True
            self.links[sender, host].renew()
            self.forget_controller(host, sender)

    def forget_controller(self, host: int, sender: int) -> None:
        origin = self.daemons[host].controllers.pop(sender)
        self.daemons[host].router.origin_gone(origin)

    @precondition(lambda self: self.controller is None)
    @rule()
    def another_controller_attaches(self) -> None:
        self.attach()

    # -- the end

    @invariant()
    def the_books_add_up(self) -> None:
        for host in getattr(self, "daemons", []):
            assert host.ledger.running == sum(bool(entry.waiting) for entry in host.ledger.entries.values())

    def settle(self) -> None:
        """Everybody notices everything, and all that is on its way arrives."""
        for _ in range(2000):
            for host in self.dead_hosts:
                for who in range(4):
                    self.notice(who, host, True)
                    self.notice(who, host, False)
            for pair in self.between:
                self.meet(pair)
            for rank in self.ranks:
                self.come_back(rank)
            if self.controller is not None:
                for host in self.alive():
                    self.join(host)
            queues = self.queues()
            for queue, take in queues:
                while queue:
                    take(queue.popleft())
            busy = [rank for rank in self.ranks if rank.inbox and rank.host not in self.dead_hosts]
            for rank in busy:
                rank.finish()
            self.releases_are_due()
            if not queues and not busy and not any(program.io.timers for program in self.programs()):
                return
        raise AssertionError("it does not come to rest")

    def teardown(self) -> None:
        if not hasattr(self, "daemons"):
            return
        if self.controller is None:
            self.attach()
        self.settle()
        assert self.controller is not None
        live = {rank.rank for rank in self.ranks if rank.host not in self.dead_hosts}
        for program in self.programs():
            for call in program.made:
                assert call.is_finished, (call.number, call.answers)
                ran = {rank for rank in call.region.ranks() if key_of(call) in self.ranks[rank].ran}
                for rank, answer in call.answers.items():
                    if rank in live and not self.given_up:
                        assert rank in ran, "a rank that can be reached did not get it"
                        assert answer is None, answer
                    elif rank in live:
                        assert answer is None if rank in ran else isinstance(answer, OutcomeUnknown), answer
                    else:
                        assert answer is None or isinstance(answer, HostLost), answer
        self.look_after_the_dead(live)
        self.books_are_empty()

    def look_after_the_dead(self, live: set[int]) -> None:
        """What killed controllers called: every host has it or none does; else its outcome is told as unknown."""
        assert self.controller is not None
        for old in self.old:
            for call in old.made:
                ranks = set(call.region.ranks()) & live
                ran = {rank for rank in ranks if key_of(call) in self.ranks[rank].ran}
                if not self.restarted or (self.restarted == {0} and ran - {0, 1}):
                    # Of a restarted daemon's own ranks one may have it whose bytes no daemon has. And where two hosts
                    # hand on what they have, a later call may come first: order is kept, and the earlier one refused.
                    overtaken = {rank for rank in ranks - ran if self.ran_later(rank, call)}
                    assert ran in (set(), ranks - overtaken), (call.number, ran)
                if any(key_of(call) in self.daemons[host].ledger.entries for host in self.alive()):
                    asked = Made(self.controller.handle, call.region, call.hosts)
                    if call.region is old.handle.region:
                        asked.region = self.controller.handle.region
                    self.controller.caller.adopt(asked, call.sender, call.number)
                    self.settle()
                    assert asked.is_finished
                    for rank in ranks:
                        answer = asked.answers[rank]
                        assert answer is None if rank in ran else isinstance(answer, OutcomeUnknown | HostLost)
                    assert {rank for rank in ranks if key_of(call) in self.ranks[rank].ran} == ran, "it ran later"

    def ran_later(self, rank: int, call: Made) -> bool:
        return any(sender == call.sender and number > call.number for sender, _, number in self.ranks[rank].ran)

    def books_are_empty(self) -> None:
        """Nothing of calls whose callers have their answers is kept, and no lease waits for them."""
        self.settle()
        senders = {program.caller.sender for program in self.programs()}
        for host in self.alive():
            assert self.daemons[host].ledger.running == 0
            if not self.restarted and not self.dead_hosts:
                assert [key for key in self.daemons[host].ledger.entries if key[0] in senders] == []


def key_of(call: Made) -> tuple[int, int, int]:
    return (call.sender, MESH, call.number)


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


DEATHS: dict[str, list[str]] = {
    "root": ["host 0"],
    "root's daemon": ["daemon 0"],
    "another daemon": ["daemon 1"],
    "another host": ["host 1"],
    "controller": ["controller"],
    "controller, then root": ["controller", "host 0"],
    "root, then controller": ["host 0", "controller"],
    "controller, then the root's daemon": ["controller", "daemon 0"],
    "both daemons": ["daemon 0", "daemon 1"],
    "silence, then root": ["silence", "host 0"],
}
CALLS = [["all"], ["all", "2", "all"], ["2-3", "0", "all", "3", "1-2", "all"], ["0,3", "all", "2-3", "all", "2", "3"]]


@pytest.mark.parametrize("deaths", DEATHS.values(), ids=list(DEATHS))
@pytest.mark.parametrize("calls", CALLS, ids=["cast", "three", "mixed", "more"])
def test_a_cast_cut_at_every_point(calls, deaths):
    """In many orders of delivery; each order is cut after every step of it."""
    for seed in range(4):
        for cut in range(40):
            choose = random.Random(seed)
            world = World()
            world.begin({"all"})
            for part in calls:
                world.controller.call(part)
            if not advance(world, choose, cut):
                break
            try:
                for death in deaths:
                    die(world, death)
                    advance(world, choose, choose.randrange(3))
                notice_in_any_order(world, choose)
                world.teardown()
            except AssertionError as error:
                error.add_note(f"order {seed}, cut after {cut}")
                raise


def advance(world, choose, steps):
    """So many deliveries, with answers between them; whether there were so many."""
    for _ in range(steps):
        queues = world.queues()
        busy = [rank for rank in world.ranks if rank.inbox and rank.host not in world.dead_hosts]
        if not queues and not busy:
            return False
        number = choose.randrange(len(queues) + len(busy))
        if number < len(queues):
            queue, take = queues[number]
            take(queue.popleft())
        else:
            busy[number - len(queues)].finish()
    return True


def die(world, what):
    if what == "controller":
        world.the_controller_is_killed()
    elif what == "silence":
        for host in range(3):
            world.a_host_gives_a_silent_controller_up(host)
    elif what.startswith("host"):
        world.a_host_is_lost(int(what[-1]))
    else:
        world.a_daemon_is_restarted(int(what[-1]))


def notice_in_any_order(world, choose):
    """Who finds out what, and when, between deliveries."""
    jobs = [lambda p=pair: world.meet(p) for pair in world.between]
    jobs += [lambda r=rank: world.come_back(r) for rank in world.ranks]
    for host in world.dead_hosts:
        jobs += [lambda w=who, h=host, t=timer: world.notice(w, h, t) for who in range(4) for timer in (True, False)]
    if world.controller is None:
        jobs += [lambda h=host: world.a_host_gives_a_killed_controller_up(h) for host in world.alive()]
    else:
        jobs += [lambda h=host: world.join(h) for host in world.alive()]
    choose.shuffle(jobs)
    for job in jobs:
        job()
        advance(world, choose, choose.randrange(4))
