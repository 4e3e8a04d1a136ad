"""Which way imports may point (docs/architecture.md), read from the syntax trees of all our files."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {
    "monarch_kernel": ROOT / "monarch_kernel",
    "monarch_worker": ROOT / "worker" / "monarch_worker",
    "monarch_rdma": ROOT / "rdma" / "monarch_rdma",
}

#: For each part, the parts it may import besides itself.
BELOW_SESSION = {"launch", "actor", "protocol", "state", "errors"}
FACES = {"kernel", "magics", "widgets", "agents", "cli"}
ARROWS = {
    "state": set(),
    "errors": set(),
    "protocol": {"state", "errors"},
    "actor": {"protocol", "state", "errors"},
    "launch": {"protocol", "state", "errors"},
    "session": BELOW_SESSION,
    "spmd": {"actor"},
    "job": BELOW_SESSION | {"session"},
    "config": {"actor"},
    "rdma": {"actor", "errors", "monarch_rdma"},
    **{face: FACES | {"session", "monarch_kernel"} | BELOW_SESSION for face in FACES},
    "monarch_worker": {"actor", "protocol", "state", "errors", "monarch_rdma"},
    "monarch_rdma": set(),
    # The one public face: it names things of every part and loads them when they are asked for.
    "monarch_kernel": FACES | {"session", "rdma", "spmd", "config", "job"} | BELOW_SESSION,
}
#: The exceptions: the actor face finds hosts through the session, by name and only when somebody asks for hosts.
LAZY = {("actor", "session")}

#: What runs in the keeper's process (`python -S -E`), or before anything is installed: only the standard library
#: and what of ours needs no more than that.
STDLIB_ONLY = ["monarch_kernel.protocol.keeper", "monarch_kernel.protocol.statefile", "monarch_worker.keeper"]


def modules() -> dict[str, Path]:
    found = {}
    for name, folder in ROOTS.items():
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("").parts
            found[".".join((name, *inside)).removesuffix(".__init__")] = path
    return found


def part_of(module: str) -> str:
    """The part that a module of ours belongs to, for instance "actor"."""
    names = module.split(".")
    return names[1] if names[0] == "monarch_kernel" and len(names) > 1 else names[0]


def imports(module: str, path: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield (imported module, line, whether by name) of all imports of a file, wherever in it they stand."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, False
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            if base in ROOTS:  # `from monarch_kernel import session` means the part
                for alias in node.names:
                    yield f"{base}.{alias.name}", node.lineno, False
            else:
                yield base, node.lineno, False
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in {"import_module", "__import__"} and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node.lineno, True


def ours(name: str) -> bool:
    return name.split(".")[0] in ROOTS


@pytest.mark.parametrize("module", modules())
def test_imports_follow_the_arrows(module: str) -> None:
    path = modules()[module]
    part = part_of(module)
    assert part in ARROWS, f"{module} belongs to no part that the arrows know"
    wrong = []
    for name, line, by_name in imports(module, path):
        if not ours(name):
            continue
        target = part_of(name)
        if target == part or target in ARROWS[part] or (by_name and (part, target) in LAZY):
            continue
        if part == "monarch_kernel" and name.startswith("monarch_kernel."):
            continue  # a name from the face itself, such as __version__
        wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", [m for m in modules() if part_of(m) == "state"])
def test_state_imports_only_the_standard_library(module: str) -> None:
    names = {name for name, _, _ in imports(module, modules()[module])}
    foreign = {n for n in names if not n.startswith("monarch_kernel.state")} - {""}
    assert {n for n in foreign if n.split(".")[0] not in sys.stdlib_module_names} == set()
    # No clock and no I/O of its own: events come in, decisions go out.
    assert {n.split(".")[0] for n in foreign} & {"time", "socket", "asyncio", "threading", "subprocess", "os"} == set()


@pytest.mark.parametrize("module", STDLIB_ONLY)
def test_what_runs_beside_the_keeper_needs_only_the_standard_library(module: str) -> None:
    files = modules()
    reached, todo = {module}, [module]
    while todo:
        at = todo.pop()
        for name, line, _ in imports(at, files[at]):
            if not ours(name):
                assert name.split(".")[0] in sys.stdlib_module_names, f"{at}:{line} imports {name}"
                continue
            target = name if name in files else name.rpartition(".")[0]
            if target not in reached:
                reached.add(target)
                todo.append(target)
    print(f"{module} reaches {len(reached)} modules of ours")


def test_the_worker_package_is_empty_so_that_the_keeper_starts_alone() -> None:
    tree = ast.parse((ROOTS["monarch_worker"] / "__init__.py").read_text())
    assert all(isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) for n in tree.body)


def test_importing_the_package_brings_in_nothing_heavy() -> None:
    heavy = ("torch", "grpc", "IPython", "ipykernel", "jupyter_client", "numpy", "cloudpickle", "google", "zmq")
    code = (
        "import sys, time; began = time.perf_counter(); import monarch_kernel; took = time.perf_counter() - began\n"
        f"print(took, *(m for m in {heavy!r} if m in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    took, *loaded = answer.stdout.split()
    print(f"import monarch_kernel took {float(took) * 1e3:.1f} ms")
    assert loaded == []
    assert float(took) < 0.5
