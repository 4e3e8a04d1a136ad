"""Circles of waits: each is found soon, and nothing else is taken for one."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from monarch_kernel.state.waits import EVERY, FIRST, HOPS, SECOND, Activity, Circle, Probe, Wait, Waits

TICK = 0.25


@dataclass(eq=False)
class Message:
    key: tuple[int, int, int]
    target: int
    caller: Message | None
    waits: dict[tuple[int, int, int], set[int]] = field(default_factory=dict)
    answered: bool = False


class World:
    """Actors of some processes, their messages, and the probes between them; time is injected."""

    def __init__(self, processes: list[int]) -> None:
        self.processes = processes  # of each actor
        self.books = {process: Waits(process) for process in set(processes)}
        self.queues: list[deque[Message]] = [deque() for _ in processes]
        self.probes: list[Probe] = []
        self.found: list[Circle] = []
        self.broken: set[tuple[int, int]] = set()  # waits that ended because they were found
        self.now = 0.0
        self._numbers = count(1)

    def current(self, actor: int) -> Message | None:
        return self.queues[actor][0] if self.queues[actor] else None

    def call(self, caller: int | None, targets: list[int]) -> tuple[int, int, int]:
        message = self.current(caller) if caller is not None else None
        key = (0 if caller is None else self.processes[caller], 7, next(self._numbers))
        if message is not None:
            message.waits[key] = set(targets)
        for target in targets:
            self.queues[target].append(Message(key, target, message))
        return key

    def end(self, actor: int) -> None:
        message = self.queues[actor].popleft()
        message.answered = True
        if message.caller is not None and message.key in message.caller.waits:
            missing = message.caller.waits[message.key]
            missing.discard(actor)
            if not missing:
                del message.caller.waits[message.key]

    def activity(self, actor: int) -> Activity:
        message = self.current(actor)
        if message is None:
            return Activity(0, f"a[{actor}]", "", ())
        waits = tuple(Wait(key, f"m{key[2]}", ((0, tuple(sorted(ranks))),)) for key, ranks in message.waits.items())
        return Activity(id(message), f"a[{actor}]", f"m{message.key[2]}", waits)

    def tick(self, process: int) -> None:
        mine = [self.activity(a) for a, p in enumerate(self.processes) if p == process]
        self.probes += self.books[process].observe(mine, self.now)

    def deliver(self, index: int) -> None:
        probe = Probe.from_dict(json.loads(json.dumps(self.probes.pop(index).to_dict())))
        for actor in probe.ranks:
            message = next((m for m in self.queues[actor] if m.key == probe.key), None)
            if message is None:
                continue
            current = self.current(actor)
            book = self.books[self.processes[actor]]
            found = book.arrived(probe, message is not current, self.activity(actor), self.now)
            if isinstance(found, Circle):
                self.check(found, current)
                self.found.append(found)
                self.broken |= {(actor, other) for other in current.waits.pop(found.key)}  # it raises there
            else:
                self.probes += found

    def check(self, circle: Circle, message: Message) -> None:
        assert message.waits.get(circle.key), "a wait that is over was reported"
        actors = [int(step.actor[2:-1]) for step in circle.steps]
        assert actors[0] == actors[-1] == message.target
        for waits, needed in pairwise(actors):
            # Another circle that shares a wait with this one may have been found while the probe was on its way.
            assert needed in self.edges(waits) or (waits, needed) in self.broken, "there is no such circle"

    def edges(self, actor: int) -> set[int]:
        message = self.current(actor)
        return set().union(*message.waits.values()) if message is not None else set()

    def needs(self, actor: int) -> set[int]:
        """All that must end for this actor's message to end."""
        found: set[int] = set()
        todo = [*self.edges(actor)]
        while todo:
            other = todo.pop()
            if other not in found:
                found.add(other)
                todo += self.edges(other)
        return found

    def stuck(self) -> list[int]:
        return [actor for actor in range(len(self.processes)) if actor in self.needs(actor)]

    def run(self, seconds: float) -> None:
        """Let time pass, every probe delivered at once."""
        until = self.now + seconds
        while self.now < until:
            self.now += TICK
            for process in self.books:
                self.tick(process)
            while self.probes:
                self.deliver(0)


def circle_of(processes: list[int]) -> World:
    """Each actor waits for the next, the last for the first."""
    world = World(processes)
    world.call(None, [0])
    for actor in range(1, len(processes)):
        world.call(actor - 1, [actor])
    world.call(len(processes) - 1, [0])
    return world


@pytest.mark.parametrize("processes", [[1], [1, 1], [1, 2], [1, 2, 3], [1, 2, 1, 2], list(range(1, HOPS + 1))])
def test_a_circle_is_found_by_one_wait_within_a_second(processes):
    world = circle_of(processes)
    world.run(FIRST + 2 * TICK)
    assert len(world.found) == 1
    assert not world.stuck()


def test_nothing_is_sent_before_a_wait_has_lasted():
    world = circle_of([1, 2])
    for _ in range(2):
        world.tick(1)
        world.tick(2)
        world.now += FIRST - 0.01
    assert world.probes == []
    world.now += 0.02
    world.tick(1)
    assert len(world.probes) == 1


def test_a_circle_that_closes_late_is_found_by_the_wait_that_closed_it():
    world = World([1, 2, 3])
    world.call(None, [0])
    world.call(0, [1])
    world.call(1, [2])
    world.run(100)
    assert world.found == []
    world.call(2, [0])
    world.run(FIRST + 2 * TICK)
    (found,) = world.found
    assert found.steps[0].actor == "a[2]"


def test_what_was_lost_is_asked_again_and_then_anybody_reports_it():
    world = circle_of([1, 2])
    world.tick(1)
    world.tick(2)
    world.now = FIRST
    world.tick(1)
    world.tick(2)
    world.probes.clear()
    world.now = SECOND
    world.tick(1)
    while world.probes:
        world.deliver(0)
    assert len(world.found) == 1
    assert world.found[0].steps[0].process == 1


def test_later_probes_are_far_apart():
    world = World([1, 2])
    world.call(None, [0])
    world.call(0, [1])
    sent = []
    while world.now < 60:
        world.tick(1)
        sent += [world.now] * len(world.probes)
        world.probes.clear()
        world.now += TICK
    assert sent == [FIRST, SECOND, *[SECOND + EVERY * n for n in range(1, 6)]]


def test_a_wait_for_a_mesh_is_in_a_circle_with_any_of_its_ranks():
    world = World([1, 2, 3])
    world.call(None, [0])
    world.call(0, [1, 2])  # rank 2 is busy
    world.call(1, [0])
    world.run(2)
    assert len(world.found) == 1


def test_a_rank_that_has_answered_is_asked_no_more():
    world = World([1, 2, 3])
    world.call(None, [0])
    world.call(0, [1, 2])
    world.end(1)
    world.call(None, [1])
    world.call(1, [0])  # waits for the one that waits for rank 2 only
    world.run(30)
    assert world.found == []


def test_the_circle_is_told_in_order_with_what_is_queued_behind_what():
    world = circle_of([1, 2])
    world.run(2)
    (found,) = world.found
    told = {
        "a[0]": [
            "a[0].m1 waits for a[1].m2",
            "a[1].m2 waits for a[0].m3",
            "a[0].m3 cannot be answered before a[0].m1 has ended",
        ],
        "a[1]": [
            "a[1].m2 waits for a[0].m3",
            "a[0].m3 cannot be answered before a[0].m1 has ended",
            "a[0].m1 waits for a[1].m2",
        ],
    }
    assert found.lines() == told[found.steps[0].actor]


def test_a_crowd_in_front_of_a_circle_sends_each_probe_on_once():
    world = circle_of([1, 2])
    outside = World.call
    world.processes += [3] * 20
    world.queues += [deque() for _ in range(20)]
    world.books[3] = Waits(3)
    for actor in range(2, 22):
        outside(world, None, [actor])
        outside(world, actor, [0, 1])
    world.books[1].arrived = world.books[2].arrived = lambda *a: []  # type: ignore[method-assign]
    world.now = 0.0
    world.tick(3)
    world.now = FIRST
    world.tick(3)
    assert len(world.probes) == 20
    del world.books[1].arrived, world.books[2].arrived
    handed = 0
    while world.probes and handed < 1000:
        world.deliver(0)
        handed += 1
    assert handed <= 20 * 4
    assert world.found == []


class Actors(RuleBasedStateMachine):
    """Actors call each other and answer in any order, while probes are on their way for any time."""

    @initialize(processes=st.lists(st.integers(1, 3), min_size=1, max_size=6))
    def begin(self, processes):
        self.world = World(processes)
        for actor in range(len(processes)):
            self.world.call(None, [actor])

    @rule(data=st.data())
    def call(self, data):
        world = self.world
        everyone = list(range(len(world.processes)))
        caller = data.draw(st.sampled_from([None, *(a for a in everyone if world.current(a) is not None)]))
        world.call(caller, data.draw(st.lists(st.sampled_from(everyone), min_size=1, max_size=3, unique=True)))

    @precondition(lambda self: any(q and not q[0].waits for q in self.world.queues))
    @rule(data=st.data())
    def answer(self, data):
        free = [a for a, queue in enumerate(self.world.queues) if queue and not queue[0].waits]
        self.world.end(data.draw(st.sampled_from(free)))

    @rule(seconds=st.sampled_from([0.1, TICK, 0.7, 11.0]))
    def passes(self, seconds):
        self.world.now += seconds

    @rule(data=st.data())
    def tick(self, data):
        self.world.tick(data.draw(st.sampled_from(sorted(self.world.books))))

    @precondition(lambda self: self.world.probes)
    @rule(data=st.data(), lost=st.booleans())
    def deliver(self, data, lost):
        index = data.draw(st.integers(0, len(self.world.probes) - 1))
        if lost:
            del self.world.probes[index]
        else:
            self.world.deliver(index)  # checks what is found

    @invariant()
    def probes_are_bounded(self):
        if hasattr(self, "world"):
            assert all(len(probe.path) <= HOPS for probe in self.world.probes)

    def teardown(self):
        if hasattr(self, "world"):
            world = self.world
            while world.stuck():  # a circle that is broken may leave another
                before = len(world.found)
                world.run(EVERY + 1)
                assert len(world.found) > before, "a circle was not found"


TestActors = Actors.TestCase
