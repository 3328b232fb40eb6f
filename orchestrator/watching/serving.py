"""The port on which a worker shows what it counts, and the folder in which several processes count together."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from orchestrator.config import Settings

log = logging.getLogger(__name__)
TOGETHER = "PROMETHEUS_MULTIPROC_DIR"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Shared(_Server):
    """On a port that several processes have: any of them may answer, for all."""

    allow_reuse_port = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A scrape is nothing to tell of."""


def serve(settings: Settings) -> WSGIServer | None:
    """Answer scrapes on ORCHESTRATOR_METRICS_LISTEN, on a thread. None where that is not set, or the port is taken (which is logged)."""
    if not settings.metrics_listen:
        return None
    metrics = import_module("orchestrator.watching.metrics")
    host, port = settings.metrics_address

    def scrape(environ: dict[str, object], start: object) -> list[bytes]:
        body: bytes = metrics.text()
        assert callable(start)
        start("200 OK", [("content-type", metrics.CONTENT_TYPE), ("content-length", str(len(body)))])
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    kind = _Shared if os.environ.get(TOGETHER) else _Server
    try:
        server = make_server(host, port, scrape, kind, _Quiet)
    except OSError as taken:
        log.error(
            "nobody can scrape this worker, %s cannot be had: %s. Workers of one machine share a port when they share a "
            "folder (%s); else give each its own.",
            settings.metrics_listen,
            taken.strerror,
            TOGETHER,
        )
        return None
    threading.Thread(target=server.serve_forever, name="orchestrator-metrics", daemon=True).start()
    return server


@contextmanager
def together(settings: Settings, environ: MutableMapping[str, str], *, many: bool) -> Iterator[None]:
    """Let the processes that are started with this environment count together, if there are `many` of them and they count at all."""
    folder = "" if environ.get(TOGETHER) or not (many and settings.counts) else tempfile.mkdtemp(prefix="orc-metrics-")
    if folder:
        environ[TOGETHER] = folder
    try:
        yield
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
