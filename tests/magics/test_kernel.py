"""%monarch as a front end sees it, in a real kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from monarch_kernel.kernel import specs

# Until the extension does it; the second time does nothing more.
REGISTER = """
from monarch_kernel import magics
from monarch_kernel.kernel import loaded
magics.register(get_ipython(), loaded())
"""


class Client:
    """Cells and Tab."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, code: str, begun: Callable[[], None] | None = None) -> list[dict[str, Any]]:
        """All that a front end is told of a cell; ``begun`` is called once it runs."""
        told: list[dict[str, Any]] = []

        def hear(message: dict[str, Any]) -> None:
            told.append({"type": message["header"]["msg_type"], **message["content"]})
            if begun is not None and told[-1]["type"] == "execute_input":
                begun()

        self.reply = self._client.execute_interactive(code, output_hook=hear, timeout=30)["content"]
        return told

    def complete(self, code: str) -> dict[str, Any]:
        reply = self._client.complete(code, len(code), reply=True, timeout=10)
        return dict(reply["content"])


@pytest.fixture(scope="module")
def kernel(home: Path) -> Iterator[tuple[KernelManager, Client]]:
    specs.write(home / "kernels" / specs.NAME)
    finder = KernelSpecManager(kernel_dirs=[str(home / "kernels")], ensure_native_kernel=False)
    manager = KernelManager(
        kernel_name=specs.NAME, kernel_spec_manager=finder, connection_file=str(home / "connection.json")
    )
    with (home / "kernel.log").open("ab") as log:
        manager.start_kernel(env=dict(os.environ), cwd=str(home), stdout=log, stderr=log)
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=30)
    made = Client(client)
    made.run(REGISTER)
    assert made.reply["status"] == "ok", made.reply
    yield manager, made
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def test_pages_are_html_with_plain_text_beside(kernel: tuple[KernelManager, Client]) -> None:
    _, client = kernel
    told = client.run("%monarch up real --hosts 2")
    assert client.reply["status"] == "ok", client.reply
    page = [message for message in told if message["type"] == "display_data"][-1]["data"]
    assert page["text/plain"].startswith("Session real: made")
    assert "<table" in page["text/html"]


def test_a_failing_magic_shows_a_paragraph_and_its_type_and_fails_the_cell(
    kernel: tuple[KernelManager, Client],
) -> None:
    _, client = kernel
    told = client.run("%monarch attach nothing\nprint('never')")
    assert [message for message in told if message["type"] == "stream"] == []
    (error,) = [message for message in told if message["type"] == "error"]
    assert error["ename"] == "NoSuchSession"
    assert "no live session 'nothing'" in error["evalue"]
    assert error["traceback"] == [f"NoSuchSession: {error['evalue']}"]
    assert client.reply["status"] == "error"  # what nbclient raises from
    assert (client.reply["ename"], client.reply["evalue"]) == ("NoSuchSession", error["evalue"])


def test_tab_completes_words_sessions_meshes_and_ranks(kernel: tuple[KernelManager, Client]) -> None:
    _, client = kernel
    client.run("import monarch_kernel as mk; trainees = mk.hosts().spawn_procs(per_host={'gpus': 1})")
    assert client.reply["status"] == "ok", client.reply
    for typed, found, start in (
        ("%monarch re", ["restart", "rerun"], 9),
        ("%monarch attach r", ["real"], 16),
        ("%monarch restart tr", ["trainees"], 17),
        ("%monarch restart trainees[", ["trainees[0]", "trainees[1]"], 17),
        ("%monarch up new --fr", ["--fresh"], 16),
        ("%monarch rerun re", ["reuse", "replace"], 15),
    ):
        began = time.monotonic()
        reply = client.complete(typed)
        took = time.monotonic() - began
        assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (found, start, len(typed))
        assert took < 1.0  # the bound is 0.3 s for us; the machine may be busy
    assert "%monarch" in client.complete("%mon")["matches"]


def test_what_takes_long_is_one_output_that_changes(kernel: tuple[KernelManager, Client]) -> None:
    _, client = kernel
    told = client.run(
        "from monarch_kernel.magics import progress; import time\n"
        "progress.PATIENCE = 0.05\n"
        "progress.Progress(get_ipython()).run('waiting', lambda: time.sleep(0.4))"
    )
    shown = [message for message in told if message["type"] in ("display_data", "update_display_data")]
    assert [message["type"] for message in shown][:2] == ["display_data", "update_display_data"]
    assert len({message["transient"]["display_id"] for message in shown}) == 1
    assert [message["type"] for message in shown].count("display_data") == 1
    assert shown[-1]["data"]["text/plain"].startswith("waiting: 0.")


def test_an_interrupted_restart_says_that_it_goes_on(kernel: tuple[KernelManager, Client], home: Path) -> None:
    manager, client = kernel
    marker = home / "slow"
    client.run(
        "import os, time\nfrom monarch_kernel.actor import Actor\n"
        "class Slow(Actor):\n"
        "    def __init__(self):\n"
        f"        while os.path.exists({str(marker)!r}): time.sleep(0.02)\n"
        "slow = trainees.spawn('slow', Slow)"
    )
    assert client.reply["status"] == "ok", client.reply
    marker.touch()
    told = client.run(
        "import threading, signal\n"
        "threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
        "%monarch restart slow[0] --level actor"
    )
    marker.unlink()
    (error,) = [message for message in told if message["type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    assert error["traceback"] == [f"KeyboardInterrupt: {error['evalue']}"]
    assert "the hosts go on restarting slow" in error["evalue"]
    assert manager.is_alive()


def test_down_frees_and_says_what(kernel: tuple[KernelManager, Client]) -> None:
    _, client = kernel
    told = client.run("%monarch down")
    assert client.reply["status"] == "ok", client.reply
    pages = [message["data"]["text/plain"] for message in told if message["type"] == "display_data"]
    assert pages[-1].startswith("Session real is released: 2 hosts and ")
