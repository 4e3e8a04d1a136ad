"""Everywhere or nowhere: by example, and with hosts, messages and heads that come and go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from monarch_kernel.state.registry import MeshRecord, RankChanged, Registry, StartRanks, Swapped
from monarch_kernel.state.spawn import Done, Failed, Fault, Participant, Record, Reply, Send, SpawnCoordinator, Step

MESH = 7


def answer(what: Any, generation: int = 1, fault: Fault | None = None) -> Reply:
    return Reply(MESH, generation, what, fault)


def sends(steps: list[Step]) -> list[tuple[int, str]]:
    return [(step.host, step.phase) for step in steps if isinstance(step, Send)]


def record(generation: int = 1, hosts: tuple[int, ...] = (0, 0, 1, 1)) -> MeshRecord:
    return MeshRecord(MESH, "procs", "procs", ("gpus",), (len(hosts),), hosts, generation=generation)


def test_all_prepare_then_all_commit_then_it_is_done() -> None:
    spawn = SpawnCoordinator(MESH, [1, 0], 0.0)
    assert sends(spawn.start(0.0)) == [(0, "prepare"), (1, "prepare")]
    assert spawn.answered(0, answer("prepared"), 1.0) == []
    steps = spawn.answered(1, answer("prepared"), 2.0)
    assert isinstance(steps[0], Record), "the decision is recorded before anybody hears of it"
    assert sends(steps) == [(0, "commit"), (1, "commit")]
    assert spawn.answered(1, answer("committed"), 3.0) == []
    assert spawn.answered(0, answer("committed"), 3.0) == [Record(None), Done()]
    assert spawn.start(4.0) == [Done()]


def test_one_failure_undoes_it_everywhere_and_the_earliest_cause_is_told() -> None:
    spawn = SpawnCoordinator(MESH, [0, 1], 0.0)
    spawn.start(0.0)
    steps = spawn.answered(0, answer("failed", fault=Fault("connection reset", 5.0, 0)), 6.0)
    assert sends(steps) == [(0, "abort"), (1, "abort")]
    cause = Fault("ValueError: lr", 4.0, 1, 3)
    assert spawn.answered(1, answer("failed", fault=cause), 7.0) == []
    spawn.answered(0, answer("aborted"), 8.0)
    assert spawn.answered(1, answer("aborted"), 8.0) == [Record(None), Failed(cause)]


@pytest.mark.parametrize("phase", ["prepare", "commit"])
def test_a_host_lost_on_the_way_fails_the_spawn_and_is_told_when_it_is_back(phase: str) -> None:
    spawn = SpawnCoordinator(MESH, [0, 1], 0.0)
    spawn.start(0.0)
    spawn.answered(0, answer("prepared"), 1.0)
    if phase == "commit":
        spawn.answered(1, answer("prepared"), 1.0)
        spawn.answered(0, answer("committed"), 1.0)
    assert sends(spawn.host_lost(1, 2.0)) == [(0, "abort")]
    steps = spawn.answered(0, answer("aborted"), 3.0)
    assert isinstance(steps[-1], Failed)
    assert spawn.unsettled == (1,)
    assert sends(spawn.host_back(1, 90.0)) == [(1, "abort")]
    assert spawn.answered(1, answer("aborted"), 91.0) == [Record(None)]
    assert not spawn.unsettled


def test_unanswered_messages_are_repeated_and_waiting_hosts_hear_from_the_head() -> None:
    spawn = SpawnCoordinator(MESH, [0, 1], 0.0)
    spawn.start(0.0)
    spawn.answered(0, answer("prepared"), 1.0)
    assert spawn.tick(5.0) == []
    assert sends(spawn.tick(10.0)) == [(0, "prepare"), (1, "prepare")]
    spawn.answered(1, answer("prepared"), 11.0)
    spawn.answered(1, answer("committed"), 12.0)
    assert sends(spawn.tick(25.0)) == [(0, "commit")]


def test_a_spawn_that_is_not_ready_in_time_or_not_wanted_any_more_is_undone() -> None:
    late = SpawnCoordinator(MESH, [0, 1], 0.0, timeout=60.0)
    late.start(0.0)
    late.answered(0, answer("prepared"), 1.0)
    assert sends(late.tick(60.0)) == [(0, "abort"), (1, "abort")]
    assert late.fault == Fault("it was not ready within 60 s", 60.0, 1)
    unwanted = SpawnCoordinator(MESH, [0], 0.0)
    unwanted.start(0.0)
    assert sends(unwanted.cancel("interrupted", 1.0)) == [(0, "abort")]
    unwanted.answered(0, answer("aborted"), 1.0)
    assert unwanted.cancel("interrupted", 2.0) == []


def test_a_replacement_goes_forward_once_it_commits() -> None:
    spawn = SpawnCoordinator(MESH, [0, 1], 0.0, generation=2)
    spawn.start(0.0)
    spawn.answered(0, answer("prepared", 2), 1.0)
    spawn.answered(1, answer("prepared", 2), 1.0)
    spawn.answered(0, answer("committed", 2), 1.0)
    assert spawn.host_lost(1, 2.0)[-1] == Done(lost=(1,))


def test_answers_to_another_spawn_are_not_ours() -> None:
    spawn = SpawnCoordinator(MESH, [0], 0.0)
    spawn.start(0.0)
    assert spawn.answered(0, answer("prepared", 2), 1.0) == []
    assert spawn.answered(5, answer("prepared"), 1.0) == []


def test_a_participant_answers_when_its_ranks_are_up_and_takes_every_phase_twice() -> None:
    host = Participant(Registry(0))
    assert host.prepare(record(), 0.0) == [StartRanks(MESH, 1, (0, 1))]
    host.registry.rank_constructed(MESH, 0)
    assert host.after(host.registry.rank_constructed(MESH, 1), 1.0) == [answer("prepared")]
    assert host.prepare(record(), 1.0)[-1] == answer("prepared")
    assert host.again(1.0) == [answer("prepared")]
    assert host.commit(MESH, 1, 2.0)[-1] == host.commit(MESH, 1, 2.0)[-1] == answer("committed")
    assert host.prepare(record(), 2.0)[-1] == answer("committed")
    assert host.abort(MESH, 1, 3.0)[-1] == host.abort(MESH, 1, 3.0)[-1] == answer("aborted")
    assert host.registry.live() == []


def test_a_participant_without_ranks_of_the_mesh_is_ready_at_once() -> None:
    assert Participant(Registry(5)).prepare(record(), 0.0)[-1] == answer("prepared")


def test_a_participant_names_the_earliest_of_its_faults() -> None:
    host = Participant(Registry(0))
    host.prepare(record(), 0.0)
    host.registry.rank_failed(MESH, 0, {"why": "later", "at": 9.0})
    (reply,) = host.after(host.registry.rank_failed(MESH, 1, {"why": "first", "at": 8.0}), 10.0)
    assert reply.fault is not None
    assert (reply.fault.why, reply.fault.rank, reply.fault.at) == ("first", 1, 8.0)


def test_a_rank_that_dies_between_prepare_and_commit_fails_the_commit() -> None:
    host = Participant(Registry(0))
    host.prepare(record(), 0.0)
    for rank in (0, 1):
        host.registry.rank_constructed(MESH, rank)
    host.registry.rank_died(MESH, 1, {"why": "SIGKILL"})
    reply = host.commit(MESH, 1, 1.0)[-1]
    assert isinstance(reply, Reply)
    assert reply.answer == "failed"
    assert host.registry.pending() == []


def test_a_swapped_replacement_cannot_be_undone_and_says_so() -> None:
    host = Participant(Registry(3))
    host.prepare(record(), 0.0)
    host.commit(MESH, 1, 0.0)
    host.prepare(record(2), 0.0)
    assert host.commit(MESH, 2, 0.0)[0] == Swapped(MESH, 1, 2)
    assert host.abort(MESH, 2, 0.0)[-1] == answer("committed", 2)


HOSTS = (0, 1, 2)


class SpawnMachine(RuleBasedStateMachine):
    """One spawn over three hosts. Links are ordered but are cut; daemons restart; hosts are lost; the head restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.hosts = {host: Participant(Registry(host), bound=60.0) for host in HOSTS}
        self.down: set[int] = set()
        self.to_host: dict[int, list[str]] = {host: [] for host in HOSTS}
        self.to_head: dict[int, list[Reply]] = {host: [] for host in HOSTS}
        self.kept: bytes | None = None
        self.outcomes: list[Done | Failed] = []
        self.seen_done = False
        self.record = record(hosts=(0, 1, 1, 2))

    @initialize()
    def begin(self) -> None:
        self.head = SpawnCoordinator(MESH, HOSTS, self.now, resend=10.0)
        self.act(self.head.start(self.now))

    def act(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Record(blob):
                    self.kept = blob
                case Send(host, phase):
                    if host not in self.down:
                        self.to_host[host].append(phase)
                case Done() | Failed():
                    self.outcomes.append(step)

    def reply(self, host: int, decisions: list[Any]) -> None:
        self.to_head[host] += [d for d in decisions if isinstance(d, Reply)]

    def deliver_to(self, host: int) -> None:
        phase = self.to_host[host].pop(0)
        part = self.hosts[host]
        match phase:
            case "prepare":
                self.reply(host, part.prepare(self.record, self.now))
            case "commit":
                self.reply(host, part.commit(MESH, 1, self.now))
            case "abort":
                self.reply(host, part.abort(MESH, 1, self.now))

    @rule(host=st.sampled_from(HOSTS))
    def host_gets_a_message(self, host: int) -> None:
        if self.to_host[host] and host not in self.down:
            self.deliver_to(host)

    @rule(host=st.sampled_from(HOSTS))
    def head_gets_an_answer(self, host: int) -> None:
        if self.to_head[host] and host not in self.down:
            self.act(self.head.answered(host, self.to_head[host].pop(0), self.now))

    @rule(host=st.sampled_from(HOSTS), rank=st.integers(0, 3), good=st.sampled_from([True, True, True, False]))
    def rank_comes_up_or_fails(self, host: int, rank: int, good: bool) -> None:
        if host in self.down:
            return
        part = self.hosts[host]
        changed: list[Any]
        if good:
            changed = part.registry.rank_constructed(MESH, rank)
        else:
            changed = part.registry.rank_failed(MESH, rank, {"why": "it raised", "at": self.now})
        self.reply(host, part.after([c for c in changed if isinstance(c, RankChanged)], self.now))

    @rule(host=st.sampled_from(HOSTS))
    def daemon_restarts(self, host: int) -> None:
        if host in self.down:
            return
        self.hosts[host] = Participant(Registry.from_blob(self.hosts[host].registry.to_blob()), bound=60.0)
        self.to_host[host].clear()
        self.reply(host, self.hosts[host].again(self.now))

    @rule(host=st.sampled_from(HOSTS[1:]), for_good=st.booleans())
    def host_is_lost(self, host: int, for_good: bool) -> None:
        if host in self.down:
            return
        self.down.add(host)
        self.to_host[host].clear()
        self.to_head[host].clear()
        if for_good:
            # A new incarnation: its keeper died, and with it all it held.
            self.hosts[host] = Participant(Registry(host), bound=60.0)
        self.act(self.head.host_lost(host, self.now))

    def back(self, host: int) -> None:
        self.down.discard(host)
        self.act(self.head.host_back(host, self.now))
        self.reply(host, self.hosts[host].again(self.now))

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def host_is_back(self, data: st.DataObject) -> None:
        self.back(data.draw(st.sampled_from(sorted(self.down))))

    @rule(recorded=st.sampled_from([True, True, False]))
    def head_restarts(self, recorded: bool) -> None:
        if recorded and self.kept is not None:
            self.head = SpawnCoordinator.resume(self.kept, self.now, resend=10.0)
        elif not self.outcomes:
            # The record is lost with the head: whoever asked for the spawn asks again with the same id.
            self.head = SpawnCoordinator(MESH, HOSTS, self.now, resend=10.0)
        else:
            return
        for host in HOSTS:
            self.to_head[host].clear()
            self.to_host[host].clear()
        self.act(self.head.start(self.now))
        for host in sorted(self.down):
            self.act(self.head.host_lost(host, self.now))
        for host in sorted(set(HOSTS) - self.down):
            self.act(self.head.host_back(host, self.now))

    @rule(cancel=st.sampled_from([False] * 5 + [True]))
    def user_interrupts(self, cancel: bool) -> None:
        if cancel:
            self.act(self.head.cancel("interrupted", self.now))

    @rule(seconds=st.sampled_from([1.0, 11.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for host in set(HOSTS) - self.down:
            self.hosts[host].tick(self.now)
        self.act(self.head.tick(self.now))

    def live_on(self) -> set[int]:
        return {host for host in HOSTS if self.hosts[host].registry.live()}

    @invariant()
    def done_means_everywhere(self) -> None:
        if not self.seen_done and any(isinstance(outcome, Done) for outcome in self.outcomes):
            self.seen_done = True
            assert self.live_on() >= set(HOSTS) - self.down

    @invariant()
    def the_outcome_never_changes(self) -> None:
        assert len({type(outcome) for outcome in self.outcomes}) <= 1

    def teardown(self) -> None:
        lost_after_done = self.seen_done and len(self.live_on()) < len(HOSTS)
        for host in sorted(self.down):
            self.back(host)
        for _ in range(60):
            self.now += 11.0
            for host in HOSTS:
                self.hosts[host].tick(self.now)
            self.act(self.head.tick(self.now))
            for host in HOSTS:
                while self.to_host[host] or self.to_head[host]:
                    while self.to_host[host]:
                        self.deliver_to(host)
                    while self.to_head[host]:
                        self.act(self.head.answered(host, self.to_head[host].pop(0), self.now))
                for rank in range(4):
                    changed = self.hosts[host].registry.rank_constructed(MESH, rank)
                    self.reply(host, self.hosts[host].after(changed, self.now))
        assert self.outcomes, "at rest the spawn has an outcome"
        assert all(not self.hosts[host].registry.pending() for host in HOSTS)
        if not lost_after_done:
            expected = set(HOSTS) if isinstance(self.outcomes[-1], Done) else set()
            assert self.live_on() == expected, "either all live hosts have it or none"
        assert not self.head.unsettled


TestSpawnMachine = SpawnMachine.TestCase
TestSpawnMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
