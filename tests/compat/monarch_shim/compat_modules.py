"""Modules named `monarch...` that hold nothing themselves: a name is looked up in the module of ours it stands for.

`monarch.X` stands for `monarch_kernel.X`, and `monarch` for `monarch_kernel` with the names of `monarch_kernel.actor`.
A private module stands for none: compat_private says where its names are, so far as we have them. What we lack is a
placeholder.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

import compat_private
from compat_placeholder import Placeholder

OURS = "monarch_kernel"
#: Below these, whatever is imported is a module: one that holds placeholders, where we have nothing.
EMPTY_ROOTS = ("monarch._src", "monarch._rust_bindings", "monarch.common", "monarch.tools")

#: Modules that tests take as names (`from package import module`), besides those that have names of ours.
NAMED_MODULES = (
    "monarch.actor",
    "monarch.config",
    "monarch.job",
    "monarch.rdma",
    "monarch.spmd",
    "monarch._src.job._slurm_batch",
    "monarch._src.rdma.rdma",
)


@functools.cache
def known_modules() -> frozenset[str]:
    """The full names of Monarch's modules, so far as tests name them, and of the packages around them."""
    with_names = (key.partition(":")[0] for key in (*compat_private.PRIVATE, *compat_private.ALIASES))
    parts = [one.split(".") for one in (*NAMED_MODULES, *with_names)]
    return frozenset(".".join(one[:end]) for one in parts for end in range(1, len(one) + 1))


def ours(name: str) -> types.ModuleType | None:
    """Our module that this module of Monarch's stands for."""
    parts = name.split(".")[1:]
    if any(part.startswith("_") for part in parts):
        return None
    wanted = ".".join((OURS, *parts))
    try:
        return importlib.import_module(wanted)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{wanted}.".startswith(f"{error.name}."):
            return None
        raise


class ShimModule(types.ModuleType):
    """A module of Monarch's by name; to read, set or delete a name here does so in the module of ours."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_mock_", "pytest")):  # what pytest and unittest.mock ask every object for
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in known_modules():
            return importlib.import_module(full)
        for module in self.__dict__["_ours"]:
            if hasattr(module, name):
                return getattr(module, name)
        key = f"{self.__name__}:{name}"
        if key in compat_private.ALIASES:
            module, _, public = compat_private.ALIASES[key].partition(":")
            return getattr(importlib.import_module(module), public)
        if key in compat_private.PRIVATE:
            return compat_private.PRIVATE[key]
        return Placeholder(key)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__["_ours"] and not name.startswith("__") and not isinstance(value, ShimModule):
            setattr(self.__dict__["_ours"][0], name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        elif self.__dict__["_ours"]:
            delattr(self.__dict__["_ours"][0], name)

    def __reduce__(self) -> tuple[Any, ...]:  # by name, also for cloudpickle
        return importlib.import_module, (self.__name__,)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules below `monarch`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("monarch."):
            return None
        if ours(fullname) is None and fullname not in known_modules() and not fullname.startswith(EMPTY_ROOTS):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = ShimModule(spec.name)
        found = ours(spec.name)
        module.__dict__["_ours"] = () if found is None else (found,)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(root: types.ModuleType) -> None:
    """Turn the module `monarch` into a shim, and make the modules below it importable."""
    sys.meta_path.insert(0, Finder())
    root.__dict__["_ours"] = (importlib.import_module(OURS), importlib.import_module(f"{OURS}.actor"))
    root.__class__ = ShimModule
