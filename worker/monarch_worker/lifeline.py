"""What ties a process to its keeper: daemon, data server and procs call this first.

The keeper sets both prctl flags before exec; they are set again here because a wrapper in between (a setuid launcher, a
shell that forks) loses them. The watcher is the second line: it acts where no signal came, and also takes the process's
own children along.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time

from monarch_worker.ptree import LIBC, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, family, signal_family

__all__ = ["tie_to_keeper", "watch_keeper"]

_GONE = 0.5  # seconds in which a keeper that hung up has to answer again


def _connect(path: str, timeout: float) -> tuple[socket.socket, int]:
    """A connection to the keeper, and the pid of the process that listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except BaseException:
        sock.close()
        raise
    sock.settimeout(None)
    return sock, pid


def tie_to_keeper(path: str | None = None) -> None:
    """Die with the keeper from here on, and be the one that orphans of this process fall to.

    Exits at once, without cleaning up, when the keeper is not (or no longer) this process's parent: nobody would ever
    end it otherwise.

    Parameters
    ----------
    path
        The keeper's socket; ``MONARCH_KEEPER`` when left out.
    """
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        sock, keeper = _connect(path or os.environ["MONARCH_KEEPER"], 30.0)
    except TimeoutError:  # stopped or swamped, so it exists; the parent-death signal is set
        return
    except OSError:
        os._exit(1)
    sock.close()
    if os.getppid() != keeper:
        os._exit(1)


def watch_keeper(path: str | None = None) -> threading.Thread:
    """Start the daemon thread that ends this process and its descendants when the keeper is gone.

    Parameters
    ----------
    path
        The keeper's socket; ``MONARCH_KEEPER`` when left out.
    """
    path = path or os.environ["MONARCH_KEEPER"]
    parent = os.getppid()
    thread = threading.Thread(target=_watch, args=(path, parent), name="monarch-lifeline", daemon=True)
    thread.start()
    return thread


def _watch(path: str, parent: int) -> None:
    while (sock := _reach(path, parent)) is not None:
        with sock:
            try:
                while sock.recv(1):
                    pass
            except OSError:
                pass
    me = os.getpid()
    for _ in range(3):  # a child that forks while it is being killed shows up in the next pass
        signal_family(list(family(me)), signal.SIGKILL, me)
    os.kill(me, signal.SIGKILL)


def _reach(path: str, parent: int) -> socket.socket | None:
    """A connection to the same keeper, or None when it is gone: an end of stream alone does not prove that."""
    end = time.monotonic() + _GONE
    while os.getppid() == parent:
        try:
            sock, pid = _connect(path, 30.0)
            if pid == parent:
                return sock
            sock.close()
            return None
        except TimeoutError:
            continue
        except OSError:
            if time.monotonic() > end:
                return None
            time.sleep(0.01)
    return None
