"""A link that dials: it comes back by itself, tells anew what a new daemon cannot know, and says when it cannot."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from monarch_kernel.errors import AccessRefused, ConnectionLost, VersionSkew

numbers = itertools.count()


@pytest.fixture
def path(folder):
    return f"{folder}/d{next(numbers)}"


def test_a_host_that_is_not_up_yet_is_dialled_until_it_is(wire, path):
    async def test():
        dialled = wire.Dialled(path)
        dialled.send(b"early")
        await asyncio.sleep(0.05)
        assert not dialled.connected
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        await wire.until(lambda: acceptor.got == [b"early"])
        assert dialled.told == []
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_what_comes_together_with_the_greeting_is_not_lost(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        for number in range(3):
            acceptor.send(b"%d" % number)  # all of it leaves right behind the greeting
        dialled = wire.Dialled(path)
        await wire.until(lambda: dialled.got == [b"0", b"1", b"2"])
        assert dialled.told == []
        assert len(acceptor.greetings) == 1
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_to_a_daemon_that_was_restarted_all_is_told_anew_and_nothing_old_arrives(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path)
        dialled.send(b"one")
        await wire.until(lambda: acceptor.got == [b"one"])
        acceptor.stop()
        await wire.until(lambda: not dialled.connected)
        dialled.send(b"queued for the old one")
        acceptor.forget()
        await acceptor.start()
        await wire.until(lambda: dialled.told == ["renewed"])
        dialled.send(b"two")
        await wire.until(lambda: len(acceptor.got) == 2)
        assert acceptor.got == [b"one", b"two"]
        await dialled.close()
        acceptor.stop()

    wire.run(test())


@pytest.mark.parametrize("error", [AccessRefused, VersionSkew])
def test_a_host_that_says_no_is_not_dialled_again(wire, path, error):
    async def test():
        acceptor = wire.Acceptor(path)
        acceptor.answer = {"error": error.__name__, "text": "because"}
        await acceptor.start()
        dialled = wire.Dialled(path)
        (said,) = await wire.until(lambda: dialled.told)
        assert isinstance(said, error)
        assert str(said) == "because"
        await asyncio.sleep(0.05)
        assert len(acceptor.greetings) == 1
        assert acceptor.greetings[0]["secret"] == "s"
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_a_host_that_stays_away_is_lost_once_and_back_when_it_is(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path, replace(wire.QUICK, reconnect_window=0.2))
        await dialled.ready.wait()
        acceptor.stop()
        began = asyncio.get_running_loop().time()
        (lost,) = await wire.until(lambda: dialled.told)
        assert asyncio.get_running_loop().time() - began >= 0.2
        assert isinstance(lost, ConnectionLost)
        assert str(lost) == "its daemon does not answer"
        dialled.send(b"meanwhile")
        await asyncio.sleep(0.05)
        assert len(dialled.told) == 1
        await acceptor.start()
        await wire.until(lambda: acceptor.got == [b"meanwhile"])
        assert dialled.told[1:] == ["back"]
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_for_a_host_that_has_ended_nobody_waits_the_window_out(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path, ended=lambda: True)
        await dialled.ready.wait()
        acceptor.stop()
        await wire.until(lambda: dialled.told, 2.0)
        await dialled.close()

    wire.run(test())


@pytest.mark.parametrize("full", [False, True], ids=["idle", "with a full buffer"])
def test_a_host_that_is_silent_is_dialled_anew_and_what_it_did_not_take_is_sent_again(wire, path, full):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path, replace(wire.QUICK, silent=0.3))
        await dialled.ready.wait()
        # As if the process were stopped: it neither reads nor writes.
        stopped = acceptor.pipe
        stopped.transport.pause_reading()
        acceptor.link.drop = lambda: None
        sent = [b"%d " % n + bytes(1 << 18) for n in range(12 if full else 1)]
        for record in sent:
            dialled.send(record)
        await wire.until(lambda: len(acceptor.greetings) == 2, 5)
        await wire.until(lambda: len(acceptor.got) == len(sent))
        assert acceptor.got == sent
        assert dialled.told == []
        stopped.close()
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_pulses_keep_an_idle_link_from_looking_silent(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path, replace(wire.QUICK, silent=0.2))
        await dialled.ready.wait()
        for _ in range(10):
            acceptor.link.pulse()
            await asyncio.sleep(0.05)
        assert len(acceptor.greetings) == 1
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_bytes_that_are_no_frame_begin_a_new_link_and_not_silence(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path)
        await dialled.ready.wait()
        said = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["exception"]))
        acceptor.pipe.write(b"nonsense")
        await wire.until(lambda: dialled.told == ["renewed"])
        assert [type(error).__name__ for error in said] == ["FrameError"]
        assert acceptor.greetings[0]["link"] != acceptor.greetings[1]["link"]
        dialled.send(b"on")
        await wire.until(lambda: acceptor.got == [b"on"])
        await dialled.close()
        acceptor.stop()

    wire.run(test())


def test_a_link_that_is_closed_while_it_greets_stays_closed(wire, path):
    async def test():
        acceptor = wire.Acceptor(path)
        await acceptor.start()
        dialled = wire.Dialled(path)
        await wire.until(lambda: acceptor.greetings)
        dialled.link.link.close()
        await asyncio.sleep(0.05)
        assert not dialled.connected
        assert len(acceptor.greetings) == 1
        await dialled.close()
        acceptor.stop()

    wire.run(test())
