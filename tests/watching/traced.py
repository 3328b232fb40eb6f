"""The App of the workers' tests in a process that has an OpenTelemetry SDK: every span is a line in a file as soon as it has ended."""

import json
import os
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tests.tasks.shop import app

__all__ = ["app"]


class Lines(SpanExporter):
    """Writes spans down, so that those of a process that is killed are there."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            line = json.dumps({"pid": os.getpid(), **json.loads(span.to_json())}) + "\n"
            handle = os.open(os.environ["SPANS"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
            os.write(handle, line.encode())
            os.close(handle)
        return SpanExportResult.SUCCESS


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Lines()))
trace.set_tracer_provider(provider)
