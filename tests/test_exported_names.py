"""What the package exports: one public face, every name of it real."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = [
    "monarch_kernel",
    "monarch_kernel.actor",
    "monarch_kernel.config",
    "monarch_kernel.errors",
    "monarch_kernel.job",
    "monarch_kernel.kernel",
    "monarch_kernel.rdma",
]


def declared() -> list[str]:
    """Return the modules of monarch_kernel that declare ``__all__``."""
    found = []
    for path in sorted((ROOT / "monarch_kernel").rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        targets = [t for n in body if isinstance(n, ast.Assign) for t in n.targets]
        targets += [n.target for n in body if isinstance(n, ast.AnnAssign)]
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            name = ".".join(("monarch_kernel", *path.relative_to(ROOT / "monarch_kernel").with_suffix("").parts))
            found.append(name.removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_says_what_it_exports(module: str) -> None:
    assert module in declared()


@pytest.mark.parametrize("module", declared())
def test_every_exported_name_exists_once_and_is_listed(module: str) -> None:
    face = importlib.import_module(module)
    assert len(set(face.__all__)) == len(face.__all__)
    missing = [name for name in face.__all__ if not hasattr(face, name)]
    assert missing == []
    assert set(face.__all__) <= set(dir(face))


def test_the_actor_face_shows_its_public_names_and_no_others() -> None:
    face = importlib.import_module("monarch_kernel.actor")
    assert dir(face) == sorted(face.__all__)
