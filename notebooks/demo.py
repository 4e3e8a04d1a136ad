"""Run the tour in a real kernel, kill that kernel in the middle of a training call, and check that nothing was lost.

This is what ``make demo`` runs. It starts the kernel `monarch` through jupyter_client and runs the cells of
01-tour.ipynb up to the one that leaves a training call in flight. There it ends the kernel with SIGKILL, watches the
steps go on with no kernel alive, starts a new kernel, and runs the rest of the tour in it: attach, fetch that very
call's result, finish. The result is compared, step by step and bit by bit, with runs of the same seed that nobody
disturbed: one before the kill, and one in new processes after it.

The session has a name and a state folder of its own, so it never meets a user's sessions, and is released at the end
whatever happens. The last line is one line of JSON. The exit status is 0 only if everything was as promised.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOUR = Path(__file__).with_name("01-tour.ipynb")
IN_FLIGHT = "flight"  # the cell that leaves a call under way; with the next one a new kernel begins
STEPS_BEFORE = 60  # the kernel is killed when the call has come this far ...
STEPS_WITHOUT = 60  # ... and the next kernel starts after at least so many more
CELL_LIMIT = 120.0  # seconds; no cell of the tour takes a quarter of it
LINES_SHOWN = 20  # of a cell's output
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class NotAsPromised(Exception):
    """Something did not happen as the README says; the text is for the person who ran the demo."""


class Account:
    """What the demo prints: short lines with the time since it began."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def line(self, text: str) -> None:
        print(f"{self.seconds():6.1f} s  {text}", flush=True)

    def output(self, text: str) -> None:
        """What a cell printed, indented, its middle left out when it is long."""
        lines = [line for line in ANSI.sub("", text).rstrip().splitlines() if line.strip()]
        if len(lines) > LINES_SHOWN:
            half = LINES_SHOWN // 2
            lines[half : 1 - half] = [f"... {len(lines) - LINES_SHOWN + 1} lines ..."]
        for line in lines:
            print(f"          | {line if len(line) <= 150 else line[:149] + '…'}", flush=True)

    def reminder(self, what: Callable[[], str]) -> Callable[[], None]:
        """Return a function to call again and again while waiting: every three seconds it prints what is waited for."""
        last = time.monotonic()

        def remind() -> None:
            nonlocal last
            if time.monotonic() - last >= 3:
                last = time.monotonic()
                self.line(f"... {what()}")

        return remind


class Journal:
    """The file in which the tour's journal actor writes each step: what can be seen without any kernel."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._told = 0

    def steps(self) -> int:
        """How many steps the current run has come."""
        try:
            return self.path.read_text().count("\n") if self.path else 0
        except FileNotFoundError:
            return 0

    def __str__(self) -> str:
        return f"step {self.steps()}"

    def news(self) -> str:
        """The step, if it is another one than when this was last asked."""
        before, self._told = self._told, self.steps()
        return f" (training is at {self})" if self._told != before else ""


class Kernel:
    """One life of the real kernel, as a front end sees it."""

    def __init__(self, folder: Path, account: Account, journal: Journal) -> None:
        from jupyter_client.kernelspec import NoSuchKernel
        from jupyter_client.manager import KernelManager

        self._account = account
        self._journal = journal
        self._running: str | None = None  # the request that is not answered yet
        self._log = (folder / f"kernel-{time.time_ns()}.log").open("w+")
        self._manager = KernelManager(kernel_name="monarch")
        try:
            self._manager.start_kernel(cwd=str(folder), stdout=self._log, stderr=self._log)
        except NoSuchKernel:
            raise NotAsPromised(
                "The kernel 'monarch' is not installed for this Python. `make venv` installs it, and so does "
                "`monarch-kernel install --sys-prefix`."
            ) from None
        try:
            self._client = self._manager.blocking_client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=60)
            self.pid = int(self.value("__import__('os').getpid()"))
        except BaseException:
            self.stop()
            raise

    def run(self, source: str, title: str, *, quiet: bool = False) -> str:
        """Run a cell as a front end does, show what it prints, and return that."""
        sent = self._running = self._client.execute(source, allow_stdin=False)
        printed: list[str] = []
        lines: dict[str, int] = {}  # where in `printed` the outputs are that the kernel may replace
        doing, error = f"at '{title}'", ""
        self._journal.news()  # what went on before this cell is none of its news
        limit = time.monotonic() + CELL_LIMIT
        remind = self._account.reminder(lambda: doing + self._journal.news())
        while True:
            message = self._next(self._client.get_iopub_msg, sent, limit, title, remind)
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind in ("execute_result", "display_data", "update_display_data"):
                shown = "[a figure]" if "image/png" in content["data"] else content["data"].get("text/plain", "")
                place = content.get("transient", {}).get("display_id")
                if kind == "update_display_data" and place in lines:
                    printed[lines[place]] = shown + "\n"
                else:
                    printed.append(shown + "\n")
                if place is not None:  # a line that changes says what the kernel is at
                    lines[place] = len(printed) - 1 if place not in lines else lines[place]
                    doing = shown
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        self._next(self._client.get_shell_msg, sent, limit, title, remind)
        self._running = None
        text = "".join(printed)
        if not quiet:
            self._account.output(text)
        if error:
            raise NotAsPromised(f"The cell of '{title}' ended with an error:\n\n{ANSI.sub('', error)}")
        return text

    def value(self, expression: str) -> Any:
        """What an expression is worth in the kernel, by way of JSON."""
        sent = self._client.execute(
            f"_demo = __import__('json').dumps({expression})",
            store_history=False,
            allow_stdin=False,
            user_expressions={"demo": "_demo"},
        )
        title = f"the value of {expression}"
        remind = self._account.reminder(lambda: title + self._journal.news())
        reply = self._next(self._client.get_shell_msg, sent, time.monotonic() + CELL_LIMIT, title, remind)
        content = reply["content"]
        if content["status"] != "ok":
            raise NotAsPromised(f"`{expression}` failed in the kernel: {content['ename']}: {content['evalue']}")
        return json.loads(ast.literal_eval(content["user_expressions"]["demo"]["data"]["text/plain"]))

    def _next(self, get: Callable[..., Any], sent: str, limit: float, title: str, remind: Callable[[], None]) -> Any:
        """The next message that answers the request `sent`; an error when the kernel dies or the time is over."""
        while True:
            try:
                message = get(timeout=0.5)
            except queue.Empty:
                remind()
                if not self._manager.is_alive():
                    raise NotAsPromised(f"The kernel died by itself at '{title}'.\n\n{self._tail()}") from None
                if time.monotonic() > limit:
                    raise NotAsPromised(
                        f"'{title}' is not done after {CELL_LIMIT:.0f} seconds.\n\n{self._tail()}"
                    ) from None
                continue
            if message["parent_header"].get("msg_id") == sent:
                return message

    def _tail(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return "The kernel's last words: " + (self._log.read()[-2000:].strip() or "none")

    def kill(self) -> None:
        """End the kernel with SIGKILL, and wait until there is no such process."""
        os.kill(self.pid, signal.SIGKILL)
        limit = time.monotonic() + 10
        while self._manager.is_alive() or start_time(self.pid) is not None:
            if time.monotonic() > limit:
                raise NotAsPromised(f"The kernel, process {self.pid}, did not end within 10 seconds of SIGKILL.")
            time.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        """Let go of the kernel; nothing happens when it is dead already."""
        if self._running is not None and self._manager.is_alive():
            # Perhaps it is the cell that starts the session: interrupted, it ends what it has started so far.
            self._manager.interrupt_kernel()
            limit = time.monotonic() + 10
            with contextlib.suppress(NotAsPromised):
                self._next(self._client.get_shell_msg, self._running, limit, "interrupting the kernel", lambda: None)
        with contextlib.suppress(AttributeError):  # a kernel that never came up has no client
            self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._log.close()


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (field 22 of its stat); None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def cells_of_the_tour(session: str) -> list[tuple[str, str, str]]:
    """Return id, heading and source of each code cell, with `session` in place of the tour's own session name."""
    found, heading = [], "The tour"
    for cell in json.loads(TOUR.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if headings := re.findall(r"^#+ (.+)$", source, flags=re.MULTILINE):
                heading = headings[-1]
        elif cell["cell_type"] == "code":
            source = re.sub(r"^(%monarch \w+ )lab\b", rf"\g<1>{session}", source, flags=re.MULTILINE)
            found.append((cell["id"], heading, source))
    return found


# What the same training gives in processes that never saw a kill: the class is the notebook's own cell.
FRESH = """
fresh = mk.hosts().spawn_procs(per_host={"gpus": 2}).spawn("undisturbed", Trainer, seed=0)
"""
UNDISTURBED = """
form_group(fresh)
fresh.reset.call(seed=0).get()
fresh_losses = fresh.train.call(%d).get()
"""


class Demo:
    """The story, told once."""

    def __init__(self, folder: Path, session: str, account: Account) -> None:
        self.folder = folder
        self.session = session
        self.account = account
        self.journal = Journal()
        self.kernel: Kernel | None = None
        self.seen: set[int] = set()  # all trainers there ever were
        self.printed: dict[str, str] = {}
        self.heading = ""

    def start_kernel(self) -> Kernel:
        self.kernel = Kernel(self.folder, self.account, self.journal)
        self.account.line(f"A new kernel is there: process {self.kernel.pid}")
        return self.kernel

    def run_cells(self, kernel: Kernel, cells: list[tuple[str, str, str]]) -> None:
        for name, heading, source in cells:
            if heading != self.heading:
                self.account.line(heading)
                self.heading = heading
            self.printed[name] = kernel.run(source, heading)
            if name == "journal":  # from here on the steps can be seen from outside
                self.journal.path = Path(kernel.value("journal.where.call_one().get()"))

    def pids(self, kernel: Kernel) -> list[int]:
        pids: list[int] = kernel.value("trainers.pid.call().get().values()")
        self.seen.update(pids)
        return pids

    def wait_for_step(self, step: int, why: str) -> int:
        """Wait until the run has come to a step, and return the step it is at."""
        limit = time.monotonic() + 60
        remind = self.account.reminder(lambda: f"{why}: {self.journal}")
        while (at := self.journal.steps()) < step:
            if time.monotonic() > limit:
                raise NotAsPromised(f"Training stands still at step {at} ({why}); step {step} was waited for.")
            remind()
            time.sleep(0.02)
        return at

    def tell(self) -> dict[str, Any]:
        account, cells = self.account, cells_of_the_tour(self.session)
        cut = [name for name, _, _ in cells].index(IN_FLIGHT)

        kernel = self.start_kernel()
        self.run_cells(kernel, cells[:cut])
        self.check_the_killed_rank()
        steps_total = kernel.value("STEPS")
        first_losses = kernel.value("losses.values()")
        first_digests = kernel.value("expected.values()")
        pids_before = self.pids(kernel)
        starts_before = [start_time(pid) for pid in pids_before]
        account.line(f"The trainers are processes {', '.join(map(str, pids_before))}.")

        self.run_cells(kernel, cells[cut : cut + 1])
        self.wait_for_step(STEPS_BEFORE, "training is under way")
        kernel.kill()
        steps_before = self.journal.steps()
        account.line(f"KILLED: the kernel, process {kernel.pid}, with SIGKILL, at step {steps_before} of {steps_total}")
        self.wait_for_step(steps_before + STEPS_WITHOUT // 2, "no kernel is alive; training goes on")
        account.line(f"No kernel is alive, and training goes on: {self.journal}")
        steps_at_new_kernel = self.wait_for_step(steps_before + STEPS_WITHOUT, "no kernel is alive; training goes on")
        account.line(f"No kernel is alive, and training goes on: {self.journal}")
        if steps_at_new_kernel >= steps_total:
            raise NotAsPromised("The call had ended before the new kernel was started; that shows too little.")

        kernel = self.start_kernel()
        attach, fetch, rest = cells[cut + 1 : cut + 2], cells[cut + 2 : cut + 3], cells[cut + 3 :]
        self.run_cells(kernel, attach)
        account.line(f"Attached, while training is at {self.journal}")
        self.run_cells(kernel, fetch)
        losses = kernel.value("losses.values()")
        digests = kernel.value("trainers.digest.call().get().values()")
        accuracy = min(kernel.value("trainers.evaluate.call().get().values()"))
        pids_after = self.pids(kernel)
        starts_after = [start_time(pid) for pid in pids_after]
        self.run_cells(kernel, rest)

        account.line("To compare with: the same training in new processes, undisturbed")
        source = {name: text for name, _, text in cells}
        kernel.run("from monarch_kernel.actor import Actor, endpoint", "the imports", quiet=True)
        kernel.run(source["trainer"], "importing torch into the new kernel", quiet=True)
        kernel.run(source["group"], "the group", quiet=True)
        kernel.run(FRESH, "four new processes", quiet=True)
        kernel.run(UNDISTURBED % steps_total, "training", quiet=True)
        self.seen.update(kernel.value("fresh.pid.call().get().values()"))
        fresh_losses = kernel.value("fresh_losses.values()")
        fresh_digests = kernel.value("fresh.digest.call().get().values()")

        same = {
            "the losses of the first run of the tour": losses == first_losses,
            "the state after the first run of the tour": digests == first_digests,
            "the losses of a run in new processes": losses == fresh_losses,
            "the state after a run in new processes": digests == fresh_digests,
            "the tour's own comparison of the losses": "same losses: True" in self.printed["compare"],
            "the tour's own comparison of the state": "same state:  True" in self.printed["compare"],
        }
        for what, equal in same.items():
            if not equal:
                account.line(f"DIFFERENT: {what}")
        return {
            "session": self.session,
            "pids_before": pids_before,
            "pids_after": pids_after,
            "start_times_equal": None not in starts_before and starts_before == starts_after,
            "steps_before": steps_before,
            "steps_without_kernel": steps_at_new_kernel - steps_before,
            "steps_total": len(losses[0]),
            "accuracy": round(accuracy, 4),
            "same_as_uninterrupted": all(same.values()),
            "seconds": 0.0,
        }

    def check_the_killed_rank(self) -> None:
        """Section 7 of the tour: the error names rank, host and signal; training ended as if nothing had happened."""
        text = self.printed["kill"].lower()
        if missing := [word for word in ("rank 2", "host 1", "sigkill") if word not in text]:
            raise NotAsPromised(f"The error after a rank was killed does not say {' nor '.join(missing)}.")
        if "same as undisturbed: True" not in self.printed["resume"]:
            raise NotAsPromised("After the killed rank was brought back, training ended with another state.")

    def close(self) -> None:
        """Release everything and wait for it; whatever happened before."""
        if self.kernel is not None:
            self.kernel.stop()
        import monarch_kernel as mk
        from monarch_kernel.errors import NoSuchSession

        with contextlib.suppress(NoSuchSession):  # `up` was never reached
            mk.down(self.session)
            self.account.line(f"The session {self.session} is released")
        if left := sorted(pid for pid in self.seen if start_time(pid) is not None):
            raise NotAsPromised(f"Processes were left after the session was released: {', '.join(map(str, left))}.")


def check(result: dict[str, Any]) -> None:
    """What the README promises of the last line."""
    broken = {
        "the trainers are not the same processes": result["pids_before"] != result["pids_after"],
        "the trainers were started again": not result["start_times_equal"],
        "no steps went on without a kernel": result["steps_without_kernel"] < STEPS_WITHOUT,
        "fewer than 95 % of the held-out digits are read right": result["accuracy"] < 0.95,
        "the numbers differ from an undisturbed run's": not result["same_as_uninterrupted"],
        "it took longer than three minutes": result["seconds"] > 180,
    }
    if found := [what for what, is_so in broken.items() if is_so]:
        raise NotAsPromised(f"Not as promised: {'; '.join(found)}.")


def summary(result: dict[str, Any]) -> str:
    """The last line of the demo, in words."""
    return textwrap.fill(
        f"The call of {result['steps_total']} steps outlived its kernel: {result['steps_before']} steps were done when "
        f"the kernel was killed, {result['steps_without_kernel']} more with no kernel alive, and a new kernel fetched "
        f"the result. The four trainers are the same processes as before. They read {result['accuracy']:.1%} of the "
        "held-out digits right, and every loss, parameter and optimizer state is equal, to the last bit, to that of "
        "runs which nobody disturbed.",
        100,
    )


def main() -> int:
    account = Account()
    session = f"demo-{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="monarch-demo-"))
    # Of its own, for the kernels and for this process: a user's sessions are never met, and the journal goes here too.
    os.environ.update(XDG_STATE_HOME=str(folder / "state"), TMPDIR=str(folder))
    # Ctrl-C, a closed terminal and a polite kill all end in the same release.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    account.line(f"The tour ({TOUR.name}) in session {session}; its kernel will be killed in the middle of a call")
    account.line("Lines with a bar are what the notebook's cells print; the others are the demo's own")
    demo = Demo(folder, session, account)
    result, status = None, 1
    try:
        result = demo.tell()
    except NotAsPromised as error:
        complain(str(error))
    except KeyboardInterrupt:
        complain("Interrupted; releasing what was started.")
        status = 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the release short
        try:
            demo.close()
        except NotAsPromised as error:
            complain(str(error))
            result = None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if result is None:
        return status
    result["seconds"] = round(account.seconds(), 1)
    try:
        check(result)
        account.line("As promised:")
        account.output(summary(result))
        status = 0
    except NotAsPromised as error:
        complain(str(error))
    print(json.dumps(result), flush=True)
    return status


def complain(text: str) -> None:
    """One clear paragraph, on stderr; lines that are laid out already (a traceback) stay as they are."""
    first, _, rest = text.partition("\n\n")
    print("\n" + textwrap.fill(first, 110) + (f"\n\n{rest}" if rest else ""), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
