"""Pickled meshes in another program, or after their session."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
from mesh_actors import Counter

import monarch_kernel as mk
from monarch_kernel.errors import SessionEnded, StaleHandle

WAIT = 30


def test_a_pickled_mesh_outlives_its_controller_and_not_its_session(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    session = mk.up("pickled", hosts=2)
    try:
        mesh: Any = session.hosts.spawn_procs(per_host={"x": 1}).spawn("counters", Counter, 4)
        assert list(mesh.add.call(1).get(timeout=WAIT).values()) == [5, 5]
        (tmp_path / "mesh").write_bytes(pickle.dumps(mesh.slice(hosts=1)))
        session.detach()
        program = (
            "import pickle, sys\n"
            "import monarch_kernel as mk\n"
            "data = open(sys.argv[1], 'rb').read()\n"
            "try:\n"
            "    pickle.loads(data)\n"
            "except mk.errors.StaleHandle as error:\n"
            "    assert \"attach('pickled')\" in str(error), error\n"
            "else:\n"
            "    raise AssertionError('nothing is attached')\n"
            "mk.attach('pickled')\n"
            "print(list(pickle.loads(data).add.call(1).get(timeout=20).values()))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "mesh")],
            capture_output=True, text=True, timeout=WAIT, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.stdout.strip() == "[6]", done.stderr
    finally:
        mk.down("pickled")
    with pytest.raises((SessionEnded, mk.errors.NotAttached)):
        mesh.value.call().get(timeout=WAIT)
    with pytest.raises(StaleHandle):
        pickle.loads((tmp_path / "mesh").read_bytes())
    session = mk.up("pickled")
    try:
        with pytest.raises(StaleHandle, match="as it was then"):
            pickle.loads((tmp_path / "mesh").read_bytes())
    finally:
        session.release()
