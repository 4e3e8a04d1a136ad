"""What user code measures, with OpenTelemetry and without."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest
from mesh_actors import Runner

from monarch_kernel.actor import Actor, _telemetry, endpoint, get_meter, span, traced
from monarch_kernel.actor._telemetry import LocalMeter

from .conftest import WAIT


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> LocalMeter:
    """The meter of a process without OpenTelemetry."""
    monkeypatch.setattr(_telemetry, "_opentelemetry", lambda part: None)
    meter = LocalMeter()
    monkeypatch.setattr(_telemetry, "_local", meter)
    assert get_meter() is meter
    return meter


def spans(meter: LocalMeter) -> dict[str, int]:
    """How often each span was there."""
    return {dict(series)["span"]: one.count for series, one in meter.read().get("span.duration", {}).items()}


def test_amounts_add_up_by_their_attributes(alone: LocalMeter) -> None:
    requests = get_meter().create_counter("requests", unit="1", description="served")
    requests.add(2)
    requests.add(1, {"outcome": "success", "code": 200})
    get_meter().create_counter("requests").add(1, {"code": 200, "outcome": "success"})  # the same one
    get_meter().create_up_down_counter("queue").add(-1)
    waits = get_meter().create_histogram("waits", "s")
    for seconds in (0.5, 0.25, 1.0):
        waits.record(seconds)
    read = alone.read()
    assert {series: one.sum for series, one in read["requests"].items()} == {
        (): 2,
        (("code", "200"), ("outcome", "success")): 2,
    }
    assert read["queue"][()].sum == -1
    one = read["waits"][()]
    assert (one.sum, one.count, one.least, one.most) == (1.75, 3, 0.25, 1.0)


def test_a_counter_only_grows_and_a_name_is_of_one_kind(alone: LocalMeter) -> None:
    with pytest.raises(ValueError, match="create_up_down_counter"):
        get_meter().create_counter("requests").add(-1)
    with pytest.raises(ValueError, match="'requests' is a Counter"):
        get_meter().create_histogram("requests")
    assert alone.read() == {"requests": {}}


def test_no_amount_is_lost_between_threads(alone: LocalMeter) -> None:
    def add() -> None:
        for _ in range(1000):
            get_meter().create_counter("many").add(1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone.read()["many"][()].sum == 4000


def test_functions_of_both_kinds_are_spans_and_stay_what_they_are(alone: LocalMeter) -> None:
    @traced
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    @traced(name="other")
    async def wait(x: int) -> int:
        await asyncio.sleep(0)
        return x

    assert (double.__name__, double.__doc__, double(3)) == ("double", "Twice.", 6)
    assert asyncio.iscoroutinefunction(wait)
    assert asyncio.run(wait(4)) == 4
    assert spans(alone) == {"double": 1, "other": 1}


def test_an_exception_passes_through_a_span_that_is_counted_all_the_same(alone: LocalMeter) -> None:
    with pytest.raises(KeyError), span("fails"):
        raise KeyError("x")
    once = span("once")
    with once:
        pass
    with pytest.raises(RuntimeError, match="entered before"), once:
        pass
    assert spans(alone) == {"fails": 1, "once": 1}


def test_actors_measure_too(procs) -> None:
    def measure() -> int:
        from monarch_kernel.actor import get_meter, span

        with span("inside"):
            get_meter().create_counter("calls").add(1)
        read = getattr(get_meter(), "read", None)  # a meter of OpenTelemetry's sends its numbers elsewhere
        return int(read()["calls"][()].sum) if read is not None else 1

    assert list(procs.spawn("measured", Runner).run.call(measure).get(timeout=WAIT).values()) == [1, 1, 1, 1]


class Silent(Actor):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    @endpoint
    def load(self) -> None:
        """Set up what stands in for OpenTelemetry in this process."""
        seen = self.seen

        class Tracer:
            @contextlib.contextmanager
            def start_as_current_span(self, name: str, attributes: dict[str, str]) -> Iterator[None]:
                seen.append((name, attributes["actor_name"]))
                yield

        trace: Any = types.ModuleType("opentelemetry.trace")
        trace.get_tracer = lambda scope: Tracer()
        sys.modules["opentelemetry"] = types.ModuleType("opentelemetry")
        sys.modules["opentelemetry.trace"] = trace

    @endpoint
    def work(self) -> str:
        return "done"

    @endpoint(instrument=False)
    def spans(self) -> list[tuple[str, str]]:
        return self.seen


def test_messages_are_spans_where_opentelemetry_is_loaded_unless_an_endpoint_says_no(fresh) -> None:
    actor: Any = fresh(gpus=1).slice(hosts=0, gpus=0).spawn("silent", Silent)
    assert actor.work.call_one().get(timeout=WAIT) == "done"
    actor.load.call_one().get(timeout=WAIT)
    assert actor.spans.call_one().get(timeout=WAIT) == []
    assert actor.work.call_one().get(timeout=WAIT) == "done"
    ((name, who),) = actor.spans.call_one().get(timeout=WAIT)
    assert name == "work"
    assert "silent" in who


class Recorder:
    """A stand-in for OpenTelemetry's span processor."""

    def __init__(self) -> None:
        self.ended: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Nothing to do."""

    def on_end(self, span: Any) -> None:
        self.ended.append(span)

    def _on_ending(self, span: Any) -> None:
        """Nothing to do."""

    def shutdown(self) -> None:
        """Nothing to do."""

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def test_with_opentelemetry_spans_and_numbers_go_to_its_providers() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider

    seen, reader = Recorder(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(seen)  # type: ignore[arg-type]  # all of one that is called
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    with pytest.raises(KeyError), span("outer"), span("inner"):
        raise KeyError("x")
    get_meter().create_counter("requests").add(3)
    inner, outer = seen.ended
    assert (inner.name, outer.name, inner.parent.span_id) == ("inner", "outer", outer.context.span_id)
    assert inner.attributes["actor_name"] == "<root>"
    assert inner.attributes["actor_id"].startswith("client.")
    assert inner.events[0].name == "exception"
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.metrics[0].name, scope.metrics[0].data.data_points[0].value) == (
        "monarch", "requests", 3
    )  # fmt: skip
