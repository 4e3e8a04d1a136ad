"""Which devices this machine has, and how its hosts divide them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from monarch_kernel.errors import LaunchError, NotEnoughSlots

__all__ = ["DeviceProbe", "NvidiaProbe", "Slots", "divide"]


@dataclass(frozen=True)
class Slots:
    """What one host has to give.

    Attributes
    ----------
    kind
        "cuda", or "cpu" where there is no driver.
    gpus
        Device ids as CUDA_VISIBLE_DEVICES takes them; empty for "cpu".
    count
        How many slots; None: as many as anybody asks for ("cpu" without a number).
    """

    kind: Literal["cuda", "cpu"]
    gpus: tuple[str, ...] = ()
    count: int | None = None


class DeviceProbe(Protocol):
    """Finds the devices of a machine."""

    def devices(self) -> tuple[str, ...] | None:
        """Device ids that this user may use, or None without a driver. A driver that is broken raises LaunchError."""


class NvidiaProbe:
    """Asks the driver, and makes no CUDA context: one would take memory on every device and spoil later forks.

    Parameters
    ----------
    driver
        The driver's directory in /proc.
    smi
        The command that lists devices.
    environ
        Where CUDA_VISIBLE_DEVICES is read: what the user hid from the kernel stays hidden from the session.
    """

    def __init__(
        self,
        driver: Path = Path("/proc/driver/nvidia"),
        smi: str = "nvidia-smi",
        environ: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._driver = driver
        self._smi = smi
        self._environ = os.environ if environ is None else environ
        self._timeout = timeout

    def devices(self) -> tuple[str, ...] | None:
        """See `DeviceProbe.devices`."""
        visible = self._environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
            return None  # hidden on purpose: as good as no driver
        listed = self._listed()
        if listed is None:
            return None
        if visible is None:
            return tuple(listed.values())
        chosen = []
        for word in (w.strip() for w in visible.split(",")):
            known = word in listed.values() or any(uuid.startswith(word) for uuid in listed if len(word) > 4)
            if not known:  # CUDA itself stops reading the list there, without a word
                raise LaunchError(
                    f"CUDA_VISIBLE_DEVICES={visible!r} names {word!r}, but the driver has {', '.join(listed.values())}"
                )
            chosen.append(word)
        return tuple(chosen)

    def _listed(self) -> dict[str, str] | None:
        """UUID → id, in the driver's order: MIG instances in place of the device they divide."""
        try:
            done = subprocess.run(
                [self._smi, "-L"], capture_output=True, text=True, timeout=self._timeout, stdin=subprocess.DEVNULL
            )
        except FileNotFoundError:
            return self._minors() if self._driver.is_dir() else None
        except (OSError, subprocess.TimeoutExpired) as e:
            raise LaunchError(f"the NVIDIA driver is there, but {self._smi} does not work: {e}") from e
        text = (done.stdout + done.stderr).strip()
        if done.returncode != 0:
            if self._driver.is_dir():
                raise LaunchError(f"the NVIDIA driver is there, but {self._smi} -L failed: {text[-500:]}")
            return None  # the tools are installed on a machine without a device (driver module not loaded)
        out: dict[str, str] = {}
        parent = ""
        for line in done.stdout.splitlines():
            if gpu := re.match(r"GPU (\d+):.*\(UUID: ([^)]+)\)", line):
                parent = gpu[2]
                out[parent] = gpu[1]
            elif mig := re.search(r"\(UUID: (MIG-[^)]+)\)", line):
                out.pop(parent, None)
                out[mig[1]] = mig[1]
        if not out:
            raise LaunchError(f"the NVIDIA driver is there, but {self._smi} lists no device: {text[-500:]}")
        return out

    def _minors(self) -> dict[str, str]:
        """Without nvidia-smi: the devices in /proc, in PCI order (a container may lack the tool)."""
        count = len(list((self._driver / "gpus").glob("*")))
        if count == 0:
            raise LaunchError(f"the NVIDIA driver is there ({self._driver}), but it has no device")
        return {f"#{i}": str(i) for i in range(count)}


def divide(devices: tuple[str, ...] | None, hosts: int, gpus: int | None) -> list[Slots]:
    """The slots of each of `hosts` hosts that share one machine.

    Parameters
    ----------
    devices
        Ids, or None without a driver.
    hosts
        How many hosts.
    gpus
        Slots a host; None: the devices divided evenly, rounded down.

    Raises
    ------
    NotEnoughSlots
        More is asked for than there is.

    Examples
    --------
    >>> [s.gpus for s in divide(("0", "1", "2", "3"), hosts=2, gpus=None)]
    [('0', '1'), ('2', '3')]
    >>> divide(None, hosts=1, gpus=None)
    [Slots(kind='cpu', gpus=(), count=None)]
    """
    if hosts < 1 or (gpus is not None and gpus < 0):
        raise ValueError(
            f"asked for {hosts} hosts with {gpus} GPUs each: there is at least one host and no negative number"
        )
    if devices is None:
        return [Slots("cpu", (), gpus) for _ in range(hosts)]
    each = len(devices) // hosts if gpus is None else gpus
    if each * hosts > len(devices):
        raise NotEnoughSlots(
            f"asked for {each * hosts} GPUs ({hosts} hosts with {each} each), but this machine has {len(devices)}, "
            f"{len(devices)} of them free; ask for fewer with --gpus or --hosts"
        )
    return [Slots("cuda", devices[i * each : (i + 1) * each], each) for i in range(hosts)]
