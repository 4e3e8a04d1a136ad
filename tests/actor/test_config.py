"""The configuration: Monarch's keys, checked; and what of it reaches processes."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_kernel import config
from monarch_kernel.actor import Actor, endpoint
from monarch_kernel.actor._config import ENVIRONMENT, for_children, seconds
from monarch_kernel.actor._config_keys import KEYS, checked, from_text, to_text
from monarch_kernel.actor._transport import BindSpec, ChannelTransport
from monarch_kernel.state.humantime import format_humantime, parse_humantime


class Reader(Actor):
    @endpoint
    def read(self, name: str) -> object:
        return config.get_global_config()[name]


def test_every_default_is_a_value_of_its_key_and_comes_back_from_text() -> None:
    for name, key in KEYS.items():
        assert checked(name, key.default) == key.default
        assert from_text(name, to_text(key.default)) == key.default


def test_a_block_sets_keys_and_gives_back_what_held() -> None:
    with config.configured(tail_log_lines=3):
        with config.configured(tail_log_lines=4, cleanup_timeout="90s") as inside:
            assert (inside["tail_log_lines"], inside["cleanup_timeout"]) == (4, "1m 30s")
            assert seconds("cleanup_timeout") == 90.0
        assert config.get_runtime_config() == {"tail_log_lines": 3}
    assert config.get_runtime_config() == {}
    assert config.get_global_config()["cleanup_timeout"] == "3s"


def test_a_wrong_value_sets_nothing() -> None:
    with pytest.raises(TypeError, match="tail_log_lines"):
        config.configure(enable_file_capture=True, tail_log_lines="many")
    assert config.get_runtime_config() == {}


@pytest.mark.parametrize("name", ["cleanup_timeot", "rdma_disable_ibverb"])
def test_an_unknown_key_names_those_near_it(name: str) -> None:
    with pytest.raises(ValueError, match="invalid configuration key.*near it: " + name[:10]):
        config.configure(**{name: 1})


@pytest.mark.parametrize("value", ["", "30", "abc123", "1.5s", "s", "1h 30"])
def test_what_is_no_duration_says_so(value: str) -> None:
    with pytest.raises(TypeError, match="Invalid duration format"):
        config.configure(cleanup_timeout=value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("90s", "1m 30s"),
        ("1h30m", "1h 30m"),
        ("1day 2ms 3us", "1day 2ms 3us"),
        ("1week 2months 1y", "1year 2months 7days"),
        ("0s", "0s"),
        ("1500ms", "1s 500ms"),
    ],
)
def test_durations_are_shown_as_monarch_shows_them(text: str, shown: str) -> None:
    assert format_humantime(parse_humantime(text)) == shown
    assert parse_humantime(shown) == parse_humantime(text)


def test_a_transport_is_named_or_an_address() -> None:
    with config.configured(default_transport="tcp") as held:
        assert held["default_transport"] == BindSpec(ChannelTransport.TcpWithHostname)
    with config.configured(default_transport="tcp://127.0.0.1:8080") as held:
        assert str(held["default_transport"]) == "tcp://127.0.0.1:8080"
    with pytest.raises(ValueError, match="no address"):
        config.configure(default_transport="random_string")
    with pytest.raises(TypeError):
        config.configure(default_transport=42)


def test_nothing_is_said_to_children_when_nothing_was_set() -> None:
    assert for_children() == {}
    with config.configured(default_encoding=config.Encoding.Json):
        assert for_children() == {ENVIRONMENT: '{"default_encoding": "Json"}'}


def test_processes_see_what_their_client_has_set(session: Any) -> None:
    with config.configured(rdma_ibverbs_target="nic:mlx5_0"):
        there = session.hosts.slice(hosts=0).spawn_procs()
    reader = there.spawn("reader", Reader)
    assert reader.read.call_one("rdma_ibverbs_target").get(timeout=30.0) == "nic:mlx5_0"
    assert config.get_global_config()["rdma_ibverbs_target"] == ""
    there.stop().get(timeout=30.0)


@config.parametrize_config(force_file_log={True}, tail_log_lines={1, 2})
def test_a_test_runs_under_every_combination() -> None:
    held = config.get_runtime_config()
    assert held["force_file_log"] is True
    assert held["tail_log_lines"] in (1, 2)


@config.parametrize_config_pointwise(tail_log_lines=[1, 2], read_log_buffer=[10, 20])
def test_or_under_each_row() -> None:
    held = config.get_runtime_config()
    assert held["read_log_buffer"] == 10 * held["tail_log_lines"]


def test_rows_have_one_length() -> None:
    with pytest.raises(ValueError, match="same number"):
        config.parametrize_config_pointwise(tail_log_lines=[1], read_log_buffer=[1, 2])
