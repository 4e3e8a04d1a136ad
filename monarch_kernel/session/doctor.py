"""What of this machine helps or hurts a session, in words: ``monarch-kernel doctor``.

Each check is a plain function of the places that it reads, so that any machine can be made up in a test.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import re
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from monarch_kernel.errors import LaunchError
from monarch_kernel.launch.slots import DeviceProbe, NvidiaProbe
from monarch_kernel.protocol import statefile

__all__ = ["Finding", "System", "diagnose"]

Level = Literal["ok", "note", "warning", "problem"]
_MIB = 1 << 20
_KERNELSPEC = "monarch"


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes
    ----------
    topic
        What was looked at, in a word or two.
    level
        "ok", "note" (good to know), "warning" (something will be worse than it could be), "problem" (something will
        not work).
    what
        What is there.
    follows
        What follows from it, and what to do; empty when nothing does.
    """

    topic: str
    level: Level
    what: str
    follows: str = ""


@dataclass(frozen=True)
class System:
    """Where the checks look."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    shm: Path = Path("/dev/shm")  # noqa: S108  # read, never written
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: tuple[int, int] = sys.version_info[:2]
    user: str = field(default_factory=lambda: _user())
    limits: Callable[[int], tuple[int, int]] = resource.getrlimit
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    probe: DeviceProbe | None = None


def diagnose(system: System | None = None) -> list[Finding]:
    """Look at everything; takes about a second where there are GPUs, and starts and changes nothing.

    Parameters
    ----------
    system
        Where to look; this machine when left out.
    """
    s = system or System()
    checks = (
        python,
        pidfds,
        lifetime,
        sockets,
        state,
        shared_memory,
        descriptors,
        gpus,
        verbs,
        locked_memory,
        kernelspec,
    )
    out = []
    for check in checks:
        try:
            out.append(check(s))
        except OSError as e:  # a doctor who faints helps nobody
            out.append(Finding(check.__name__.replace("_", " "), "note", f"could not be looked at: {e}"))
    return out


def python(s: System) -> Finding:
    """The interpreter."""
    what = f"Python {s.python[0]}.{s.python[1]} at {sys.executable}"
    if s.python < (3, 11):
        return Finding("python", "problem", what, "3.11 or later is needed")
    return Finding("python", "ok", what, "a session is attached to from the same minor version")


def pidfds(s: System) -> Finding:
    """Whether processes can be signalled without a doubt about who they are."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as e:
        return Finding(
            "kernel", "problem", f"Linux {platform.release()} has no pidfds ({e})", "Linux 5.3 or later is needed"
        )
    return Finding("kernel", "ok", f"Linux {platform.release()}")


def lifetime(s: System) -> Finding:
    """What a session started here would die with, although it outlives the kernel."""
    try:
        text = (s.proc / "self" / "cgroup").read_text()
    except OSError as e:
        return Finding(
            "lifetime", "note", f"the control group cannot be read: {e}", "what else ends a session is not known"
        )
    # Version 1 lists a line for each controller, most of them "/": the longest says the most.
    group = max((line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2), key=len, default="/")
    what = f"control group {group}"
    if match := re.search(r"slurm.*/job_?(\d+)", group):
        return Finding(
            "lifetime", "note", f"Slurm job {match[1]}", "a session ends with the job, at its time limit or before"
        )
    marks = [p for p in (".dockerenv", "run/.containerenv") if (s.root / p).exists()]
    if marks or re.search(r"docker|containerd|kubepods|libpod|crio|/lxc", group):
        return Finding(
            "lifetime",
            "warning",
            "a container",
            "a session survives kernel and server, and ends with the container (a restarted pod, a culled server)",
        )
    unit = re.search(r"([^/]+)\.(service|scope)$", group)
    name = f"{unit[1]}.{unit[2]}" if unit else ""
    if re.fullmatch(r"session-.*\.scope", name) or "/user.slice/" in f"{group}/":
        return _login(s, what, login=bool(re.fullmatch(r"session-.*\.scope", name)))
    if name.endswith(".service"):
        return Finding(
            "lifetime",
            "warning",
            f"the service {name}",
            f"a session ends when {name} is stopped or restarted, unless its unit says KillMode=process",
        )
    return Finding(
        "lifetime", "ok", what, "a session survives kernel and server, and ends with the machine or its lease"
    )


def _login(s: System, what: str, login: bool) -> Finding:
    lingers = bool(s.user) and (s.root / "var/lib/systemd/linger" / s.user).exists()
    kills = False
    conf = [s.root / "etc/systemd/logind.conf", *sorted((s.root / "etc/systemd/logind.conf.d").glob("*.conf"))]
    for path in conf:
        if path.is_file():
            for value in re.findall(r"(?m)^\s*KillUserProcesses\s*=\s*(\w+)", path.read_text()):
                kills = value.lower() in ("1", "yes", "true", "on")
    if login and not kills:
        return Finding(
            "lifetime", "ok", f"a login session ({what})", "logging out leaves a session alone on this machine"
        )
    if lingers and not login:
        return Finding("lifetime", "ok", f"the user manager, lingering ({what})", "logging out leaves a session alone")
    why = "KillUserProcesses is set" if login else "the user manager ends with the last login"
    advice = (
        "start the server by `systemd-run --user --scope`, after `loginctl enable-linger`"
        if login
        else "`loginctl enable-linger` keeps it"
    )
    return Finding(
        "lifetime", "warning", f"a login session ({what})", f"{why}: a session ends when you log out; {advice}"
    )


def sockets(s: System) -> Finding:
    """Where sockets would be."""
    try:
        path = statefile.runtime_dir("doctor00")
    except OSError as e:
        return Finding("sockets", "problem", str(e), "no session can be started here")
    path.rmdir()
    return Finding("sockets", "ok", f"{path.parent} is private and its paths are short enough")


def state(s: System) -> Finding:
    """Whether state files can be written, and room for logs."""
    try:
        path = statefile.state_dir()
    except OSError as e:
        return Finding("state", "problem", str(e), "no session can be started here")
    found = s.statvfs(path)
    free = found.f_bavail * found.f_frsize
    what = f"{free // _MIB:,} MiB free in {path}"
    if free < 16 * _MIB:
        return Finding(
            "state", "problem", what, "state files and logs cannot be written; free some space or set XDG_STATE_HOME"
        )
    if free < 1024 * _MIB:
        return Finding("state", "warning", what, "logs of many ranks may fill it")
    return Finding("state", "ok", what)


def shared_memory(s: System) -> Finding:
    """``/dev/shm``, which libraries in actors use; our own memory does not count against it."""
    found = s.statvfs(s.shm)
    size = found.f_blocks * found.f_frsize
    what = f"{size // _MIB:,} MiB in {s.shm}"
    if size < 1024 * _MIB:
        return Finding(
            "shared memory",
            "warning",
            what,
            "data loaders and collectives inside actors may run out of it (containers: --shm-size); durable tensors "
            "do not use it",
        )
    return Finding("shared memory", "ok", what)


def descriptors(s: System) -> Finding:
    """The limit of open files: every tensor kept and every connection is one."""
    soft, hard = s.limits(resource.RLIMIT_NOFILE)
    what = f"{_limit(soft)} open files, {_limit(hard)} at most"
    if hard != resource.RLIM_INFINITY and hard < 4096:
        return Finding(
            "open files", "warning", what, "a host keeps fewer durable tensors than that; raise the hard limit"
        )
    return Finding("open files", "ok", what)


def gpus(s: System) -> Finding:
    """Devices, as a session would see them."""
    try:
        devices = (s.probe or NvidiaProbe(driver=s.proc / "driver" / "nvidia", environ=s.environ)).devices()
    except LaunchError as e:
        return Finding("gpus", "problem", str(e), "sessions cannot be started until the driver works or is hidden")
    if devices is None:
        hidden = s.environ.get("CUDA_VISIBLE_DEVICES")
        what = "no NVIDIA driver" if hidden is None else f"CUDA_VISIBLE_DEVICES={hidden!r} hides all devices"
        return Finding("gpus", "note", what, "sessions have CPU slots, as many as asked for")
    return Finding("gpus", "ok", f"{len(devices)} ({', '.join(devices)})")


def verbs(s: System) -> Finding:
    """RDMA devices and whether a port of theirs is up."""
    folder = s.sysfs / "class" / "infiniband"
    devices = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    if not devices:
        return Finding(
            "rdma devices", "note", "none", "tensors go to other hosts over TCP, on one host by shared memory"
        )
    up = []
    for name in devices:
        states = sorted((folder / name / "ports").glob("*/state"))
        up += [f"{name}:{state.parent.name}" for state in states if "ACTIVE" in state.read_text()]
    if not up:
        return Finding(
            "rdma devices", "warning", f"{', '.join(devices)}, no port active", "they are not used: check the link"
        )
    return Finding("rdma devices", "ok", ", ".join(up))


def locked_memory(s: System) -> Finding:
    """The limit of locked memory, which RDMA registrations count against."""
    soft, hard = s.limits(resource.RLIMIT_MEMLOCK)
    what = f"{_limit(soft, _MIB)} MiB may be locked, {_limit(hard, _MIB)} at most"
    if hard == resource.RLIM_INFINITY:
        return Finding("locked memory", "ok", what)
    if (s.sysfs / "class" / "infiniband").is_dir():
        return Finding(
            "locked memory", "warning", what, "larger buffers cannot be registered for RDMA; raise memlock to unlimited"
        )
    return Finding("locked memory", "ok", what, "matters only with RDMA devices")


def kernelspec(s: System) -> Finding:
    """Whether front ends list the kernel, and run the same Python."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return Finding("kernelspec", "note", "jupyter_client is not installed here", "fine on a worker host")
    try:
        folder = KernelSpecManager().get_kernel_spec(_KERNELSPEC).resource_dir
        argv = json.loads((Path(folder) / "kernel.json").read_text())["argv"]
    except (NoSuchKernel, OSError, ValueError, KeyError):
        return Finding(
            "kernelspec", "warning", "no usable kernel 'monarch' is installed", "run `monarch-kernel install`"
        )
    if argv and os.path.isabs(argv[0]) and os.path.realpath(argv[0]) != os.path.realpath(sys.executable):
        return Finding(
            "kernelspec",
            "warning",
            f"the kernel 'monarch' runs {argv[0]}, not {sys.executable}",
            "run `monarch-kernel install` from the environment that notebooks are to use",
        )
    return Finding("kernelspec", "ok", f"the kernel 'monarch' in {folder}")


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a name, as containers have
        return ""


def _limit(value: int, unit: int = 1) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value // unit:,}"
