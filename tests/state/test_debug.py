"""What a person may write to the debugger."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_kernel.state.debug import DebugCommand, parse, selects

AT = {"hosts": 1, "gpus": 2}  # rank 6 of 2 x 4


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "list"), ("list", "list"), ("l", "list"), ("c", "continue"), ("continue", "continue"), ("q", "quit"),
     ("quit", "quit"), ("h", "help"), (" help ", "help")],
)  # fmt: skip
def test_words_and_their_letters(text: str, what: str) -> None:
    assert parse(text).what == what


def test_one_rank_is_attached_to_or_gets_one_command() -> None:
    assert parse("attach trainers 3") == parse("a trainers  3") == DebugCommand("attach", "trainers", 3)
    assert parse("trainers-2 0 p {1: 2}[1]") == DebugCommand("send", "trainers-2", 0, "p {1: 2}[1]")
    assert parse("trainers 4") == DebugCommand("read", "trainers", 4)
    assert parse("trainers 0 !x = 1  # note").line == "!x = 1  # note"


@pytest.mark.parametrize(
    ("ranks", "meant"),
    [
        ("6", True),
        ("5", False),
        ("1,6", True),
        ("1, 4", False),
        ("4:8", True),
        (":", True),
        ("7:", False),
        (":6", False),
        ("0::2", True),
        ("1::2", False),
        ("gpus=2", True),
        ("hosts=0", False),
        ("hosts=1,gpus=1:3", True),
        ("hosts=(0,1), gpus=(0,3)", False),
        ("gpus=::2", True),
    ],
)
def test_a_cast_names_ranks_as_monarch_does(ranks: str, meant: bool) -> None:
    command = parse(f"cast trainers ranks({ranks}) n")
    assert (command.what, command.name, command.line) == ("cast", "trainers", "n")
    assert selects(command.ranks, 6, AT) is meant


@pytest.mark.parametrize("text", ["atach trainers 0", "attach trainers", "attach trainers x", "cast trainers n", "b"])
def test_what_means_nothing_is_told_with_what_would(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not understood; there are: list, attach NAME RANK"):
        parse(text)


@pytest.mark.parametrize("ranks", ["", "x", "gpus=", "gpus=x", "1:2:0", "-1", "gpus"])
def test_ranks_that_mean_nothing_are_told_with_what_would(ranks: str) -> None:
    with pytest.raises(ValueError, match=r"write ranks\(2\)"):
        parse(f"cast trainers ranks({ranks}) n")


def test_an_unknown_dimension_is_told_with_those_there_are() -> None:
    command: Any = parse("cast trainers ranks(gpu=1) n")
    with pytest.raises(ValueError, match="no dimension 'gpu'; it has: hosts, gpus"):
        selects(command.ranks, 6, AT)
