"""Configuration under Monarch's names: what `monarch.config` is in PyTorch Monarch.

>>> from monarch_kernel.config import configured
>>> with configured(mesh_attach_config_timeout="5s"):
...     pass

Keys that do something here are listed by ``{name: key.acts for name, key in KEYS.items() if key.acts}`` of
`monarch_kernel.actor._config_keys` and in the user guide. The others are Monarch's own (of its channels, its telemetry,
its admin server): they are checked and kept, so that programs run unchanged, and change nothing.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .actor._config import clear_runtime_config, configure, configured, get_global_config, get_runtime_config
from .actor._config_keys import Encoding

__all__ = [
    "Encoding",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "parametrize_config",
    "parametrize_config_pointwise",
]

Decorator = Callable[[Callable[..., Any]], Any]


def parametrize_config(**options: Iterable[Any]) -> Decorator:
    """For tests: run a test under every combination of the values given (needs pytest).

    Examples
    --------
    >>> @parametrize_config(force_file_log={True, False}, prefix_with_rank={True, False})
    ... def test_four_times(): ...
    """
    if not options:
        raise ValueError("parametrize_config requires at least one config option")
    return _parametrized(list(options), itertools.product(*options.values()))


def parametrize_config_pointwise(**options: Sequence[Any]) -> Decorator:
    """For tests: run a test under the first value of each option, then under the second of each, and so on.

    Raises
    ------
    ValueError
        No option is given, or they have different numbers of values.
    """
    if not options:
        raise ValueError("parametrize_config_pointwise requires at least one config option")
    lengths = {name: len(values) for name, values in options.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(
            f"parametrize_config_pointwise requires the same number of values of every option; got lengths {lengths}"
        )
    return _parametrized(list(options), zip(*options.values(), strict=True))


def _parametrized(names: list[str], rows: Iterable[Sequence[Any]]) -> Decorator:
    import pytest

    sets = [dict(zip(names, row, strict=True)) for row in rows]
    ids = ["-".join(f"{name}={value}" for name, value in one.items()) for one in sets]
    parameter = "_config_overrides"

    def decorate(test: Callable[..., Any]) -> Any:
        wrapped: Any
        if inspect.iscoroutinefunction(test):

            async def wrapped(_config_overrides: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
                with configured(**_config_overrides):
                    return await test(*args, **kwargs)
        else:

            def wrapped(_config_overrides: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
                with configured(**_config_overrides):
                    return test(*args, **kwargs)

        functools.update_wrapper(wrapped, test)
        signature = inspect.signature(test)
        first = inspect.Parameter(parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        wrapped.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])
        return pytest.mark.parametrize(parameter, sets, ids=ids)(wrapped)

    return decorate
