"""What comes back with an attach, to whom, and how fast; and where a pickled handle still means something."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import Counter
from processes import SLACK, daemons, gone, keepers, procs, until

import monarch_kernel as mk
from monarch_kernel import errors

#: Sixty-four actors of a class that nobody else has, and that leaves a mark wherever it, or an argument, is unpickled.
MANY = """
import os, sys
import monarch_kernel as mk
from monarch_kernel.actor import Actor, endpoint

class Trap:
    def __init__(self, folder):
        self.folder = folder
    def __reduce__(self):
        return spring, (self.folder,)

def spring(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    return Trap(folder)

class Trapped(Actor):
    trap = Trap(sys.argv[1])
    def __init__(self, argument):
        self.n = 0
    @endpoint
    def add(self, by: int) -> int:
        self.n += by
        return self.n

mk.up("many", hosts=2, lease="20m")
procs = mk.hosts().spawn_procs(per_host={"gpus": 2}, name="procs")
meshes = [procs.spawn(f"mesh{number}", Trapped, Trap(sys.argv[1])) for number in range(16)]
for mesh in meshes:
    mesh.add.call(1).get()
print("ready")
input()
"""


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture
def many(script: Callable[..., Any], marks: Path) -> None:
    """Session ``many``, left by a script that was killed."""
    if "many" not in {file.name for file, _ in mk.sessions()}:
        made = script(MANY, marks)
        assert made.line() == "ready"
        assert made.kill() == -9


def test_sixty_four_actors_are_back_in_a_moment_and_no_class_of_the_users_is_unpickled(
    many: None, marks: Path, detached: None
) -> None:
    began = time.monotonic()
    session = mk.attach("many")  # its controller is dead, so there is nobody to take it over from
    took = time.monotonic() - began
    actors = session.actors
    print(f"attached to 64 actors in {took:.3f} s")
    assert took < 1.0 * SLACK
    assert sum(len(mesh) for mesh in actors.values()) == 64
    for mesh in actors.values():
        assert mesh.add.call(1).get(20).values() == [2] * 4
    with pytest.raises(TypeError, match="by"):
        actors["mesh3"].add.call()
    with pytest.raises(AttributeError, match="its endpoints: add"):
        actors["mesh3"].nothing  # noqa: B018
    unpickled = {int(path.name) for path in marks.iterdir()}
    assert {pid for pid, _ in procs("many").values()} <= unpickled  # the trap works
    assert not unpickled & {os.getpid(), *daemons("many"), *keepers("many")}
    assert session.before is not None
    assert session.before[0].startswith("script ")


def test_names_are_found_from_a_kernel_and_from_a_script_alike(
    many: None, start_kernel: Callable[[], Any], script: Callable[..., Any]
) -> None:
    kernel = start_kernel()
    assert "mesh7" in kernel.run("%monarch attach many").displayed[-1]["text/plain"]
    code = "import monarch_kernel as mk\nmk.session().actors['mesh7'].add.call(0).get().values()"
    assert kernel.run(code).result == "[2, 2, 2, 2]"
    unknown = kernel.run("mk.session().actors['mesh77']")
    assert unknown.ename.endswith("KeyError")
    assert "no mesh 'mesh77' among the actors of session 'many'" in unknown.evalue
    assert "mesh7" in unknown.evalue.replace("mesh77", "")
    assert kernel.run("mk.session().actors.get('mesh77'), 'mesh77' in mk.session().procs").result == "(None, False)"
    kernel.run("%monarch detach")
    nothing = kernel.run("%monarch attach nothing")
    assert "no live session 'nothing'" in nothing.evalue
    assert "Live sessions: many" in nothing.evalue

    other = script(
        "import monarch_kernel as mk\n"
        "with mk.attach('many') as session:\n"
        "    print(sorted(session.actors)[:2], list(session.procs))\n"
        "    print(session.actors['mesh7'].add.call(0).get().values())\n"
    )
    assert other.line() == "['mesh0', 'mesh1'] ['procs']"
    assert other.line() == "[2, 2, 2, 2]"
    assert other.end() == 0
    assert other.stderr == ""
    kernel.close()


def test_attach_without_a_name_means_the_only_one(many: None, detached: None) -> None:
    assert mk.attach().name == "many"


# -- handles


@pytest.fixture
def pickled(many: None) -> dict[str, bytes]:
    """Handles of session ``many``, pickled by a controller that has left."""
    with mk.attach("many") as session:
        mesh = session.actors["mesh0"]
        return {
            "mesh": pickle.dumps(mesh),
            "slice": pickle.dumps(mesh.slice(hosts=1)),
            "procs": pickle.dumps(session.procs["procs"]),
            "hosts": pickle.dumps(session.hosts),
        }


def test_a_pickled_handle_says_how_to_attach_where_nothing_is_attached(pickled: dict[str, bytes]) -> None:
    for handle in ("mesh", "slice", "procs", "hosts"):
        with pytest.raises(errors.StaleHandle, match=r"monarch_kernel\.attach\('many'\) first"):
            pickle.loads(pickled[handle])


def test_a_pickled_handle_works_in_another_process_that_has_attached(
    pickled: dict[str, bytes], script: Callable[..., Any]
) -> None:
    reader = script(
        "import pickle, sys\nimport monarch_kernel as mk\n"
        "def read(): return pickle.loads(bytes.fromhex(input()))\n"
        "mk.attach('many')\n"
        "print(read().add.call(0).get().values())\n"
        "print(read().add.call(0).get().values())\n"
        "print(read().name, len(read()))\n"
    )
    for handle in pickled.values():
        reader.say(handle.hex())
    assert reader.line() == "[2, 2, 2, 2]"
    assert reader.line() == "[2, 2]"
    assert reader.line() == "procs 2"
    assert reader.end() == 0
    assert reader.stderr == ""


def test_a_handle_of_a_session_that_was_started_anew_is_stale(home: Path, detached: None) -> None:
    session = mk.up("renewed", lease="20m")
    counters = mk.hosts().spawn_procs(name="old").spawn("old counters", Counter)
    assert counters.add.call(1).get(30).values() == [1]
    kept = pickle.dumps(counters)
    session.release()
    with mk.up("renewed", lease="20m"):
        with pytest.raises(errors.StaleHandle, match=r"'old counters'.*'renewed'"):
            pickle.loads(kept)
        with pytest.raises(errors.SessionEnded, match="was released"):
            counters.add.call(1).get(20)
        new = mk.hosts().spawn_procs(name="new").spawn("new counters", Counter)
        assert new.add.call(1).get(30).values() == [1]
    mk.down("renewed")


@pytest.fixture
def lost(home: Path) -> Iterator[mk.Session]:
    """A session of this process whose keepers are killed by the test."""
    session = mk.up("lost", hosts=2, lease="20m")
    yield session
    mk.down("lost")


def test_a_host_that_comes_back_leaves_the_controller_usable(lost: mk.Session) -> None:
    """A keeper is a host's life: with it go its processes. The same name at once works again, old handles are stale."""
    counters = mk.hosts().spawn_procs(name="procs").spawn("counters", Counter)
    assert counters.add.call(1).get(30).values() == [1, 1]
    kept = pickle.dumps(counters)
    running = procs("lost")
    for pid in keepers("lost"):
        os.kill(pid, 9)
    until(lambda: all(gone(pid) for pid, _ in running.values()))
    session = mk.up("lost", hosts=2, lease="20m")
    assert session is not lost
    began = time.monotonic()
    with pytest.raises((errors.StaleHandle, errors.SessionEnded)):
        counters.add.call(1).get(20)
    with pytest.raises(errors.StaleHandle, match="counters"):
        pickle.loads(kept)
    print(f"stale after {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 1.0 * SLACK
    again = mk.hosts().spawn_procs(name="procs").spawn("counters", Counter)
    assert again.add.call(1).get(30).values() == [1, 1]
