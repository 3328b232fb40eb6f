"""Settings for gunicorn:  ORCHESTRATOR_APP=support:app gunicorn -c python:web.gunicorn 'web:create_app()'

A reader of a stream holds a thread for as long as it reads, so there are threads for all readers and some more for everybody else.
BIND is HOST, HOST:PORT or unix:PATH, PORT the port alone. gunicorn's own arguments go before what is said here.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from types import FrameType
from typing import Any

from gunicorn.glogging import Logger

from orchestrator.config import from_environment
from orchestrator.watching.serving import together
from web.logged import cut
from web.stream import end_all


def address(environ: Mapping[str, str]) -> str:
    """Where to listen: on loopback unless the environment says more."""
    host, port = environ.get("BIND") or "127.0.0.1", environ.get("PORT") or "8000"
    bracketed = host.endswith("]")  # an IPv6 address alone
    return host if host.startswith("unix:") or (":" in host and not bracketed) else f"{host}:{port}"


bind = address(os.environ)
worker_class = "gthread"
threads = max(64, from_environment().streams + 16)
# Counted together with the connections that are kept open between two requests.
worker_connections = max(1000, 2 * threads)
# Of the worker's main loop, which readers do not hold up.
timeout = 120
keepalive = 15
# Readers are told to end at once; six seconds is what the slowest other answer takes.
graceful_timeout = 8
# All gunicorns of a user would share one.
control_socket_disable = True
accesslog = "-"
# Neither the query nor the referer: clients put keys into URLs.
access_log_format = '%(h)s %(t)s "%(m)s %(U)s %(H)s" %(s)s %(B)s %(M)sms'


class CuttingLogger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """gunicorn's own, which shows no text that opens a door, whatever the format asks for."""

    def setup(self, cfg: Any) -> None:
        """gunicorn's own, in the form that is asked for."""
        super().setup(cfg)
        settings = from_environment()
        if settings.log == "json":
            logs = import_module("orchestrator.watching.logs")
            for logger in (self.error_log, self.access_log):
                logs.dress(logger, {"deployment": settings.deployment})
            # What we say ourselves goes to its error log.
            logging.getLogger().handlers = list(self.error_log.handlers)

    def atoms(self, *about: Any) -> dict[str, Any]:
        """What the format of the access log may use."""
        found: dict[str, Any] = super().atoms(*about)
        shown = {name: cut(text) if isinstance(text, str) else text for name, text in found.items()}
        return {**shown, **dict.fromkeys(("{authorization}i", "{cookie}i"), "-")}


logger_class = CuttingLogger
_together = ExitStack()


def post_worker_init(worker: Any) -> None:
    """Refuse a world that cannot work before the first request, and end the readers when the process is to end."""
    front = getattr(worker.wsgi, "extensions", {}).get("orchestrator")
    if front is not None:
        front.check()
    before = signal.getsignal(signal.SIGTERM)

    def on_term(number: int, frame: FrameType | None) -> None:
        end_all()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, on_term)
    signal.siginterrupt(signal.SIGTERM, False)


def on_starting(server: Any) -> None:
    """Several processes that count do it together: each answers a scrape for all."""
    if server.cfg.workers > 1:
        _together.enter_context(together(from_environment(), os.environ, many=True))


def on_exit(_server: Any) -> None:
    """Leave nothing behind."""
    _together.close()


def child_exit(_server: Any, worker: Any) -> None:
    """What it had open is open no more."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ and from_environment().counts:
        import_module("orchestrator.watching.metrics").forget(worker.pid)


def worker_int(_worker: Any) -> None:
    """Ctrl-C: the interpreter waits for its threads at the end, and readers hold threads."""
    end_all()
