"""What a person reads: pages of facts, tables and notes, as HTML in a notebook and as plain text elsewhere."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Cell", "Mark", "Page", "Table"]

Tone = Literal["good", "warn", "bad", "dim", "strong"]


@dataclass(frozen=True)
class Mark:
    """A text with a meaning that is also shown by colour; the words alone say it too."""

    text: str
    tone: Tone


Cell = str | int | Mark


@dataclass
class Table:
    """Rows under headings. Columns that are empty in every row are left out."""

    columns: Sequence[str]
    rows: list[Sequence[Cell]]
    title: str = ""

    def filled(self) -> tuple[list[str], list[list[Cell]]]:
        """Headings and rows of the columns that have something in them."""
        kept = [i for i in range(len(self.columns)) if any(_plain(row[i]) for row in self.rows)]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in self.rows]


@dataclass
class Page:
    """One answer.

    Attributes
    ----------
    title
        Its first line.
    facts
        Names and values.
    tables
        Tables, one below the other.
    notes
        Paragraphs at the end.
    """

    title: str
    facts: list[tuple[str, Cell]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str | Mark] = field(default_factory=list)

    def text(self) -> str:
        """As plain text."""
        lines = [self.title]
        width = max((_width(name) for name, _ in self.facts), default=0)
        for name, value in self.facts:
            first, *more = _plain(value).splitlines() or [""]
            lines.append(f"  {_pad(name, width)}  {first}")
            lines += [f"  {'':{width}}  {line}" for line in more]
        for table in self.tables:
            lines += ["", *_table_text(table)]
        if self.notes:
            lines.append("")
        lines += [_plain(note) for note in self.notes]
        return "\n".join(lines)

    def html(self) -> str:
        """As HTML that follows the theme of the notebook."""
        parts = [f'<div class="mk-page"><style>{_STYLE}</style><p class="mk-title">{html.escape(self.title)}</p>']
        if self.facts:
            rows = "".join(f'<tr><th scope="row">{html.escape(n)}</th><td>{_html(v)}</td></tr>' for n, v in self.facts)
            parts.append(f'<table class="mk-facts"><tbody>{rows}</tbody></table>')
        for table in self.tables:
            columns, rows_ = table.filled()
            caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
            head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
            body = "".join("<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in row) + "</tr>" for row in rows_)
            parts.append(f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        parts += [f'<p class="mk-note">{_html(note)}</p>' for note in self.notes]
        return "".join(parts) + "</div>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def __repr__(self) -> str:
        return self.text()


# Colours come from JupyterLab's theme, then VS Code's; without either, those that read on white and on black.
_STYLE = """
.mk-page{color:var(--jp-content-font-color1,var(--vscode-editor-foreground,inherit));font-size:inherit}
.mk-page p{margin:.3em 0;white-space:pre-wrap}
.mk-page p.mk-title{font-weight:600}
.mk-page table{border-collapse:collapse;margin:.5em 0;border:none;text-align:left}
.mk-page caption{text-align:left;caption-side:top;padding:.2em 0;
color:var(--jp-content-font-color2,var(--vscode-descriptionForeground,inherit))}
.mk-page th,.mk-page td{text-align:left!important;vertical-align:top;padding:.2em .8em .2em 0;border:none;
white-space:pre-wrap;background:transparent}
.mk-page thead th{border-bottom:1px solid var(--jp-border-color1,var(--vscode-widget-border,rgba(128,128,128,.5)))}
.mk-page tbody tr{background:transparent!important}
.mk-page .mk-facts th{font-weight:400;color:var(--jp-content-font-color2,var(--vscode-descriptionForeground,inherit))}
.mk-page .mk-strong{font-weight:600}
.mk-page .mk-good{color:var(--jp-success-color1,var(--vscode-testing-iconPassed,#2e9150))}
.mk-page .mk-warn{color:var(--jp-warn-color1,var(--vscode-editorWarning-foreground,#b8720a))}
.mk-page .mk-bad{color:var(--jp-error-color1,var(--vscode-errorForeground,#d8453b))}
.mk-page .mk-dim{color:var(--jp-content-font-color2,var(--vscode-descriptionForeground,inherit));opacity:.85}
""".replace("\n", "")


def _plain(cell: Cell) -> str:
    return cell.text if isinstance(cell, Mark) else str(cell)


def _html(cell: Cell) -> str:
    text = html.escape(_plain(cell))
    return f'<span class="mk-{cell.tone}">{text}</span>' if isinstance(cell, Mark) else text


def _table_text(table: Table) -> list[str]:
    columns, rows = table.filled()
    cells = [[_plain(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]
    lines = ["  ".join(map(_pad, row, widths)).rstrip() for row in (columns, *cells)]
    return [*([table.title] if table.title else []), *(f"  {line}" for line in lines)]


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _width(text))
