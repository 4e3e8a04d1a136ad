"""A page reads well as plain text, and as HTML in a light and in a dark notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from monarch_kernel.magics.render import Mark, Page, Table


def page() -> Page:
    table = Table(("name", "ranks", "remarks"), [("trainers", Mark("3 ok, 1 dead", "bad"), ""), ("a", 1, "")], "Meshes")
    return Page("Session lab", [("hosts", 2), ("meanwhile", "one\ntwo")], [table], [Mark("line 1\nline 2", "bad")])


def test_plain_text_is_aligned_and_leaves_empty_columns_out() -> None:
    assert page().text().splitlines() == [
        "Session lab",
        "  hosts      2",
        "  meanwhile  one",
        "             two",
        "",
        "Meshes",
        "  name      ranks",
        "  trainers  3 ok, 1 dead",
        "  a         1",
        "",
        "line 1",
        "line 2",
    ]


def test_both_forms_are_offered_and_the_front_end_chooses() -> None:
    bundle = page()._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/plain"] == repr(page())


def test_html_is_well_formed_and_escaped() -> None:
    found = page()
    found.notes.append("<script>alert('x')</script> & more")
    open_tags: list[str] = []

    class Check(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Check().feed(found.html())
    assert open_tags == []
    assert "<script" not in found.html()
    assert "&lt;script&gt;" in found.html()


def test_every_colour_comes_from_the_theme_or_reads_on_any() -> None:
    style = re.search(r"<style>(.*)</style>", page().html())
    assert style is not None
    colours = re.findall(r"[;{](?:color|border-bottom):([^;}]+)", style[1])
    assert colours
    assert [c for c in colours if "var(--jp-" not in c or "var(--vscode-" not in c] == []
    assert re.findall(r"background:(?!transparent)", style[1]) == []
