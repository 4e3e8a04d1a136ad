"""From bytes to what is shown: lines, similar ones together, and bounds on all of it."""

from __future__ import annotations

import pytest

from monarch_kernel.state import logs
from monarch_kernel.state.logs import GROUPS, LINE, NOTE, PARTIAL, QUIET, Budget, Display, Mode, Source, Splitter

OUT = Source(7, "trainers", 0, 0, "out", "/logs/trainers-r0.log")
OTHER = OUT._replace(rank=1)
WINDOW = Mode("streamed", 3.0)


def text(shown):
    return "".join(words for _, words in shown)


def test_a_line_that_never_ends_is_shown_in_pieces_and_not_kept():
    splitter = Splitter()
    found = splitter.feed(b"x" * (3 * LINE + 5), 0.0)
    assert [len(piece) for piece in found] == [LINE] * 3
    assert splitter.partial(0.0, at_once=True) == ["xxxxx"]
    assert not splitter.waiting


def test_the_beginning_of_a_line_is_shown_when_its_end_does_not_come():
    splitter = Splitter()
    assert splitter.feed(b"Continue? ", 10.0) == []
    assert splitter.partial(10.0) == []
    assert splitter.partial(10.0 + PARTIAL) == ["Continue? "]


def test_a_progress_bar_leaves_its_last_state():
    assert Splitter().feed(b" 1%\r50%\r100%\r\n", 0.0) == ["100%"]


def test_bytes_that_are_no_text_are_shown_all_the_same():
    assert Splitter().feed(b"\xff\xfe caf\xc3\xa9\n", 0.0) == ["\ufffd\ufffd café"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Mode("plain"), "loss 1\n"),
        (Mode("ranks"), "[trainers 0] loss 1\n"),
        (Mode("streamed"), "[trainers] [0] loss 1\n"),
        (QUIET, ""),
    ],
)
def test_each_way_of_showing_a_line(mode, expected):
    assert text(Display(mode).take(OUT, ["loss 1"], 0, 0.0)) == expected


def test_lines_that_differ_in_numbers_only_become_one_with_their_count():
    display = Display(WINDOW)
    shown = [
        *display.take(OUT, ["step 1 took 0.5 s", "saved"], 0, 0.0),
        *display.take(OTHER, ["step 1 took 7 s"], 0, 1.0),
    ]
    assert shown == []
    assert display.due() == 3.0
    assert text(display.tick(2.9)) == ""
    assert text(display.tick(3.0)) == "[trainers] [2 similar log lines] step 1 took 0.5 s\n[trainers] [0] saved\n"
    assert display.due() is None


def test_a_shorter_window_holds_for_the_lines_that_wait_already():
    display = Display(Mode("streamed", 100.0))
    display.take(OUT, ["once"], 0, 0.0)
    display.set(7, Mode("streamed", 2.0))
    assert display.due() == 2.0


def test_without_a_window_what_waits_is_shown_at_once():
    display = Display(Mode("streamed", 100.0))
    display.take(OUT, ["a", "a"], 0, 0.0)
    assert text(display.set(7, Mode("streamed"))) == "[trainers] [2 similar log lines] a\n"


def test_a_window_with_too_many_different_lines_closes_early():
    display = Display(WINDOW)
    words = ["x" * n for n in range(1, GROUPS + 2)]
    assert len(display.take(OUT, words, 0, 0.0)) == GROUPS


def test_output_and_errors_do_not_mix():
    display = Display(WINDOW)
    display.take(OUT, ["hello"], 0, 0.0)
    display.take(OUT._replace(stream="err"), ["hello"], 0, 0.0)
    assert sorted(display.flush()) == [("err", "[trainers] [0] hello\n"), ("out", "[trainers] [0] hello\n")]


def test_a_rank_that_floods_is_cut_off_and_it_is_said_by_how_much():
    display = Display(Mode("plain"), rate=10.0, burst=20)
    assert text(display.take(OUT, ["x"] * 50, 0, 0.0)) == "x\n" * 20
    assert text(display.take(OTHER, ["calm"], 0, 0.0)) == "calm\n"
    assert display.due() == NOTE
    assert "30 lines left out, see /logs/trainers-r0.log on host 0" in text(display.tick(NOTE))


def test_ranks_that_are_quiet_are_forgotten(monkeypatch):
    monkeypatch.setattr(logs, "RANKS", 10)
    display = Display(Mode("plain"), rate=10.0, burst=20)
    for rank in range(100):
        display.take(OUT._replace(rank=rank), ["x"], 0, float(rank))
    assert len(display._budgets) <= 11


def test_what_a_host_did_not_send_is_said_before_what_comes_after():
    said, line = Display().take(OUT, ["after"], 1, 0.0)
    assert said == ("err", "[trainers 0] … 1 line left out, see /logs/trainers-r0.log on host 0\n")
    assert line == ("out", "after\n")


def test_a_budget_shows_whole_lines_until_it_is_used_up():
    budget = Budget(lines=100, characters=10)
    assert budget.take("12345\n678901\n") == "12345\n"
    assert budget.take("x\n") == ""
    assert budget.left_out == 2
