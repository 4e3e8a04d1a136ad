"""Which host a sender's messages go to: the same for all of a mesh, for as long as that host is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch_kernel.state.routing import Routes


def test_the_first_host_that_is_there_is_the_root():
    routes = Routes()
    assert routes.known(1) is None
    assert routes.root(1, (2, 1, 3)) == 1
    assert routes.known(1) == 1
    routes.lost(1)
    assert routes.root(2, (1, 3)) == 3


def test_a_lost_root_moves_its_meshes_and_no_others():
    routes = Routes()
    routes.root(1, (0, 1))
    routes.root(2, (1, 2))
    routes.root(3, (0, 2))
    assert sorted(routes.lost(0)) == [1, 3]
    assert [routes.root(1, (0, 1)), routes.root(2, (1, 2)), routes.root(3, (0, 2))] == [1, 1, 2]
    assert routes.lost(0) == []


def test_what_has_moved_away_stays_away_when_the_host_is_back():
    """Going back could let a later message overtake an earlier one."""
    routes = Routes()
    routes.root(1, (0, 1))
    routes.lost(0)
    assert routes.root(1, (0, 1)) == 1
    routes.back(0)
    assert routes.root(1, (0, 1)) == 1
    assert routes.root(2, (0, 1)) == 0


def test_with_all_hosts_lost_there_is_none():
    routes = Routes()
    routes.lost(0)
    assert routes.root(1, (0,)) is None
    routes.back(0)
    assert routes.root(1, (0,)) == 0


def test_a_stopped_mesh_is_forgotten():
    routes = Routes()
    routes.root(1, (0,))
    routes.forget(1)
    routes.forget(1)
    assert routes.known(1) is None


@given(st.lists(st.tuples(st.sampled_from(["ask", "lost", "back"]), st.integers(0, 3), st.integers(0, 4))))
def test_a_root_is_never_a_lost_host_and_changes_only_when_lost(events):
    routes, lost, roots = Routes(), set(), {}
    hosts = {mesh: tuple(range(mesh % 3, 5)) for mesh in range(4)}
    for what, mesh, host in events:
        if what == "ask":
            root = routes.root(mesh, hosts[mesh])
            there = [h for h in hosts[mesh] if h not in lost]
            assert root == (roots.get(mesh) if mesh in roots else min(there, default=None))
            assert root is None or root not in lost
            if root is not None:
                roots[mesh] = root
        elif what == "lost":
            lost.add(host)
            moved = {m for m, root in roots.items() if root == host}
            assert set(routes.lost(host)) == moved
            for m in moved:
                del roots[m]
        else:
            lost.discard(host)
            routes.back(host)
