"""The keeper of one host: what outlives kernels and daemons.

Standard library only, one thread, knows nothing of actors or gRPC. It is started as a file (``python -I -S keeper.py``)
and imports only its own parts beside it (`children`, `papers`, `ptree`, `memfd`), all of them at its start: it has to
survive an upgrade of everything else.

Three processes share this file. The *starter* reads one JSON document on stdin, forks and exits, which cuts the tie to
whoever launched it. The *guardian* waits for the keeper to end and does nothing else: as the next subreaper above, it
inherits all that the keeper leaves, be it stopped, stuck in C code or double-forked, and ends it. The *keeper* starts
every child of ours on the host, reaps, restarts those that ask for it, holds memory by name as descriptors that it
never maps, and enforces the lease as one deadline.

Wire: a SOCK_SEQPACKET unix socket; one JSON object a packet, at most one descriptor beside it. What is larger than a
packet goes as a memfd, marked ``"fd": true``. Nothing is ever sent blocking: a stopped reader cannot stop the keeper.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from itertools import islice
from typing import Any

if __name__ == "__main__":  # at the end of the path: nothing beside us may stand in for the standard library
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from monarch_worker.children import Children
from monarch_worker.memfd import FIXED_SIZE, contents, memory
from monarch_worker.papers import Papers, discard, read_json, write_private
from monarch_worker.ptree import LIBC, PR_SET_CHILD_SUBREAPER, PR_SET_NAME, end_family, family, start_of, this_boot

PACKET = 65536
REPLY_INLINE = 60000
SPEC_LIMIT = 64 << 20
EVENTS_KEPT = 1000  # exit events; a watcher that comes late sees the gap in their numbers
EVENTS_SENT = 12  # at a time: with paths of any length they fit a packet
LEASE_LIMIT = 366 * 86400.0
RELEASE_LIMIT = 30.0  # a process in an uninterruptible wait must not keep the host's sockets for ever
START_FAILED = 3  # the keeper's own exit code: nothing was promised yet, so no tombstone


class Keeper:
    """The event loop: children, blobs, watchers and one deadline."""

    def __init__(self, doc: dict[str, Any], papers: Papers) -> None:
        self.doc, self.papers, self.path = doc, papers, doc["socket"]
        self.me = os.getpid()
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        LIBC.prctl(PR_SET_NAME, b"monarch-keeper", 0, 0, 0)
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile[1], nofile[1]))  # a blob is a descriptor
        extra = {"MONARCH_KEEPER": self.path, "MONARCH_HOST": str(papers.host)}
        self.children = Children(extra, os.umask(0o077), nofile, self.emit)
        self.sel = selectors.DefaultSelector()
        self.blobs: dict[str, int] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.n = 0
        self.watchers: dict[socket.socket, int] = {}  # the number of the next event each has to get
        self.ending: str | None = None
        self.bury = True  # leave a tombstone
        lease = doc.get("lease")
        self.deadline = None if lease is None else time.monotonic() + lease
        self.incarnation = max(time.time_ns(), papers.settle() + 1)  # a clock set back must not repeat one
        self.identity = {"pid": self.me, "start": start_of(self.me), "incarnation": self.incarnation, **this_boot()}
        self.guardian = [os.getppid(), start_of(os.getppid()) or 0]
        wake, w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(w, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in every child.
        for s in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(s, lambda *_: None)
        self.sel.register(wake, selectors.EVENT_READ, self.on_signal)
        self.spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self.srv = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        discard(self.path)
        self.srv.bind(self.path)
        os.chmod(self.path, 0o600)
        self.srv.listen(256)
        self.srv.setblocking(False)
        self.sel.register(self.srv, selectors.EVENT_READ, self.on_accept)
        for name, text in doc.get("blobs", {}).items():
            self.blobs[name] = memory(name, text.encode())
        for spec in doc.get("spawn", ()):
            self.children.spawn(spec)

    # events

    def emit(self, event: dict[str, Any]) -> None:
        """Number an event, keep it, and pass it on."""
        self.n += 1
        self.events.append({**event, "n": self.n, "t": time.monotonic()})
        for c in list(self.watchers):
            self.feed(c)

    def feed(self, c: socket.socket) -> None:
        """Send a watcher what its buffer takes; the rest waits in the bounded list until it reads."""
        mask = selectors.EVENT_READ
        while (nxt := self.watchers[c]) <= self.n:
            first = self.n - len(self.events) + 1
            skip = max(nxt - first, 0)
            batch = list(islice(self.events, skip, skip + EVENTS_SENT))
            try:
                c.send(json.dumps({"events": batch}).encode())
            except BlockingIOError:
                mask |= selectors.EVENT_WRITE
                break
            except OSError:
                self.hang_up(c)
                return
            self.watchers[c] = batch[-1]["n"] + 1
        self.sel.modify(c, mask, self.on_packet)

    # sockets

    def on_signal(self, fd: int, mask: int) -> None:
        """A signal arrived: children to reap, or the end."""
        if signal.SIGTERM in os.read(fd, 4096):
            self.ending = "the keeper was asked to end (SIGTERM)"
        self.children.reap()

    def on_accept(self, srv: socket.socket, mask: int) -> None:
        """Let in a caller of our own uid."""
        try:
            c, _ = srv.accept()
        except BlockingIOError:
            return
        except OSError:  # out of descriptors: take the caller off the queue, or this would spin
            os.close(self.spare)
            try:
                srv.accept()[0].close()
            except OSError:
                pass
            self.spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            return
        if struct.unpack("3i", c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] != os.geteuid():
            c.close()
            return
        c.setblocking(False)
        self.sel.register(c, selectors.EVENT_READ, self.on_packet)

    def hang_up(self, c: socket.socket) -> None:
        """Forget a connection."""
        self.sel.unregister(c)
        self.watchers.pop(c, None)
        c.close()

    def on_packet(self, c: socket.socket, mask: int) -> None:
        """Answer one request, or go on feeding a watcher."""
        if mask & selectors.EVENT_WRITE:
            self.feed(c)
            return
        try:
            data, fds, flags, _ = socket.recv_fds(c, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds, flags = b"", [], 0
        if not data:
            self.hang_up(c)
            return
        out = made = None
        try:
            if flags & socket.MSG_TRUNC:
                raise ValueError(f"a packet holds {PACKET} bytes; send more as a memfd")
            m = json.loads(data)
            if m.get("fd") is True:
                m.update(json.loads(contents(fds[0], SPEC_LIMIT)), op=m["op"])
            reply, out = self.handle(m, fds, c)
        except Exception as e:  # whatever a packet holds, it must not end the keeper
            reply = {"error": str(e) if isinstance(e, (ValueError, OSError)) else f"{type(e).__name__}: {e}"}
        for fd in fds:  # what `handle` did not take over
            os.close(fd)
        body = json.dumps(reply).encode()
        try:
            if len(body) > REPLY_INLINE:
                out = made = memory("reply", body)
                body = b'{"fd": true}'
            socket.send_fds(c, [body], [] if out is None else [out])
        except OSError:  # gone, or asks without reading answers
            self.hang_up(c)
            return
        finally:
            if made is not None:
                os.close(made)
        if c in self.watchers:
            self.feed(c)

    def handle(self, m: dict[str, Any], fds: list[int], c: socket.socket) -> tuple[dict[str, Any], int | None]:
        """One request: the reply, and the descriptor that goes with it."""
        op = m["op"]
        if op == "hello":
            left = None if self.deadline is None else self.deadline - time.monotonic()
            doc = {k: self.doc[k] for k in ("session", "sid", "host")}
            return {**self.identity, **doc, "guardian": self.guardian, "lease": left, "n": self.n}, None
        if op == "spawn":
            return {"pid": self.children.spawn(m["spec"])}, None
        if op == "end":
            return {"signalled": self.children.end(m["id"], int(m["sig"]), bool(m.get("tree", True)))}, None
        if op == "put":
            return {"size": self.put(m["name"], fds)}, None
        if op == "get":
            fd = self.blobs.get(m["name"])
            return {"found": fd is not None}, fd
        if op == "drop":
            if (fd := self.blobs.pop(m["name"], None)) is not None:
                os.close(fd)
            return {}, None
        if op == "names":
            return {"names": {name: os.fstat(fd).st_size for name, fd in self.blobs.items()}}, None
        if op == "lease":
            left = m["left"]
            if left is not None and not 0 <= left <= LEASE_LIMIT:  # NaN fails this, too
                raise ValueError(
                    f"a lease of {left!r} seconds is none: between 0 and {LEASE_LIMIT:.0f}, or null for no end"
                )
            self.deadline = None if left is None else time.monotonic() + left
            return {}, None
        if op == "list":
            return {"kids": {i: k.show() for i, k in self.children.kids.items()}}, None
        if op == "watch":
            self.watchers[c] = int(m.get("since", 0)) + 1
            return {"n": self.n}, None
        if op == "tree":
            return {"pids": list(family(self.me))}, None
        if op == "release":
            self.ending, self.bury = str(m.get("reason") or "released"), m.get("reason") is not None
            return {}, None
        raise ValueError(f"the keeper knows no {op!r}")

    def put(self, name: str, fds: list[int]) -> int:
        """Keep a memfd under a name. Its size is sealed: a file that shrank would fault whoever maps it."""
        if not fds:
            raise ValueError(f"no descriptor came with {name!r}: none was sent, or the keeper has no room for more")
        try:
            if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & FIXED_SIZE != FIXED_SIZE:
                fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, FIXED_SIZE)
        except OSError as e:
            raise ValueError(f"{name!r} has to be a memfd that allows sealing") from e
        old, self.blobs[name] = self.blobs.get(name), fds.pop()
        if old is not None:
            os.close(old)
        return os.fstat(self.blobs[name]).st_size

    # the loop and the end

    def release(self, reason: str) -> None:
        """End everything, say why on disk, and exit."""
        lost = sorted(i for i, k in self.children.kids.items() if k.alive and not k.spec.get("restart"))
        if "lost" in self.blobs:  # the daemon's own words for what there is: names of meshes, not ids
            try:
                lost = [str(x) for x in json.loads(contents(self.blobs["lost"], SPEC_LIMIT))]
            except (ValueError, OSError, TypeError):
                pass
        discard(self.path)
        left = end_family(self.me, RELEASE_LIMIT)
        if left:
            print(f"keeper: could not be ended: {left}", file=sys.stderr, flush=True)
        if self.bury:
            self.papers.bury(reason, lost)
        self.papers.clear()
        os._exit(0)

    def run(self) -> None:
        """Loop until the release: deadlines, restarts, the record of pids, and whatever is ready."""
        while True:
            now = time.monotonic()
            if self.deadline is not None and now >= self.deadline:
                self.ending = "its lease ran out"
            if self.ending is not None:
                self.release(self.ending)
            self.children.restart_due(now)
            kids = self.children.kids
            if self.children.changed:
                self.children.changed = False
                pids = [[k.pid, k.start, i] for i, k in kids.items() if k.alive]
                doc = {"keeper": [self.me, self.identity["start"]], "guardian": self.guardian, "kids": pids}
                write_private(self.papers.record, {**self.identity, "host": self.papers.host, **doc})
            ends = [k.due for k in kids.values() if k.due is not None]
            ends += [] if self.deadline is None else [self.deadline]
            for key, mask in self.sel.select(max(0.0, min(ends) - now) if ends else None):
                if isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() < 0:
                    continue  # hung up by a handler before it in this round
                try:
                    key.data(key.fileobj, mask)
                except Exception:  # a defect in one request must not take the host down
                    sys.excepthook(*sys.exc_info())


# -- starting


def guard(keeper: int, papers: Papers) -> None:
    """The guardian's whole life: when the keeper has ended, end all it left, and say so if it was not its own doing."""
    LIBC.prctl(PR_SET_NAME, b"monarch-guard", 0, 0, 0)
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(s, signal.SIG_IGN)
    info = os.waitid(os.P_PID, keeper, os.WEXITED)
    assert info is not None
    end_family(os.getpid(), RELEASE_LIMIT)
    if info.si_code == os.CLD_EXITED and info.si_status in (0, START_FAILED):
        os._exit(0)
    how = f"exit code {info.si_status}" if info.si_code == os.CLD_EXITED else f"signal {info.si_status}"
    lost = [kid[2] for kid in read_json(papers.record).get("kids", ()) if kid[2] != "daemon"]
    papers.bury(f"the keeper of host {papers.host} was ended from outside ({how})", lost)
    papers.clear()
    os._exit(0)


def main() -> None:
    """Read the document, fork twice, answer with one line on stdout, and keep."""
    doc = json.loads(sys.stdin.buffer.read())
    for fd in [int(x) for x in os.listdir("/proc/self/fd")]:
        if fd > 2:
            try:
                os.close(fd)
            except OSError:
                pass
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    papers = Papers(doc)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    if keeper := os.fork():
        os.dup2(null, 1)
        os.close(null)
        guard(keeper, papers)
    try:
        k = Keeper(doc, papers)
        doc.pop("blobs", None)
        line = {**k.identity, "guardian": k.guardian[0]}
    except Exception as e:
        os.write(1, json.dumps({"error": f"{type(e).__name__}: {e}"}).encode() + b"\n")
        end_family(os.getpid(), RELEASE_LIMIT)
        os._exit(START_FAILED)
    try:
        os.write(1, json.dumps(line).encode() + b"\n")
    except OSError:  # whoever asked is gone already: nobody would ever find this host
        k.ending, k.bury = "its launcher went away", False
    os.dup2(2, 1)
    os.close(null)
    k.run()


if __name__ == "__main__":
    main()
