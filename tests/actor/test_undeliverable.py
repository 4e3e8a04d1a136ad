"""What an actor is told of messages of its own that reach nobody."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lifecycle_actors import AsyncPostman, Postman, Receiving

from monarch_kernel.actor import SupervisionError

WAIT = 30.0
BOTH = pytest.mark.parametrize("postman", [Postman, AsyncPostman])


@pytest.fixture
def notes(tmp_path: Path) -> Any:
    path = tmp_path / "notes"
    path.touch()
    return path


@BOTH
@pytest.mark.parametrize("host", [0, 1])
def test_a_broadcast_to_a_stopped_mesh_is_told_to_who_sent_it(procs, one, notes, until, postman, host):
    sender = one.spawn("sender", postman, str(notes))
    gone = procs.slice(hosts=host, gpus=1).spawn("gone", Receiving)
    sender.post.call_one(gone).get(timeout=WAIT)
    gone.ping.call_one().get(timeout=WAIT)
    gone.stop("enough").get(timeout=WAIT)
    sender.post.call_one(gone).get(timeout=WAIT)
    until(lambda: "stopped: enough" in notes.read_text())
    (line,) = notes.read_text().splitlines()
    assert re.match(r"sender\S+ to gone\.ping, rank 0: ", line)
    # Who waits for an answer gets the error there, and nothing else.
    assert sender.ask.call_one(gone).get(timeout=WAIT) == "ActorStopped"
    assert len(notes.read_text().splitlines()) == 1


@BOTH
def test_each_rank_that_is_not_there_is_told_of_and_the_others_get_it(fresh, one, notes, until, postman):
    receiving = fresh(gpus=1).spawn("receiving", Receiving)
    with pytest.raises(SupervisionError):
        receiving.slice(hosts=1).die.call_one().get(timeout=WAIT)
    sender = one.spawn("sender", postman, str(notes))
    sender.post.call_one(receiving).get(timeout=WAIT)
    until(lambda: notes.read_text())
    (first, *_) = notes.read_text().splitlines()
    assert re.match(r"sender\S+ to receiving\.ping, rank 1: ", first)


@BOTH
def test_a_message_to_a_port_of_a_process_that_is_gone(fresh, one, notes, until, postman):
    receiving = fresh(gpus=1).slice(hosts=1).spawn("receiving", Receiving)
    port = receiving.open.call_one().get(timeout=WAIT)
    with pytest.raises(SupervisionError):
        receiving.die.call_one().get(timeout=WAIT)
    sender = one.spawn("sender", postman, str(notes))
    sender.post_to_port.call_one(port).get(timeout=WAIT)
    until(lambda: notes.read_text())


@BOTH
def test_an_actor_that_does_not_handle_it_fails(procs, one, notes, until, postman):
    sender = one.spawn("sender", postman, str(notes), handles=False)
    gone = procs.slice(hosts=0, gpus=1).spawn("gone", Receiving)
    gone.stop("enough").get(timeout=WAIT)
    sender.post.call_one(gone).get(timeout=WAIT)
    until(lambda: sender.ask.call_one(gone).exception(timeout=WAIT))
    with pytest.raises(SupervisionError, match="could not be delivered, and its _handle_undeliverable_message did not"):
        sender.ask.call_one(gone).get(timeout=WAIT)
