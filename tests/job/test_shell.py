"""A shell on a host, with pipes in place of a terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from processes import SLACK, gone, until

import monarch_kernel as mk
from monarch_kernel.job import shell


@pytest.fixture(scope="module")
def session(place: Path) -> Any:
    return mk.up("shells", hosts=2)


class Ends:
    """The four ends of two pipes that stand for a terminal, in a block of the test: pytest has its own stdout."""

    def __enter__(self) -> Ends:
        (self.stdin, self.keys), (self.screen, self.stdout) = os.pipe(), os.pipe()
        self._files = [os.fdopen(self.stdin, "r"), os.fdopen(self.stdout, "w")]
        self._open = {self.keys, self.screen}
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(sys, "stdin", self._files[0])
        self._patch.setattr(sys, "stdout", self._files[1])
        return self

    def __exit__(self, *exc: object) -> None:
        self._patch.undo()
        for file in self._files:
            file.close()
        for fd in list(self._open):
            self.close(fd)

    def close(self, fd: int) -> None:
        self._open.remove(fd)
        os.close(fd)


def test_what_is_typed_reaches_the_shell_and_its_exit_code_comes_back(session: Any) -> None:
    with Ends() as ends:
        os.write(ends.keys, b'printf "shell:%s:%s\\n" "$SAYS" "$(stty size)"; exit 7\n')
        assert shell(mk.hosts().slice(hosts=1), env={"SAYS": "hello", "SHELL": "/bin/bash"}) == 7
        assert b"shell:hello:24 80" in os.read(ends.screen, 1 << 16)


def test_the_end_of_input_ends_what_runs_in_the_foreground(session: Any, tmp_path: Path) -> None:
    with Ends() as ends:
        note = tmp_path / "pid"
        os.write(ends.keys, f"sh -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 600'\n".encode())

        def close() -> None:
            until(note.exists)
            ends.close(ends.keys)

        closing = threading.Thread(target=close)
        closing.start()
        began = time.monotonic()
        assert shell(mk.hosts().slice(hosts=0), env={"SHELL": "/bin/bash"}) != 0
        closing.join()
        assert time.monotonic() - began < 10 * SLACK
        assert gone(int(note.read_text()))
        ends.close(ends.screen)


def test_a_terminal_that_is_gone_ends_it_with_an_error(session: Any) -> None:
    with Ends() as ends:
        ends.close(ends.screen)
        os.write(ends.keys, b"exit\n")
        with pytest.raises(BrokenPipeError):
            shell(mk.hosts().slice(hosts=0), env={"SHELL": "/bin/bash"})
        ends.close(ends.keys)


def test_it_is_one_host_only(session: Any) -> None:
    with pytest.raises(ValueError, match="singleton HostMesh"):
        shell(mk.hosts())
