"""Loading, unloading, restarting and ending, with real kernel managers."""

from __future__ import annotations

import os
import time

import pytest

from monarch_kernel.kernel import specs

STATE = """
import sys
from ipykernel.comm.comm import BaseComm
kernel = get_ipython().kernel
def patched():
    return [
        "run_ast_nodes" in vars(get_ipython()),
        "showtraceback" in vars(get_ipython()),
        "_cancel_on_sigint" in vars(kernel),
        getattr(BaseComm, "_reply_subshell_for", None).__module__,
        len(get_ipython().events.callbacks["pre_run_cell"]),
        len(get_ipython().events.callbacks["post_run_cell"]),
    ]
"""


def wait_until_gone(pid: int, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


def test_the_kernel_says_who_it_is(monarch):
    monarch.client.kernel_info()
    info = monarch.client.get_shell_msg(timeout=10)["content"]
    assert info["implementation"] == "monarch-kernel"
    assert info["banner"].startswith("Monarch kernel")
    assert info["language_info"]["name"] == "python"


def test_load_ext_in_our_own_kernel_finds_it_loaded(monarch):
    reply = monarch.run("%load_ext monarch_kernel")
    assert (reply.status, reply.stderr) == ("ok", "")
    assert "already loaded" in reply.stdout


def test_unloading_restores_everything_and_loading_again_works(start_kernel):
    kernel = start_kernel("plain")
    kernel.run(STATE)
    before = kernel.run("patched()").result
    kernel.run("%load_ext monarch_kernel")
    loaded = kernel.run("patched()").result
    assert kernel.run("%unload_ext monarch_kernel").status == "ok"
    assert kernel.run("patched()").result == before
    assert kernel.run("%load_ext monarch_kernel").status == "ok"
    assert kernel.run("patched()").result == loaded != before
    assert kernel.run("%reload_ext monarch_kernel").status == "ok"
    assert kernel.run("patched()").result == loaded
    kernel.close()


def test_the_cell_that_loads_the_extension_is_known_itself(start_kernel):
    kernel = start_kernel("plain")
    code = "%load_ext monarch_kernel\nfrom monarch_kernel.kernel import loaded\nprint(loaded().cells.current.cell_id)"
    assert kernel.run(code, metadata={"cellId": "first"}).stdout == "first\n"
    kernel.close()


def test_a_kernel_whose_extension_cannot_be_loaded_still_computes(start_kernel, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['monarch_kernel.kernel.extension'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    kernel = start_kernel(PYTHONPATH=path)
    assert kernel.run("1 + 1").result == "2"
    assert "The extension monarch_kernel could not be loaded" in kernel.log.read_text()
    kernel.close()


@pytest.mark.parametrize("now", [False, True], ids=["soft", "now"])
def test_a_restart_gives_a_fresh_kernel(start_kernel, now):
    kernel = start_kernel()
    kernel.run("left = 1")
    first = kernel.pid
    began = time.monotonic()
    kernel.restart(now=now)
    print(f"restart took {time.monotonic() - began:.2f} s")
    assert kernel.pid != first
    assert kernel.run("'left' in globals()").result == "False"
    kernel.close()


def test_a_shutdown_is_quiet(start_kernel):
    kernel = start_kernel(
        PYTHONWARNINGS="always::PendingDeprecationWarning,always::RuntimeWarning,always::ResourceWarning"
    )
    kernel.run("1")
    pid = kernel.pid
    kernel.manager.shutdown_kernel(now=False)
    wait_until_gone(pid)
    said = kernel.log.read_text()
    assert "do_shutdown" not in said
    assert "never awaited" not in said
    assert "Traceback" not in said
    kernel.close()


def test_a_child_inherits_none_of_the_kernels_descriptors_and_outlives_it(start_kernel, tmp_path):
    kernel = start_kernel()
    code = """
import os, subprocess
null = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "60"], start_new_session=True, stdin=null, stdout=null, stderr=null)
numbers = [int(n) for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")]
print(child.pid, *[n for n in numbers if os.get_inheritable(n)])
"""
    pid, *inheritable = map(int, kernel.run(code).stdout.split())
    try:
        held = {os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}
        assert held == {"/dev/null"}
        # What a native library starts closes none: the kernel's must not be inheritable to begin with.
        assert [os.readlink(f"/proc/{kernel.pid}/fd/{n}") for n in inheritable] == []
        for _ in range(2):
            kernel.restart(now=True)
            assert kernel.run("1 + 1").result == "2"  # on the same ports
        os.kill(pid, 0)
    finally:
        os.kill(pid, 9)
    kernel.close()


def test_a_plain_terminal_shell_has_cells_and_the_barrier_too():
    import subprocess
    import sys

    code = """
from IPython.core.interactiveshell import InteractiveShell
ip = InteractiveShell.instance(colors="nocolor")
ip.run_cell("%load_ext monarch_kernel")
from monarch_kernel.kernel import loaded
seen = []
class Log:
    def on_begin(self, e): seen.append((e.notebook, e.cell_id, e.source, e.parent))
    def on_end(self, e, ok): seen.append(ok)
loaded().cells.add(Log())
def fail(seconds): raise RuntimeError("rank 2 failed")
for kind in ("", "import asyncio; await asyncio.sleep(0)\\n"):
    assert ip.run_cell(kind + "x = 1").success
    loaded().barrier.add(source := lambda: [fail])
    result = ip.run_cell(kind + "x = 2")
    loaded().barrier.discard(source)
    assert isinstance(result.error_in_exec, RuntimeError), result
assert seen[:2] == [(None, None, "x = 1", {}), True], seen
assert seen[3] is False
ip.run_cell("%unload_ext monarch_kernel")
assert loaded() is None and "run_ast_nodes" not in vars(ip)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_widget_routing_lets_the_front_ends_subshell_stand(kernel):
    if (
        kernel.run("from ipykernel.comm.comm import BaseComm\nhasattr(BaseComm, '_reply_subshell_for')").result
        != "True"
    ):
        pytest.skip("this ipykernel leaves the front end's choice alone")
    kernel.run("import comm; c = comm.create_comm(target_name='t'); c._reply_subshell_id = 'sender'")
    assert kernel.run("c._reply_subshell_for({}, 'asked')").result == "'asked'"
    assert kernel.run("c._reply_subshell_for({}, None)").result == "'sender'"
    kernel.run("c._reply_subshell_ids['r1'] = 'waiting'")
    assert kernel.run("c._reply_subshell_for({'content': {'id': 'r1'}}, 'asked')").result == "'waiting'"
    assert kernel.run("c._reply_subshell_for({'content': {'id': 'r1'}}, 'asked')").result == "'asked'"


def test_a_widget_is_heard_while_a_cell_blocks(kernel):
    """The front end's half, by hand: a subshell, and a message of the widget's comm that names it."""
    client = kernel.client
    request = client.session.msg("create_subshell_request", {})
    client.control_channel.send(request)
    subshell = client.get_control_msg(timeout=10)["content"]["subshell_id"]
    try:
        made = kernel.run("import comm, threading\nclicked = threading.Event()\nc = comm.create_comm(target_name='t')\n"
                          "c.on_msg(lambda m: clicked.set())\nc.send({})\nc.comm_id")  # fmt: skip
        sent = kernel.submit("print('begun', flush=True)\nclicked.wait(10)")

        def click(text: str) -> None:
            message = client.session.msg("comm_msg", {"comm_id": made.result.strip("'"), "data": {}})
            message["header"]["subshell_id"] = subshell
            client.shell_channel.send(message)

        assert kernel.collect(sent, click).result == "True"
    finally:
        client.control_channel.send(client.session.msg("delete_subshell_request", {"subshell_id": subshell}))
        client.get_control_msg(timeout=10)


def test_the_kernelspec_is_complete(kernelspecs):
    folder = kernelspecs / specs.NAME
    assert {path.name for path in folder.iterdir()} == {
        "kernel.json",
        "logo-32x32.png",
        "logo-64x64.png",
        "logo-svg.svg",
    }
    assert specs.starts_ours(folder)
    assert not specs.starts_ours(kernelspecs / "plain")
