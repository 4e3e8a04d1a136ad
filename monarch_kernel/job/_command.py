"""Run a command on every rank of a mesh of hosts."""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ..actor import Actor, Future, HostMesh, Port, context, current_rank, endpoint


class BashActor(Actor):
    """Runs scripts where it is. ``MONARCH_RANK_*`` and ``MONARCH_SIZE_*`` tell them of their rank, a dimension each."""

    @endpoint
    def run(self, script: str, target_ranks: list[int] | None = None, output_dir: str | None = None) -> dict[str, Any]:
        """Run a script of bash to its end.

        Parameters
        ----------
        target_ranks
            The ranks that run it; None: all.
        output_dir
            A folder for ``stdout.txt`` and ``stderr.txt``, ``$SUBDIR`` in it being the rank; None returns the output.

        Returns
        -------
        dict
            ``returncode``, ``stdout``, ``stderr``, and ``skipped`` where another rank was meant.
        """
        if target_ranks is not None and current_rank().rank not in target_ranks:
            return {"returncode": 0, "stdout": "", "stderr": "", "skipped": True}
        with _outputs(output_dir) as (out, err), _script(script) as path:
            code = subprocess.run(["bash", path], stdout=out, stderr=err, env=rank_env()).returncode
            return {"returncode": code, **_captured(output_dir, out, err)}

    @endpoint
    def run_python(
        self,
        cmd: list[str],
        env: dict[str, str] | None = None,
        workdir: str | None = None,
        client_cwd: str | None = None,
        output_dir: str | None = None,
    ) -> dict[str, Any]:
        """Run a Python program inside this process, as the main one: ``[PATH, *ARGS]`` or ``["-m", MODULE, *ARGS]``.

        Returns
        -------
        dict
            ``returncode``, ``stdout``, ``stderr``.
        """
        os.environ.update({**rank_env(only=True), **(env or {})})
        folder = workdir or (client_cwd if client_cwd and os.path.isdir(client_cwd) else None)
        with contextlib.chdir(folder) if folder else contextlib.nullcontext():
            path, argv = cmd[0], cmd
            if path == "-m":
                found = importlib.util.find_spec(cmd[1])
                if found is None or found.origin is None:
                    raise ModuleNotFoundError(f"No module named {cmd[1]!r}", name=cmd[1])
                path, argv = found.origin, cmd[1:]
            code = compile(Path(path).read_text(encoding="utf-8"), path, "exec")
            with _outputs(output_dir) as (out, err):
                with patch.object(sys, "argv", argv), _redirected(out, err):
                    returncode = _as_main(code, path)
                return {"returncode": returncode, **_captured(output_dir, out, err)}

    @endpoint
    def run_streaming(self, script: str, output_port: Port[str], target_ranks: list[int]) -> None:
        """Run a script and send its lines as they come: ``RANK:out:LINE``, ``RANK:err:LINE``, at last ``RANK:rc:CODE``.

        A rank that is not meant sends ``skip:RANK``.
        """
        rank = current_rank().rank
        if rank not in target_ranks:
            output_port.send(f"skip:{rank}")
            return
        with _script(script) as path:
            process = subprocess.Popen(
                ["bash", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=rank_env()
            )
            assert process.stdout is not None
            assert process.stderr is not None

            def pass_on(lines: Any, tag: str) -> None:
                for line in lines:
                    output_port.send(f"{rank}:{tag}:{line}")

            errors = threading.Thread(target=pass_on, args=(process.stderr, "err"))
            errors.start()
            pass_on(process.stdout, "out")
            errors.join()
            output_port.send(f"{rank}:rc:{process.wait()}")


def rank_env(*, only: bool = False) -> dict[str, str]:
    """The environment of a command: this process's (not with `only`), and what tells of the rank."""
    point = context().actor_instance.rank
    mine = {f"MONARCH_RANK_{label}": str(index) for label, index in point.items()}
    sizes = {f"MONARCH_SIZE_{label}": str(size) for label, size in point.extent.items()}
    return {**({} if only else os.environ), **mine, **sizes}


@contextlib.contextmanager
def _script(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(text)
        file.flush()
        yield file.name


@contextlib.contextmanager
def _outputs(folder: str | None) -> Iterator[tuple[Any, Any]]:
    """Files for stdout and stderr: in a folder, or unnamed ones."""
    if folder is None:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            yield out, err
        return
    point = context().actor_instance.rank
    folder = folder.replace("$SUBDIR", "_".join(f"{label}_{index}" for label, index in point.items()))
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/stdout.txt", "w") as out, open(f"{folder}/stderr.txt", "w") as err:
        yield out, err


def _captured(folder: str | None, out: Any, err: Any) -> dict[str, str]:
    if folder is not None:
        return {"stdout": "", "stderr": ""}
    out.seek(0)
    err.seek(0)
    return {"stdout": out.read(), "stderr": err.read()}


@contextlib.contextmanager
def _redirected(out: Any, err: Any) -> Iterator[None]:
    """Descriptors 1 and 2, and so those of subprocesses, besides ``sys.stdout`` and ``sys.stderr``."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [(fd, os.dup(fd)) for fd in (1, 2)]
    for file, fd in ((out, 1), (err, 2)):
        os.dup2(file.fileno(), fd)
    try:
        with patch.object(sys, "stdout", out), patch.object(sys, "stderr", err):
            yield
    finally:
        out.flush()
        err.flush()
        for fd, saved in before:
            os.dup2(saved, fd)
            os.close(saved)


def _as_main(code: Any, path: str) -> int:
    try:
        exec(code, {"__name__": "__main__", "__file__": path})  # noqa: S102  # the program that was asked for
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def exec_command(
    host_mesh: HostMesh,
    cmd: list[str],
    env: dict[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: dict[str, int] | None = None,
    per_host: dict[str, int] | None = None,
) -> Future[int]:
    """Run a command on hosts, and print what it says, or keep it in files there. It begins at once.

    Parameters
    ----------
    host_mesh
        Where.
    cmd
        The command and its arguments; a ``.py`` file, or ``-m`` and a module, runs in a fresh Python process.
    env
        More variables.
    workdir
        Its working directory; else this one's where the host has it.
    output_dir
        A folder on the hosts for ``stdout.txt`` and ``stderr.txt``, with ``$SUBDIR`` for the rank.
    rank, point
        The one host that runs it: as a number among them all, or by its coordinates; None: all.
    per_host
        How many processes a host runs it in, by dimension.

    Returns
    -------
    Future[int]
        The largest exit code. The processes have ended by then. Whether it is waited for changes nothing.

    Examples
    --------
    >>> exec_command(state.trainers, ["nvidia-smi", "-L"]).get()    # doctest: +SKIP
    0
    """

    def work() -> int:
        hosts = host_mesh
        if point is not None:
            hosts = host_mesh.slice(**point)
        elif rank is not None:
            hosts = host_mesh.flatten("rank").slice(rank=rank)
        procs = hosts.spawn_procs(per_host=per_host)
        try:
            actors: Any = procs.spawn("BashActor", BashActor)
            if cmd[0].endswith(".py") or cmd[0] == "-m":
                asked = actors.run_python.call(
                    cmd, env=env, workdir=workdir, client_cwd=os.getcwd(), output_dir=output_dir
                )
            else:
                asked = actors.run.call(_as_script(cmd, env, workdir), output_dir=output_dir)
            code = 0
            for _, result in asked.get():
                code = max(code, result.get("returncode", 1))
                print(result.get("stdout") or "", end="")
                print(result.get("stderr") or "", end="", file=sys.stderr)
            return code
        finally:
            procs.stop().get()

    future: Future[int] = Future()
    here = contextvars.copy_context()

    def run() -> None:
        try:
            code = here.run(work)
        except BaseException as error:
            future._fail(error)
        else:
            future._resolve(lambda: code)

    threading.Thread(target=run, name="monarch-exec-command").start()
    return future


def _as_script(cmd: list[str], env: dict[str, str] | None, workdir: str | None) -> str:
    lines = ["#!/bin/bash", *(f"export {name}={shlex.quote(value)}" for name, value in (env or {}).items())]
    if workdir:
        lines.append(f"cd {shlex.quote(workdir)}")
    else:
        here = shlex.quote(os.getcwd())
        lines.append(f"[ -d {here} ] && cd {here}")
    return "\n".join([*lines, shlex.join(cmd)]) + "\n"
