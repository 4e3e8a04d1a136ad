"""What actors and processes are known by."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_actors import Runner

from monarch_kernel.actor import ProcId, Uid, context, current_actor_name
from monarch_kernel.actor._ids import ActorAddr, as_label

from .conftest import WAIT

LABELS = st.from_regex(r"[a-z]([a-z0-9_-]{0,20}[a-z0-9])?", fullmatch=True)
NUMBERS = st.integers(0, 2**64 - 1)
UIDS = st.builds(Uid.instance_from_value, NUMBERS, st.none() | LABELS) | LABELS.map(Uid.from_string)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "<1>"), (57, "<Z>"), (58, "<21>"), (7597, "<3fZ>"), (2**64 - 1, "<JPwcyDCgEup>")],
)
def test_numbers_are_written_as_monarch_writes_them(number: int, text: str) -> None:
    assert str(Uid.instance_from_value(number)) == text
    assert Uid.from_string(text).instance_value == number


@given(UIDS)
def test_a_uid_is_read_back_from_its_text_and_from_a_pickle(uid: Uid) -> None:
    for again in (Uid.from_string(str(uid)), pickle.loads(pickle.dumps(uid)), eval(repr(uid))):
        assert again == uid
        assert hash(again) == hash(uid)
        assert (str(again), again.label, again.is_singleton) == (str(uid), uid.label, not uid.is_instance)
    assert ProcId.from_string(str(ProcId(uid))) == ProcId(uid) == pickle.loads(pickle.dumps(ProcId(uid)))


@given(UIDS, UIDS, st.sampled_from(["inproc://3", "tcp://[::1]:20", "ipc://@x", "metatls://host:1", "x<3>.ipc:///a/b"]))
def test_an_address_is_read_back_from_its_text_and_from_a_pickle(actor: Uid, proc: Uid, location: str) -> None:
    one = ActorAddr.of(actor, proc, location)
    assert ActorAddr.from_string(str(one)) == one == pickle.loads(pickle.dumps(one)) == eval(repr(one))
    assert (one.uid, one.label, one.proc_label) == (str(actor), actor.label, proc.label)
    assert str(one) == f"{one.uid}.{one.proc_id}"


@given(st.text())
def test_no_text_does_worse_than_a_value_error(text: str) -> None:
    for read in (Uid.from_string, ProcId.from_string, ActorAddr.from_string):
        try:
            found = read(text)
        except ValueError:
            continue
        assert read(str(found)) == found


@given(st.text())
def test_what_is_left_of_any_name_is_a_label_or_nothing(name: str) -> None:
    label = as_label(name)
    assert label is None or Uid.instance(label).label == label


def test_a_label_does_not_tell_two_apart_and_a_number_does() -> None:
    assert Uid.instance_from_value(5, "x") == Uid.instance_from_value(5)
    assert Uid.instance("x") != Uid.instance("x")
    assert Uid.from_string("x") != Uid.instance_from_value(5, "x")
    assert ProcId(Uid.from_string("x")) != Uid.from_string("x")


@pytest.mark.parametrize(
    "text", ["", "Foo", "9x", "_x", "x-", "a b", "foo.bar", "a<>", "foo<3fZ", "<0>", "<zzzzzzzzzzzz>"]
)
def test_what_is_no_uid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid uid"):
        Uid.from_string(text)


def test_numbers_of_more_than_64_bits_and_other_ways_to_make_one_are_refused() -> None:
    for number in (-1, 2**64):
        with pytest.raises(OverflowError):
            Uid.instance_from_value(number)
    with pytest.raises(TypeError, match=r"Uid\.instance\(\)"):
        Uid()
    with pytest.raises(TypeError, match="made of a Uid"):
        ProcId("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no address"):
        ActorAddr(addr="bogus", proc_name="p", actor_name="a")


def test_an_actor_has_one_address_of_its_own(procs) -> None:
    def look() -> tuple[ActorAddr, str, str]:
        return context().actor_instance.actor_id, current_actor_name(), context().actor_instance.proc_id

    mesh = procs.spawn("Watched", Runner)
    seen = list(mesh.run.call(look).get(timeout=WAIT).values())
    assert seen == list(mesh.run.call(look).get(timeout=WAIT).values())
    assert len({address for address, _, _ in seen}) == 4
    assert {address.actor_name for address, _, _ in seen} == {"watched"}
    assert [name for _, name, _ in seen] == [str(address) for address, _, _ in seen]
    other = list(procs.spawn("Watched", Runner).run.call(look).get(timeout=WAIT).values())
    assert {address for address, _, _ in other}.isdisjoint(address for address, _, _ in seen)
    assert [proc for _, _, proc in other] == [proc for _, _, proc in seen]
    assert not seen[0][0].is_root
    assert context().actor_instance.actor_id.is_root
