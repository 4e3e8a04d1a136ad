"""Names of processes and services."""

from __future__ import annotations

import pickle

import pytest

from monarch_kernel.actor import ProcId, Uid


@pytest.mark.parametrize(
    ("value", "text"), [(0, "1"), (12, "d"), (57, "Z"), (58, "21"), ((1 << 64) - 1, "JPwcyDCgEup")]
)
def test_a_number_is_written_as_monarch_writes_it(value: int, text: str) -> None:
    uid = Uid.instance_from_value(value, "service")
    assert str(uid) == f"service<{text}>"
    assert Uid.from_string(str(uid)).instance_value == value


def test_two_names_of_one_number_are_equal_and_fresh_ones_are_not() -> None:
    assert Uid.instance_from_value(3, "x") == Uid.instance_from_value(3, "y") == Uid.instance_from_value(3)
    assert Uid.instance("x") != Uid.instance("x")
    assert Uid.anonymous().label is None
    assert Uid.from_string("x").is_singleton
    assert Uid.from_string("x") != Uid.instance("x")


def test_a_proc_id_is_read_back_and_pickled() -> None:
    made = ProcId(Uid.instance("service"))
    assert made.uid.is_instance
    assert made.label == "service"
    for same in (ProcId.from_string(str(made)), pickle.loads(pickle.dumps(made))):
        assert same == made
        assert hash(same) == hash(made)


@pytest.mark.parametrize("text", ["", "2", "a b", "service<0>", "service<2", "service<>", "Service<2>"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        Uid.from_string(text)
    with pytest.raises(ValueError, match="invalid proc id"):
        ProcId.from_string(text)
