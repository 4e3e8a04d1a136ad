"""Who controls the session: by example, and two kernels racing over hosts that lose messages."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch_kernel.state.epoch import NONE, Admitted, Epoch, EpochGate, Granted, Holder, Refused


def held(client: str = "a", now: float = 5.0) -> EpochGate:
    gate = EpochGate()
    gate.grant(client, False, False, now, label=f"kernel {client}")
    return gate


def test_the_first_controller_gets_the_first_epoch() -> None:
    assert EpochGate().grant("a", False, False, 5.0) == Granted(Epoch(0, 1), None)


def test_a_holder_that_is_gone_needs_no_takeover_and_is_named_to_be_told() -> None:
    answer = held().grant("b", False, other_alive=False, now=9.0)
    assert answer == Granted(Epoch(0, 2), Holder("a", Epoch(0, 1), 5.0, "kernel a"))


def test_a_connected_holder_is_pushed_out_only_by_a_takeover() -> None:
    gate = held()
    assert gate.grant("b", False, True, 9.0) == Refused("held", Holder("a", Epoch(0, 1), 5.0, "kernel a"), True)
    assert isinstance(gate.grant("b", True, True, 9.0), Granted)
    refused = gate.admit(Epoch(0, 1))
    assert isinstance(refused, Refused)
    assert refused.why == "older"
    assert refused.holder == Holder("b", Epoch(0, 2), 9.0)


def test_asking_again_gives_the_same_epoch() -> None:
    assert held().grant("a", False, True, 9.0) == Granted(Epoch(0, 1), None)


def test_compare_and_set_refuses_even_a_takeover_of_somebody_else() -> None:
    gate = held()
    refused = gate.grant("b", True, True, 9.0, expected=NONE)
    assert isinstance(refused, Refused)
    assert refused.why == "changed"
    assert isinstance(gate.grant("b", True, True, 9.0, expected=Epoch(0, 1)), Granted)


def test_a_host_learns_a_higher_epoch_from_a_message_and_its_holder_later() -> None:
    gate, holder = EpochGate(), Holder("b", Epoch(0, 3), 1.0)
    assert gate.admit(Epoch(0, 3)) == Admitted(Epoch(0, 3), raised=True)
    assert gate.admit(Epoch(0, 3)) == Admitted(Epoch(0, 3))
    assert gate.admit(Epoch(0, 2)) == Refused("older", None)
    assert gate.adopt(Epoch(0, 3), holder) == Admitted(Epoch(0, 3), raised=True)
    assert gate.admit(Epoch(0, 2)) == Refused("older", holder)


def test_a_later_term_is_above_any_count() -> None:
    gate = held()
    gate.adopt(Epoch(1, 1))
    assert isinstance(gate.admit(Epoch(0, 99)), Refused)


def test_a_new_head_grants_nothing_before_all_hosts_are_heard_then_above_all() -> None:
    gate = EpochGate.restore(None, others=[1, 2])
    assert gate.grant("a", True, False, 1.0) == Refused("waiting", None, None, (1, 2))
    gate.heard(1, Epoch(0, 4))
    gate.heard(2, Epoch(0, 7))
    assert gate.grant("a", False, False, 1.0) == Granted(Epoch(0, 8), None)


def test_a_holder_that_some_host_would_refuse_gets_a_higher_epoch_when_it_asks_again() -> None:
    gate = held()
    gate.heard(1, Epoch(0, 6))
    assert gate.grant("a", False, False, 9.0) == Granted(Epoch(0, 7), None)


def test_a_gate_survives_its_daemon() -> None:
    gate = held()
    assert EpochGate.restore(gate.persist(), others=[1]).persist() == gate.persist()
    waiting = EpochGate([1, 2])
    waiting.heard(1, Epoch(0, 3))
    assert EpochGate.restore(waiting.persist()).waiting == (2,)


@pytest.mark.parametrize("blob", [b"\xff", b"[]", b"{}", b'{"epoch":[1],"floor":[0,0],"unheard":[]}'])
def test_a_gate_that_cannot_be_read_starts_as_a_new_one(blob: bytes) -> None:
    assert EpochGate.restore(blob, others=[1]).waiting == (1,)


HOSTS = (0, 1, 2)


class RaceMachine(RuleBasedStateMachine):
    """Two kernels and three hosts; the head's word to hosts, and kernels' messages, may be lost or late."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = {host: EpochGate() for host in HOSTS}
        # What a keeper holds of each host: it goes only with the incarnation.
        self.kept: dict[int, bytes | None] = dict.fromkeys(HOSTS)
        self.epochs: dict[str, Epoch] = {}
        self.connected: set[str] = set()
        self.granted: dict[Epoch, str] = {}
        self.in_flight: list[tuple[int, Epoch, Holder | None]] = []
        self.highest = dict.fromkeys(HOSTS, NONE)
        self.now = 0.0

    def keep(self, host: int) -> None:
        self.kept[host] = self.gates[host].persist()
        # What a host has once admitted, it never goes below.
        assert self.gates[host].epoch >= self.highest[host]
        self.highest[host] = self.gates[host].epoch

    @rule(client=st.sampled_from("ab"), takeover=st.booleans(), told=st.booleans(), cas=st.booleans())
    def attach(self, client: str, takeover: bool, told: bool, cas: bool) -> None:
        self.now += 1.0
        head = self.gates[0]
        holder = head.holder
        alive = holder is not None and holder.client in self.connected and holder.client != client
        before = head.epoch
        answer = head.grant(client, takeover, alive, self.now, expected=before if cas else None)
        if isinstance(answer, Refused):
            assert head.epoch == before
            if answer.why == "held":
                assert alive
                assert not takeover
                assert answer.holder == holder
            else:
                assert answer.why == "waiting"
            return
        assert not alive or takeover
        assert self.granted.setdefault(answer.epoch, client) == client, "one epoch for two kernels"
        self.keep(0)
        for host in HOSTS[1:]:
            self.in_flight.append((host, answer.epoch, head.holder))
        if told:
            self.epochs[client] = answer.epoch
            self.connected.add(client)

    @rule(client=st.sampled_from("ab"))
    def kernel_dies(self, client: str) -> None:
        self.connected.discard(client)
        self.epochs.pop(client, None)

    @rule(data=st.data(), lost=st.booleans())
    def the_heads_word_arrives_or_is_lost(self, data: st.DataObject, lost: bool) -> None:
        if not self.in_flight:
            return
        host, epoch, holder = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        if not lost:
            before = self.gates[host].epoch
            answer = self.gates[host].adopt(epoch, holder)
            assert isinstance(answer, Refused) == (epoch < before)
            self.keep(host)

    @rule(client=st.sampled_from("ab"), host=st.sampled_from(HOSTS))
    def kernel_sends(self, client: str, host: int) -> None:
        if client not in self.epochs:
            return
        epoch, before = self.epochs[client], self.gates[host].epoch
        answer = self.gates[host].admit(epoch)
        assert isinstance(answer, Admitted) == (epoch >= before)
        if isinstance(answer, Refused) and answer.holder is not None:
            assert answer.holder.epoch > epoch
        self.keep(host)

    @rule(host=st.sampled_from(HOSTS))
    def daemon_restarts(self, host: int) -> None:
        self.gates[host] = EpochGate.restore(self.kept[host])

    @rule(hears=st.permutations(HOSTS[1:]))
    def head_begins_a_new_incarnation(self, hears: list[int]) -> None:
        self.kept[0] = None
        self.highest[0] = NONE
        self.in_flight.clear()
        # An epoch that only the head ever saw is gone with it, and with it everything it admitted: its kernel too is
        # told that the incarnation ended.
        self.connected.clear()
        self.epochs.clear()
        seen = max(self.gates[host].epoch for host in HOSTS[1:])
        self.granted = {epoch: client for epoch, client in self.granted.items() if epoch <= seen}
        head = self.gates[0] = EpochGate.restore(None, others=HOSTS[1:])
        for host in hears:
            assert isinstance(head.grant("x", True, False, self.now), Refused)
            head.heard(host, self.gates[host].epoch)
        self.keep(0)

    @invariant()
    def hosts_know_only_what_was_granted(self) -> None:
        for gate in self.gates.values():
            assert gate.epoch == NONE or gate.epoch in self.granted
            if gate.holder is not None:
                assert gate.holder.epoch == gate.epoch
                assert self.granted[gate.epoch] == gate.holder.client

    @invariant()
    def two_kernels_never_command_one_host(self) -> None:
        for host in HOSTS:
            gate = self.gates[host]
            assert len({c for c, epoch in self.epochs.items() if epoch == gate.epoch}) <= 1


TestRaceMachine = RaceMachine.TestCase
TestRaceMachine.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
