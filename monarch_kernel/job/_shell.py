"""A shell on a host, at this terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Any

from ..actor import Actor, Channel, HostMesh, Port, endpoint
from ._command import rank_env

_CHUNK = 1 << 14
_GRACE = 1.0
"""Seconds that a shell has to end after its terminal was hung up."""

_BECOME = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"


class Terminal(Actor):
    """The far end: a shell on a pseudo-terminal. What it prints goes through a port, at last its exit code."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._master = -1
        self._input: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    @endpoint
    def start(
        self,
        output: Port[bytes | int],
        env: dict[str, str],
        workdir: str | None,
        client_cwd: str,
        size: tuple[int, int],
    ) -> None:
        """Start the shell."""
        folder = workdir or (client_cwd if os.path.isdir(client_cwd) else None)
        everything = {**rank_env(), **env}
        shell = everything.get("SHELL") or "/bin/sh"
        self._master, slave = os.openpty()
        try:
            self._resize(size)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BECOME, shell],
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=everything,
                cwd=folder,
            )
        finally:
            os.close(slave)
        threading.Thread(target=self._read, args=(output, self._process), name="terminal-output", daemon=True).start()
        threading.Thread(target=self._write, name="terminal-input", daemon=True).start()

    @endpoint
    def type(self, data: bytes) -> None:
        """What was typed."""
        self._input.put(data)

    @endpoint
    def resize(self, size: tuple[int, int]) -> None:
        """The terminal has this many rows and columns."""
        self._resize(size)

    @endpoint
    def hang_up(self) -> None:
        """Nobody types any more: end what runs in the foreground, and the shell."""
        self._end()

    def _resize(self, size: tuple[int, int]) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def _read(self, output: Port[bytes | int], process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
            while data := os.read(self._master, _CHUNK):
                output.send(data)
        code = process.wait()
        self._input.put(None)
        output.send(code if code >= 0 else min(128 - code, 255))

    def _write(self) -> None:
        while (data := self._input.get()) is not None:
            view = memoryview(data)
            with contextlib.suppress(OSError):
                while view:
                    view = view[os.write(self._master, view) :]

    def _end(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        groups = {process.pid}
        with contextlib.suppress(OSError):
            groups.add(os.tcgetpgrp(self._master))
        groups -= {0, os.getpgrp()}
        for number in (signal.SIGHUP, signal.SIGKILL):
            for group in groups:
                with contextlib.suppress(OSError):
                    os.killpg(group, number)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                continue
            return

    def __cleanup__(self, error: Exception | None) -> None:
        self._end()


def shell(host_mesh_singleton: HostMesh, *, env: dict[str, str] | None = None, workdir: str | None = None) -> int:
    """Run a shell on one host, at the terminal of this process.

    Parameters
    ----------
    host_mesh_singleton
        The host.
    env
        More variables, ``SHELL`` among them: which shell it is.
    workdir
        Its working directory; else this one's where the host has it.

    Returns
    -------
    int
        Its exit code; of one that a signal ended, 128 and the signal's number.

    Raises
    ------
    ValueError
        It is not one host.

    Examples
    --------
    >>> shell(state.trainers.slice(hosts=0))        # doctest: +SKIP
    """
    if host_mesh_singleton.size() != 1:
        raise ValueError("shell requires a singleton HostMesh; slice the mesh to one host first")
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    port, receiver = Channel[bytes | int].open()
    procs = host_mesh_singleton.spawn_procs()
    over, say_over = os.pipe()
    try:
        there: Any = procs.spawn("shell", Terminal)
        named = {"TERM": os.environ.get("TERM", "xterm-256color"), **(env or {})}
        there.start.call_one(port, named, workdir, os.getcwd(), _size(stdin)).get()
        typing = threading.Thread(target=_type, args=(there, stdin, over), name="monarch-shell-input", daemon=True)
        with _raw(stdin), _resizing(there, stdin):
            typing.start()
            try:
                os.write(stdout, b"\r")
                while not isinstance(said := receiver.recv().get(), int):
                    _write_all(stdout, said)
                return said
            finally:
                os.close(say_over)
                typing.join()
    finally:
        os.close(over)
        procs.stop().get()


def _type(there: Any, stdin: int, over: int) -> None:
    """Pass on what is typed, until there is no more or the shell has ended."""
    while True:
        ready, _, _ = select.select([stdin, over], [], [])
        if over in ready:
            return
        data = os.read(stdin, _CHUNK)
        if not data:
            there.hang_up.broadcast()
            return
        there.type.broadcast(data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # a terminal that shares its settings with another program
            select.select([], [fd], [])


def _size(fd: int) -> tuple[int, int]:
    try:
        found = os.get_terminal_size(fd)
    except OSError:
        return 24, 80
    return found.lines, found.columns


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Keys go to the shell as they are pressed, Ctrl-C among them."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(there: Any, fd: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda *_: there.resize.broadcast(_size(fd)))
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
