"""The keys of the configuration: Monarch's names and defaults, what a value of each is, and which of them act here.

A key that Monarch has and nothing here reads is kept and checked all the same, so that a program which sets it runs;
`Key.acts` says which do something, and the documentation lists them from here.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..state.humantime import format_humantime, parse_humantime
from ._transport import BindSpec, ChannelTransport

__all__ = ["KEYS", "Encoding", "Key", "checked", "from_text", "to_text"]


class Encoding(enum.IntEnum):
    """Monarch's encodings of a message. Kept, without effect: records here have one format."""

    Bincode = 0
    Json = 1
    Multipart = 2

    def __repr__(self) -> str:
        return f"Encoding.{self.name}"


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Attributes
    ----------
    default
        What holds where nobody has said otherwise.
    check
        Makes the value that is kept from the one that was given, or raises TypeError or ValueError.
    acts
        What it does here; empty: kept and checked, without effect.
    """

    default: Any
    check: Callable[[Any], Any]
    acts: str = ""


def _duration(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a duration is a text, as '30s'")
    try:
        return format_humantime(parse_humantime(value))
    except ValueError as error:  # Monarch's kind of error for a text that is no duration
        raise TypeError(str(error)) from None


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    if value < 0:
        raise TypeError("a number that is not negative is expected")
    return value


def _some(value: Any) -> int | None:
    if value is None:
        return None
    if _whole(value) == 0:
        raise ValueError("a number above 0 is expected, or None for no limit")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number is expected")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("True or False is expected")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is expected")
    return value


def _encoding(value: Any) -> Encoding:
    if not isinstance(value, Encoding):
        raise TypeError("an Encoding is expected")
    return value


_ATTACH = "how long attach_to_workers tries to reach each worker"
_TRANSPORT = "where the client's own host listens for workers on other machines"

KEYS: dict[str, Key] = {
    "default_transport": Key(BindSpec(ChannelTransport.Unix), BindSpec, _TRANSPORT),
    "default_encoding": Key(Encoding.Multipart, _encoding),
    "message_latency_sampling_rate": Key(0.01, _number),
    "rdma_max_nics_per_buffer": Key(None, _some),
    "tokio_worker_threads": Key(None, _some),
    **{
        name: Key(default, _duration, acts)
        for name, default, acts in (
            ("actor_spawn_max_idle", "30s", ""),
            ("channel_net_rx_buffer_full_check_interval", "5s", ""),
            ("channel_reconnect_timeout", "1m", ""),
            ("channel_tcp_keepalive_idle", "1m", ""),
            ("cleanup_timeout", "3s", "how long an actor's __cleanup__ may take when it stops"),
            ("forwarder_flush_timeout", "5s", ""),
            ("get_actor_state_max_idle", "30s", ""),
            ("get_proc_state_max_idle", "1m", ""),
            ("host_spawn_ready_timeout", "30s", ""),
            ("mesh_admin_config_dump_bridge_timeout", "5s", ""),
            ("mesh_admin_pyspy_bridge_timeout", "13s", ""),
            ("mesh_admin_pyspy_client_timeout", "20s", ""),
            ("mesh_admin_pyspy_max_profile_duration", "5m", ""),
            ("mesh_admin_pyspy_timeout", "10s", ""),
            ("mesh_admin_query_child_timeout", "100ms", ""),
            ("mesh_admin_resolve_actor_timeout", "200ms", ""),
            ("mesh_admin_single_host_timeout", "3s", ""),
            ("mesh_admin_tree_timeout", "10s", ""),
            ("mesh_attach_config_timeout", "1m", _ATTACH),
            ("mesh_orphan_timeout", "1m", ""),
            ("mesh_proc_spawn_max_idle", "30s", ""),
            ("mesh_terminate_timeout", "10s", ""),
            ("message_ack_time_interval", "500ms", ""),
            ("message_delivery_timeout", "30s", ""),
            ("otel_metric_export_interval", "1s", ""),
            ("pending_actor_delivery_timeout", "30s", ""),
            ("proc_stop_max_idle", "30s", ""),
            ("process_exit_timeout", "10s", ""),
            ("process_memory_metric_interval", "5m", ""),
            ("rdma_qp_init_timeout", "30s", ""),
            ("server_heartbeat_interval", "1s", ""),
            ("split_max_buffer_age", "50ms", ""),
            ("stop_actor_timeout", "10s", ""),
            ("stop_grace_period", "10s", ""),
            ("supervision_watchdog_timeout", "2m", ""),
        )
    },
    **{
        name: Key(default, _whole)
        for name, default in (
            ("codec_max_frame_length", 10 << 30),
            ("max_cast_dimension_size", 16),
            ("max_cast_fanout", 16),
            ("mesh_admin_max_concurrent_resolves", 2),
            ("mesh_terminate_concurrency", 16),
            ("message_ack_every_n_messages", 1000),
            ("message_ttl_default", 64),
            ("rdma_max_chunk_size_mb", 64),
            ("rdma_min_stripe_size_kb", 512),
            ("rdma_qps_per_cq", 64),
            ("rdma_qps_per_peer", 4),
            ("rdma_runtime_worker_threads", 4),
            ("rdma_tcp_fallback_parallelism", 1),
            ("read_log_buffer", 100),
            ("sequencer_max_locked_keys", 128),
            ("small_write_threshold", 256),
            ("split_max_buffer_size", 5),
            ("tail_log_lines", 0),
            ("terminated_snapshot_retention", 100),
        )
    },
    **{
        name: Key(default, _flag, acts)
        for name, default, acts in (
            ("enable_dest_actor_reordering_buffer", True, ""),
            ("enable_file_capture", False, ""),
            ("enable_log_forwarding", False, ""),
            ("enable_otel_metrics", True, ""),
            ("enable_otel_tracing", True, ""),
            ("enable_recorder_tracing", True, ""),
            ("enable_sqlite_tracing", False, ""),
            ("enable_unawaited_python_task_traceback", False, ""),
            ("force_file_log", False, ""),
            ("mesh_bootstrap_enable_pdeathsig", True, ""),
            ("prefix_with_rank", True, ""),
            ("rdma_allow_tcp_fallback", True, "whether memory is read over TCP where there is no ibverbs device"),
            ("rdma_cq_poller_per_device", True, ""),
            ("rdma_disable_ibverbs", False, "leaves ibverbs devices alone"),
            ("rdma_host_odp", False, ""),
            ("scuba_log_enter_exit", False, ""),
            ("use_direct_spawn", False, ""),
        )
    },
    **{
        name: Key(default, _text)
        for name, default in (
            ("channel_tcp_congestion", ""),
            ("file_log_level", ""),
            ("mesh_admin_addr", "[::]:1729"),
            ("monarch_log_suffix", ""),
            ("proc_launcher_kind", ""),
            ("pyspy_bin", ""),
            ("rdma_ibverbs_target", ""),
            ("rdma_peer_device_affinity", ""),
        )
    },
}


def checked(name: str, value: Any) -> Any:
    """The value to keep under a key.

    Raises
    ------
    ValueError, TypeError
        There is no such key, or this is no value of it.
    """
    key = KEYS.get(name)
    if key is None:
        near = difflib.get_close_matches(name, KEYS, 3)
        hint = f"; near it: {', '.join(near)}" if near else ""
        raise ValueError(f"invalid configuration key: {name!r}{hint}")
    try:
        return key.check(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"invalid value {value!r} for configuration key {name}: {error}") from None


def to_text(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, Encoding):
        return value.name
    if isinstance(value, BindSpec):
        return value.address or (value.transport.name if value.transport is not None else "")
    return value


def from_text(name: str, value: Any) -> Any:
    """And back."""
    if name == "default_encoding":
        return Encoding[value]
    if name == "default_transport" and value in ChannelTransport.__members__:
        return BindSpec(ChannelTransport[value])
    return checked(name, value)
