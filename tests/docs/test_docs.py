"""What the documentation says is so: its code runs, its links lead somewhere, its names and numbers are the code's."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from monarch_kernel import actor, errors
from monarch_kernel.magics.arguments import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("notebooks", "benchmarks", "changelog.d")),
]
UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def every_page() -> Any:
    return pytest.mark.parametrize("page", PAGES, ids=name_of)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_in(page: Path) -> str:
    """All that is set as code, inline or in blocks."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4}\S.*$", rest, re.MULTILINE)
    return "\n".join([*blocks, *indented, *re.findall(r"`([^`\n]+)`", rest)])


def section(page: str, heading: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {heading!r}"
    return found[1]


# -- code


def test_the_quick_start_runs_from_top_to_bottom(tmp_path: Path) -> None:
    text = (DOCS / "quickstart.md").read_text(encoding="utf-8")
    # One script, each block on the lines that it has in the page: an error names the line to look at.
    lines = ["#"] * (text.count("\n") + 1)
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        first = text[: block.start(1)].count("\n")
        body = block[1].splitlines()
        lines[first : first + len(body)] = body
    script = tmp_path / "quickstart.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        path = os.pathsep.join(str(ROOT / part) for part in ("", "worker", "rdma"))
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": sockets, "PYTHONPATH": path}
        try:
            done = subprocess.run(
                [sys.executable, "-W", "error", str(script)], env=env, cwd=tmp_path, capture_output=True, text=True,
                timeout=50,
            )  # fmt: skip
        finally:
            # Nothing is there any more, unless the script failed half-way.
            down = [sys.executable, "-m", "monarch_kernel.cli", "down", "quickstart", "--yes"]
            left = subprocess.run(down, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "no session 'quickstart' (it ended: released by its controller)" in left.stderr


def test_the_reference_pages_are_what_the_command_tables_make() -> None:
    reference = load(DOCS / "reference.py")
    for name, page in reference.PAGES.items():
        assert (DOCS / name).read_text(encoding="utf-8") == page(), f"docs/{name} is old: run docs/reference.py"


# -- names


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page()
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@every_page()
def test_every_make_target_and_variable_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) [:?]?=", makefile, re.MULTILINE))
    code = code_in(page)
    assert set(re.findall(r"\bmake ([a-z]+)", code)) <= targets
    assert set(re.findall(r"\bmake [a-z]+ ([A-Z_]+)=", code)) <= variables


def shell_commands() -> dict[str, argparse.ArgumentParser]:
    commands: dict[str, argparse.ArgumentParser] = load(DOCS / "reference.py").shell_commands()
    return commands


@every_page()
def test_every_shell_command_and_option_exists(page: Path) -> None:
    known = {name: set(parser._option_string_actions) for name, parser in shell_commands().items()}
    for command, rest in re.findall(r"\bmonarch-kernel ([a-z]+)([^`#|\n]*)", code_in(page)):
        assert command in known, f"monarch-kernel {command}"
        assert set(re.findall(r"--[a-z-]+", rest)) <= known[command], f"monarch-kernel {command}{rest}"


@every_page()
def test_every_magic_and_option_exists(page: Path) -> None:
    for command, rest in re.findall(r"%monarch ([a-z]+)([^`#\n]*)", code_in(page)):
        assert command in COMMANDS, f"%monarch {command}"
        options = {option.flag for option in COMMANDS[command].options}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options, f"%monarch {command}{rest}"


def resolve(dotted: str) -> Any:
    """The object of a dotted name: a module, or an attribute of one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(dotted)


@every_page()
def test_every_module_and_name_of_ours_exists(page: Path) -> None:
    for dotted in set(re.findall(r"(?<![\w/.-])monarch_(?:kernel|worker)(?:\.[A-Za-z_]\w*)*(?![\w/])", code_in(page))):
        if not dotted.endswith(".py"):
            resolve(dotted)


@every_page()
def test_every_test_that_is_named_exists(page: Path) -> None:
    for path in re.findall(r"\b((?:tests|docs|notebooks|benchmarks|monarch_kernel)/[\w/.-]+\.\w+)", code_in(page)):
        assert (ROOT / path).exists(), path


# -- numbers


def rows_with_places() -> list[tuple[str, str]]:
    return re.findall(r"^\|[^|]*\| ([^|]+?) \| `([\w.]+:[\w.()]+)` \|$", section("architecture.md", "Times"), re.M)


@pytest.mark.parametrize(("value", "place"), rows_with_places(), ids=lambda text: text)
def test_every_time_and_bound_is_the_codes(value: str, place: str) -> None:
    number, _, unit = value.partition(" ")
    module, _, inside = place.partition(":")
    name, _, parameter = inside.rstrip(")").partition("(")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if parameter:
        found = inspect.signature(found).parameters[parameter].default
    assert found == pytest.approx(float(number) * UNITS[unit])


def test_the_table_of_times_is_read_at_all() -> None:
    assert len(rows_with_places()) > 30


def test_the_readme_names_the_keys_that_the_demo_prints() -> None:
    tree = ast.parse((ROOT / "notebooks" / "demo.py").read_text(encoding="utf-8"))
    printed = [
        [key.value for key in node.keys if isinstance(key, ast.Constant)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict) and "pids_before" in [getattr(key, "value", None) for key in node.keys]
    ]
    assert len(printed) == 1
    for page in (ROOT / "README.md", ROOT / "notebooks" / "README.md"):
        table = re.search(r"^\| key \| meaning \|\n\|.*\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert table is not None
        assert re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table[1].splitlines())) == printed[0]


@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.png")), ids=lambda path: path.name)
def test_pictures_are_small_and_shown(path: Path) -> None:
    assert path.stat().st_size < 200_000
    assert any(path.name in page.read_text(encoding="utf-8") for page in PAGES)


# -- completeness


def test_fragments_of_the_changelog_are_named_as_their_readme_says() -> None:
    names = {path.name for path in (ROOT / "changelog.d").glob("*.md")} - {"README.md"}
    assert [name for name in names if not re.fullmatch(r"[\w-]+\.(added|changed|fixed|removed)\.md", name)] == []


def test_every_error_is_in_the_troubleshooting_page() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    bases = {"MonarchError", "SupervisionError"}
    assert [name for name in errors.__all__ if f"`{name}`" not in text and name not in bases] == []


def test_every_public_name_of_the_actor_face_is_in_the_compatibility_page() -> None:
    there = section("compatibility.md", "Every name")
    assert [name for name in actor.__all__ if not re.search(rf"`{name}\b", there)] == []


def test_what_is_said_to_be_missing_is_missing() -> None:
    names = re.findall(r"`([A-Za-z_]\w*)`", section("compatibility.md", "Not yet").partition("`spawn_procs(")[0])
    assert names
    assert [name for name in names if hasattr(actor, name)] == []
