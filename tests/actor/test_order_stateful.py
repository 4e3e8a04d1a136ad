"""Any interleaving of casts, slices and point-to-point sends, by a client and by actors, keeps each sender's order.

Every message carries its sender's next number. Whatever hypothesis lets the senders do, each rank must have had the
messages of a sender that were meant for it, all of them, in the order in which they were sent, and one at a time.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from mesh_actors import Log, Sender

WAIT = 60
HOSTS, GPUS = 2, 2

parts = st.fixed_dictionaries(
    {},
    optional={
        "hosts": st.integers(0, HOSTS - 1) | st.sampled_from([slice(0, 1), slice(1, 2), slice(0, 2)]),
        "gpus": st.integers(0, GPUS - 1) | st.sampled_from([slice(0, 1), slice(1, 2), slice(0, 2)]),
    },
)
adverbs = st.sampled_from(["broadcast", "call", "stream", "choose", "one by one"])


def members(part: dict[str, Any]) -> list[int]:
    def taken(label: str, size: int) -> list[int]:
        chosen = part.get(label, slice(None))
        return [chosen] if isinstance(chosen, int) else list(range(size)[chosen])

    return [host * GPUS + gpu for host in taken("hosts", HOSTS) for gpu in taken("gpus", GPUS)]


class Ordering(RuleBasedStateMachine):
    """The client and two actors (one on each host) send to the four ranks of one mesh."""

    procs: Any

    @initialize()
    def spawn(self) -> None:
        self.log = self.procs.spawn("log", Log)
        senders = self.procs.slice(gpus=0).spawn("senders", Sender, self.log)
        self.senders = {"client": None, "actor 0": senders.slice(hosts=0), "actor 1": senders.slice(hosts=1)}
        self.sent: dict[str, list[tuple[int, list[int]]]] = {who: [] for who in self.senders}
        self.answers: list[Any] = []

    @rule(who=st.sampled_from(["client", "actor 0", "actor 1"]), part=parts, adverb=adverbs, large=st.booleans())
    def send(self, who: str, part: dict[str, Any], adverb: str, large: bool) -> None:
        number = len(self.sent[who])
        message = (who, number, bytes(200_000 if large else 0))
        self.sent[who].append((number, members(part) if adverb != "choose" else []))
        sender = self.senders[who]
        if sender is None:
            self.answers += Sender.deliver(self.log, part, adverb, message)
        else:
            sender.send.broadcast(part, adverb, message)

    @rule()
    def wait_for_answers(self) -> None:
        for answer in self.answers:
            answer.get(timeout=WAIT)
        self.answers = []

    @rule(who=st.sampled_from(["actor 0", "actor 1"]))
    def wait_for_an_actor(self, who: str) -> None:
        self.senders[who].settle.call_one().get(timeout=WAIT)

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.wait_for_answers()
        self.wait_for_an_actor("actor 0")
        self.wait_for_an_actor("actor 1")
        told = self.log.all.call().get(timeout=WAIT).values()
        for who, sent in self.sent.items():
            chosen: list[int] = []
            for rank, messages in enumerate(told):
                numbers = [number for name, number, _ in messages if name == who]
                assert numbers == sorted(numbers), f"rank {rank} had {who}'s messages as {numbers}"
                meant = [number for number, ranks in sent if rank in ranks]
                lone = [number for number in numbers if number not in meant]
                assert [number for number in numbers if number in meant] == meant
                chosen += lone
            # What went to one rank chosen at random came to exactly one.
            assert sorted(chosen) == [number for number, ranks in sent if not ranks]
        assert self.log.overlapped.call().get(timeout=WAIT).values() == [0] * (HOSTS * GPUS)
        self.log.stop().get(timeout=WAIT)


@pytest.mark.timeout(240)
def test_no_interleaving_breaks_the_order_of_a_sender(procs: Any) -> None:
    machine = type("OrderingHere", (Ordering,), {"procs": procs})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
