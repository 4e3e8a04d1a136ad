"""Ordinary cells behave as in ipykernel."""

from __future__ import annotations


def test_a_cell_may_await(kernel):
    assert kernel.run("import asyncio\nawait asyncio.sleep(0, 41) + 1").result == "42"


def test_a_cell_without_await_may_run_a_loop_of_its_own_in_a_thread(kernel):
    code = """
import asyncio, threading
thread = threading.Thread(target=lambda: print(asyncio.run(asyncio.sleep(0, 7))))
thread.start(); thread.join()
"""
    assert kernel.run(code).stdout == "7\n"


def test_an_error_fails_the_cell_and_shows_where(kernel):
    reply = kernel.run("def broken():\n    return 1 / 0\nbroken()")
    assert (reply.status, reply.ename) == ("error", "ZeroDivisionError")
    assert "broken" in reply.traceback
    assert "barrier.py" not in reply.traceback


def test_output_goes_to_its_cell(kernel):
    reply = kernel.run("import sys; print('out'); print('err', file=sys.stderr); 'value'")
    assert (reply.stdout, reply.stderr, reply.result) == ("out\n", "err\n", "'value'")


def test_matplotlib_draws_inline(kernel):
    reply = kernel.run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()")
    assert reply.status == "ok", reply
    assert any("image/png" in data for data in reply.displayed)


def test_a_question_mark_shows_help(kernel):
    sent = kernel.submit("import collections\n?collections.OrderedDict")
    kernel.collect(sent)
    kernel.client.inspect("collections.OrderedDict", 20)
    answer = kernel.client.get_shell_msg(timeout=10)["content"]
    assert answer["found"]
    assert "insertion order" in answer["data"]["text/plain"]


def test_tab_completes(kernel):
    kernel.run("conductivity = 3")
    kernel.client.complete("conducti", 8)
    assert "conductivity" in kernel.client.get_shell_msg(timeout=10)["content"]["matches"]


def test_an_unfinished_cell_is_known_as_such(kernel):
    kernel.client.is_complete("for i in range(3):")
    assert kernel.client.get_shell_msg(timeout=10)["content"]["status"] == "incomplete"
