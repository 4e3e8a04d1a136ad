"""Lines of %monarch are read from one table, and what cannot be read says what could."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from monarch_kernel.magics import arguments, pages, words
from monarch_kernel.magics.arguments import COMMANDS, UsageError, parse, split
from monarch_kernel.magics.monarch import Monarch


@pytest.mark.parametrize("module", [arguments, words, pages])
def test_the_examples_in_the_docs_are_right(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("line", "command", "values"),
    [
        ("", "help", {}),
        ("up lab", "up", {"name": "lab"}),
        (
            "up lab --hosts 2 --gpus=0 --lease 1h30m --max-detached 7d --fresh --takeover",
            "up",
            {
                "name": "lab",
                "hosts": 2,
                "gpus": 0,
                "lease": 5400.0,
                "max_detached": 604800.0,
                "fresh": True,
                "takeover": True,
            },
        ),
        ("up --hosts 2 lab", "up", {"hosts": 2, "name": "lab"}),
        ("up lab  # the usual one", "up", {"name": "lab"}),
        ("attach", "attach", {}),
        ("attach 'lab' --no-bind", "attach", {"name": "lab", "no_bind": True}),
        ("restart trainers[0, 2]", "restart", {"mesh": "trainers[0, 2]"}),
        ("restart trainers {gpus: 0-1} --level proc", "restart", {"mesh": "trainers{gpus: 0-1}", "level": "proc"}),
        ("restart trainers~2[1]", "restart", {"mesh": "trainers~2[1]"}),
        ("down", "down", {}),
        ("rerun replace", "rerun", {"policy": "replace"}),
        ("help up", "help", {"subcommand": "up"}),
    ],
)
def test_a_line_is_read(line: str, command: str, values: dict[str, Any]) -> None:
    parsed = parse(line)
    assert (parsed.command.name, parsed.values) == (command, values)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("statsu", ["no 'statsu'", "Did you mean 'status'", "It has: up, attach"]),
        ("qqqq", ["no 'qqqq'", "It has: up"]),
        ("up", ["needs NAME", "Usage: %monarch up NAME"]),
        ("up lab --host 2", ["no option '--host'", "Did you mean '--hosts'", "--max-detached"]),
        ("up lab --hosts", ["--hosts needs a value"]),
        ("up lab --hosts --fresh", ["--hosts needs a value"]),
        ("up lab --hosts two", ["--hosts", "1 or more", "'two'"]),
        ("up lab --hosts 0", ["--hosts", "1 or more", "'0'"]),
        ("up lab --gpus -1", ["--gpus", "0 or more", "'-1'"]),
        ("up lab --hosts 1 --hosts 2", ["--hosts stands twice"]),
        ("up lab --fresh=yes", ["--fresh takes no value"]),
        ("up lab --lease soon", ["--lease", "'soon'", "2h"]),
        ("up ../lab", ["NAME", "cannot name a session"]),
        ("up lab two", ["takes one NAME", "'two' is too much"]),
        ("status lab", ["takes no name"]),
        ("status --all", ["no option '--all'", "It has none"]),
        ("restart", ["needs MESH[ranks]"]),
        ("restart trainers --level prco", ["'prco' is not one of actor, proc", "Did you mean 'proc'"]),
        ("rerun nwe", ["not one of reuse, replace, new", "Did you mean 'new'"]),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_could(line: str, said: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert [words for words in said if words not in str(caught.value)] == []


@pytest.mark.parametrize(
    "line", ["restart trainers[", "restart trainers{gpus: 0", "up 'lab", '"', "[", "{}", "up [", "  "]
)
def test_a_line_that_is_not_finished_still_has_words(line: str) -> None:
    assert all(split(line)) or not split(line)


def test_every_subcommand_of_the_table_is_there() -> None:
    assert [name for name in COMMANDS if not callable(getattr(Monarch, f"_{name}", None))] == []
