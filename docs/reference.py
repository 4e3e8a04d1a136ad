"""Write the reference pages from the tables that the commands themselves are made of.

    .venv/bin/python docs/reference.py

rewrites docs/cli.md and docs/magics.md. tests/docs/test_docs.py fails when they are not what this writes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from monarch_kernel import cli
from monarch_kernel.magics.arguments import COMMANDS

HERE = Path(__file__).resolve().parent
PIPE = r"\|"  # a bar inside of a table
MADE = "<!-- Made by docs/reference.py; change the tables in the code instead. -->"

CLI_HEAD = """
# The monarch-kernel command

State is under `$XDG_STATE_HOME/monarch-kernel`, by default `~/.local/state/monarch-kernel`. Nobody is asked anything
away from a terminal, and `--json` prints for programs.
"""

MAGICS_HEAD = """
# The %monarch magic

In the kernel *Monarch (Python)* it is there from the start; in any other IPython kernel after
`%load_ext monarch_kernel`. Tab completes subcommands, options, sessions, meshes and ranks. A command that cannot be
done fails its cell with one paragraph that says what to do.
"""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return lines + [f"| {' | '.join(cell.replace('|', PIPE) for cell in row)} |" for row in rows]


# -- the shell


def shell_commands() -> dict[str, argparse.ArgumentParser]:
    """The subcommands of ``monarch-kernel`` by name."""
    groups = [action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(groups[0].choices)


def shell_usage(name: str, parser: argparse.ArgumentParser) -> tuple[str, list[tuple[str, str]]]:
    """How a subcommand is written, and its options with what they do."""
    either = [action for group in parser._mutually_exclusive_groups for action in group._group_actions]
    parts, options = [f"monarch-kernel {name}"], []
    words = 0
    if either:
        parts.append(f"[{' | '.join(map(written, either))}]")
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if action.option_strings:
            options.append((f"`{written(action)}`", action.help or ""))
            if action not in either:
                parts.append(f"[{written(action)}]")
        else:
            words += 1
            parts.insert(words, str(action.metavar))
    return " ".join(parts), options


def written(action: argparse.Action) -> str:
    """An option as it is typed."""
    return f"{action.option_strings[0]} {action.metavar}" if action.metavar else action.option_strings[0]


def cli_page() -> str:
    """docs/cli.md."""
    lines = [MADE, *CLI_HEAD.splitlines(), ""]
    for name, parser in shell_commands().items():
        usage, options = shell_usage(name, parser)
        lines += [f"## {name}", "", f"    {usage}", "", parser.description or "", ""]
        if options:
            lines += [*table(("option", "what it does"), options), ""]
    codes = re.findall(r"^(\d+)\n    (.+(?:\n    .+)*)", cli.__doc__ or "", re.MULTILINE)
    rows = [(code, " ".join(text.split()).replace("``", "`")) for code, text in codes]
    lines += ["## Exit codes", "", *table(("code", "meaning"), rows)]
    return "\n".join(lines) + "\n"


# -- the notebook


def magics_page() -> str:
    """docs/magics.md."""
    lines = [MADE, *MAGICS_HEAD.splitlines(), ""]
    for command in COMMANDS.values():
        lines += [f"## {command.name}", "", f"    {command.usage}", "", command.what, ""]
        rows = []
        if command.argument is not None:
            rows.append((f"`{command.argument.value}`", command.argument.what))
            rows += [(f"`{form}`", what) for form, what in command.argument.forms]
        for option in command.options:
            value = "|".join(option.choices) or option.value
            rows.append((f"`{option.flag} {value}`".replace(" `", "`"), option.what))
        if rows:
            lines += [*table(("word", "what it does"), rows), ""]
    return "\n".join(lines).rstrip() + "\n"


PAGES = {"cli.md": cli_page, "magics.md": magics_page}


def main() -> None:
    """Write them."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")


if __name__ == "__main__":
    main()
