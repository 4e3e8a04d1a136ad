"""Make the pictures of the README: run two small notebooks in real kernels, and kill the first kernel in between.

    .venv/bin/python docs/images/make_images.py

needs the kernelspec (`make venv`), nbconvert (comes with JupyterLab) and a `chromium` on the PATH. The session gets a
state folder of its own and is released at the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH = 960

DARTS = """
import random, time
import monarch_kernel as mk
from monarch_kernel.actor import Actor, current_rank, endpoint

class Darts(Actor):
    \"\"\"Throws darts at a square, and counts those inside the circle.\"\"\"

    def __init__(self, seed):
        self.random = random.Random(seed + current_rank().rank)
        self.inside = self.thrown = 0

    @endpoint
    def throw(self, rounds):
        for _ in range(rounds):
            x, y = self.random.random(), self.random.random()
            self.inside += x * x + y * y < 1
            self.thrown += 1
            time.sleep(0.001)
        return self.thrown

    @endpoint
    def pi(self):
        return round(4 * self.inside / self.thrown, 3)

procs = mk.hosts().spawn_procs(per_host={"gpus": 2})
darts = procs.spawn("darts", Darts, seed=7)
"""

FIRST = ["%monarch up lab --hosts 2", DARTS, "darts.throw.call(1000).get()", "throwing = darts.throw.call(8000)"]
SECOND = [
    "%monarch attach lab",
    "%monarch calls",
    "import monarch_kernel as mk\n\nmk.session().calls[0].result()",
    "darts.slice(hosts=1).pi.call().get()",
]


def run(cells: Sequence[str], *, kill: bool) -> object:
    """Run a notebook in a kernel of its own; its cells with their outputs. With `kill`, SIGKILL ends the kernel."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
    client = NotebookClient(book, kernel_name="monarch", timeout=60, record_timing=False)
    with client.setup_kernel():
        for index, cell in enumerate(book.cells):
            client.execute_cell(cell, index)
        if kill:
            time.sleep(1.0)  # so that the call is well under way in the picture
            os.kill(client.km.provisioner.pid, signal.SIGKILL)
    return book


def picture(book: object, path: Path) -> None:
    """Render a notebook as a PNG, by nbconvert and a headless Chromium, and cut off the empty rest of the page."""
    from nbconvert import HTMLExporter
    from PIL import Image, ImageChops

    html, _ = HTMLExporter(exclude_anchor_links=True).from_notebook_node(book)
    html = re.sub(r'<script\s+src="https?://[^"]*"[^>]*></script>', "", html)  # nothing is fetched
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        page.write_text(html, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},2400"]
        command = ["chromium", *options, f"--screenshot={shot}", page.as_uri()]
        subprocess.run(command, check=True, timeout=120, stderr=subprocess.DEVNULL)
        image = Image.open(shot).convert("RGB")
        empty = Image.new("RGB", image.size, image.getpixel((image.width - 1, image.height - 1)))
        box = ImageChops.difference(image, empty).getbbox() or (0, 0, *image.size)
        image = image.crop((0, 0, image.width, min(image.height, box[3] + 16)))
        image.quantize(64).save(path, optimize=True)
    print(f"{path.name}: {image.size}, {path.stat().st_size // 1024} KiB")


def main() -> None:
    """Make both."""
    with tempfile.TemporaryDirectory(prefix="mk-pictures-") as state:
        os.environ["XDG_STATE_HOME"] = state
        import monarch_kernel as mk

        try:
            books = [run(FIRST, kill=True), run(SECOND, kill=False)]
        finally:
            mk.down("lab")
    for book, name in zip(books, ("first-kernel.png", "second-kernel.png"), strict=True):
        picture(book, HERE / name)


if __name__ == "__main__":
    main()
