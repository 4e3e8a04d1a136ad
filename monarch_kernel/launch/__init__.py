"""Obtain hosts from what people already run, start keepers on them, release them."""

from __future__ import annotations

from .base import Launcher, LaunchSpec, ReleaseReport, filtered_environment
from .local import LocalLauncher
from .slots import DeviceProbe, NvidiaProbe, Slots

__all__ = [
    "DeviceProbe",
    "LaunchSpec",
    "Launcher",
    "LocalLauncher",
    "NvidiaProbe",
    "ReleaseReport",
    "Slots",
    "filtered_environment",
]
