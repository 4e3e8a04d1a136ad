"""The stop button works at once, whatever the cell is doing."""

from __future__ import annotations

import pytest

SOON = 3.0  # seconds; measured 0.1, on a machine with nothing else to do
STOPPED = {"KeyboardInterrupt", "CancelledError"}
SAY = "print('begun', flush=True)\n"

CELLS = {
    "a blocking cell": "import time\n" + SAY + "time.sleep(60)",
    "a cell that awaits": "import asyncio\n" + SAY + "await asyncio.sleep(60)",
    "a cell that awaits, then blocks": "import asyncio, time\nawait asyncio.sleep(0)\n" + SAY + "time.sleep(60)",
    "a coroutine of the user's that blocks": "import time\nasync def f():\n    time.sleep(60)\n" + SAY + "await f()",
    "a cell that awaits a future of another thread": (
        "import asyncio, threading\nf = asyncio.get_running_loop().create_future()\n" + SAY + "await f"
    ),
    "a cell that computes": "import asyncio\nawait asyncio.sleep(0)\n" + SAY + "while True: pass",
}


@pytest.mark.parametrize("what", CELLS)
def test_an_interrupt_ends(kernel, what):
    reply, seconds = kernel.interrupt_when(CELLS[what], "begun", asleep="block" in what)
    print(f"{what}: ended {seconds:.2f} s after the interrupt with {reply.ename}")
    assert reply.status == "error"
    assert reply.ename in STOPPED
    assert seconds < SOON
    assert kernel.run("1 + 1").result == "2"


def test_what_an_interrupted_cell_had_awaited_does_not_come_later(kernel):
    code = "import asyncio\nasync def late():\n    await asyncio.sleep(0.3)\n    print('late')\n" + SAY + "await late()"
    kernel.interrupt_when(code, "begun")
    assert kernel.run("await asyncio.sleep(0.5)").stdout == ""


def test_a_cell_may_clean_up_when_it_is_interrupted(kernel):
    code = "import asyncio\ntry:\n    " + SAY.strip() + "\n    await asyncio.sleep(60)\nfinally:\n    print('cleaned')"
    reply, _ = kernel.interrupt_when(code, "begun")
    assert reply.stdout.endswith("cleaned\n")


def test_an_interrupt_between_cells_does_nothing(kernel):
    kernel.run("1")
    kernel.manager.interrupt_kernel()
    assert kernel.run("2 + 2").result == "4"
