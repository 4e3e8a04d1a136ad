"""Tab in an import of ours."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from monarch_kernel import actor, rdma


def offered(shell: Any, code: str) -> list[str]:
    with provisionalcompleter():
        return [found.text for found in shell.ip.Completer.completions(code, len(code))]


@pytest.mark.parametrize("jedi", [True, False])
@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("from monarch_kernel.actor import ", sorted(actor.__all__)),
        ("import os\n  from monarch_kernel.actor import (Actor, endpoint as ep, ", sorted(actor.__all__)),
        ("from monarch_kernel.actor import Actor, this_", ["this_host", "this_proc"]),
        ("from monarch_kernel.rdma import ", sorted(rdma.__all__)),
    ],
)
def test_the_public_names_are_offered_and_no_private_ones(
    shell: Any, monkeypatch: pytest.MonkeyPatch, jedi: bool, typed: str, names: list[str]
) -> None:
    monkeypatch.setattr(shell.ip.Completer, "use_jedi", jedi)
    assert offered(shell, typed) == names


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("from monarch_kernel.actor import _con", "_context"),
        ("from monarch_kernel import ac", "actor"),
        ("from collections import Order", "OrderedDict"),
    ],
)
def test_other_imports_are_left_alone(shell: Any, typed: str, name: str) -> None:
    assert name in offered(shell, typed)
