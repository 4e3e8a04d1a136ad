"""What ranks print before a script ends is on the script's own output."""

from __future__ import annotations

SCRIPT = """
import monarch_kernel as mk
from monarch_kernel.actor import Actor, endpoint

class Talker(Actor):
    @endpoint
    def say(self, times):
        for n in range(times):
            print("line", n)

with mk.up("script-says") as session:
    talkers = session.hosts.spawn_procs(per_host={"gpus": 2}).spawn("talkers", Talker)
    talkers.say.call(1000).get()
    talkers.say.broadcast(1)
    talkers.say.call(0).get()
"""


def test_the_last_lines_are_there_when_a_script_ends_at_once(script):
    one = script(SCRIPT)
    out, err = one.process.communicate(timeout=60)
    assert one.process.returncode == 0, err
    assert sorted(out.splitlines()) == sorted([f"line {n}" for n in range(1000)] * 2 + ["line 0"] * 2)


def test_nobody_who_reads_no_more_keeps_a_script_from_ending(script):
    one = script(SCRIPT.replace("1000", "200_000"))
    one.line()
    one.process.stdout.close()
    assert one.process.wait(timeout=60) == 0
