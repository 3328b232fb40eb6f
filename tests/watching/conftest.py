"""A world that is watched, and an OpenTelemetry SDK that keeps what it is told."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.worlds import World


@pytest.fixture
def world(url: str) -> Iterator[World]:
    """A store, and workers that may die."""
    world = World(url)
    yield world
    world.close()


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """Where the spans of this process go. A process has one SDK, for ever."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace.set_tracer_provider(provider)
    return kept


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    """The same, empty."""
    exporter.clear()
    return exporter
