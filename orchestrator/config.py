"""Settings: from the environment, one documented table (README.md repeats it)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError
from orchestrator.tool import NAME

Durability = Literal["server", "fsync", "replica"]
Anonymous = Literal["", "loopback", "all"]
"""Who may call without a key: nobody, callers on this machine, everybody."""
ANONYMOUS: Mapping[str, Anonymous] = {
    **dict.fromkeys(("", "0", "false", "no", "off"), ""),
    "loopback": "loopback",
    **dict.fromkeys(("1", "true", "yes", "on", "all"), "all"),
}

Metrics = Literal["", "on", "open"]
"""Whether this process counts, and who may scrape the web: nobody, callers with the scope `metrics` or `read`, everybody."""
Traces = Literal["", "on", "content"]
"""Whether OpenTelemetry is told of turns: not at all, without what was said, with it."""
NO, YES = ("", "0", "false", "no", "off"), ("1", "true", "yes", "on")
WORDS: Mapping[str, Mapping[str, str]] = {
    "allow_anonymous": ANONYMOUS,
    "metrics": {**dict.fromkeys(NO, ""), **dict.fromkeys(YES, "on"), "open": "open"},
    "traces": {**dict.fromkeys(NO, ""), **dict.fromkeys(YES, "on"), "content": "content"},
    "log": {**dict.fromkeys((*NO, "plain", "text"), ""), "json": "json"},
}

SECRETS = frozenset({"api_keys", "jwt_key"})
"""What only the web needs to know."""

MAX_BODY_BYTES = 15 * 1024 * 1024
"""What fits into a stored value with all around it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How this process runs. Field `x_y` is the variable `ORCHESTRATOR_X_Y`."""

    app: str = ""
    url: str = "local:.orchestrator"
    broker_url: str = ""
    deployment: str = "default"
    model: str = ""
    lease_seconds: float = 10.0
    drain_seconds: float = 25.0
    steps_per_task: int = 1
    durability: Durability = "server"
    api_keys: str = ""
    allow_anonymous: Anonymous = ""
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_key: str = ""
    cors_origins: str = ""
    prefix: str = "orc"
    streams: int = 48
    body_limit_bytes: int = 10 * 1024 * 1024
    waiting_limit: int = 1000
    session_days: float = 30.0
    retention_days: float = 30.0
    metrics: Metrics = ""
    metrics_listen: str = ""
    traces: Traces = ""
    log: Literal["", "json"] = ""

    def as_environment(self) -> dict[str, str]:
        """The variables that give another process these settings. Keys are left out: only the web needs them."""
        given = {name: getattr(self, name) for name in Settings.__dataclass_fields__ if name not in SECRETS}
        return {f"ORCHESTRATOR_{name.upper()}": str(value) for name, value in given.items() if value != ""}

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return int(self.lease_seconds * 1000)

    @property
    def counts(self) -> bool:
        """Whether this process counts what it does."""
        return bool(self.metrics or self.metrics_listen)

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Where a worker shows what it counts: host (this machine's own unless one is named) and port."""
        host, _, port = self.metrics_listen.rpartition(":")
        return host.strip("[]") or "127.0.0.1", int(port)

    @property
    def origins(self) -> tuple[str, ...]:
        """The pages of other hosts that may call: their origins, or `*` alone for all of them."""
        return tuple(
            filter(None, (origin.rstrip("/").lower() for origin in self.cors_origins.replace(",", " ").split()))
        )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.deployment):
            raise ConfigError(
                problem=f"ORCHESTRATOR_DEPLOYMENT={self.deployment!r} is no label.",
                remedy="Use up to 48 characters of a-z, 0-9, '.', '_' and '-'.",
            )
        if self.durability not in ("server", "fsync", "replica"):
            raise ConfigError(
                problem=f"ORCHESTRATOR_DURABILITY={self.durability!r} is no level.",
                remedy="Use server, fsync or replica.",
            )
        if self.allow_anonymous not in ("", "loopback", "all"):
            raise ConfigError(
                problem=f"ORCHESTRATOR_ALLOW_ANONYMOUS={self.allow_anonymous!r} is no answer.",
                remedy="Use 1 (everybody), loopback (callers on this machine) or nothing.",
            )
        for name, words, hint in (
            ("metrics", ("", "on", "open"), "1, open (whoever reaches the web may scrape it) or nothing"),
            ("traces", ("", "on", "content"), "1, content (with what was said) or nothing"),
            ("log", ("", "json"), "json or nothing"),
        ):
            if getattr(self, name) not in words:
                raise ConfigError(
                    problem=f"ORCHESTRATOR_{name.upper()}={getattr(self, name)!r} is no answer.", remedy=f"Use {hint}."
                )
        if self.metrics_listen and not _is_port(self.metrics_listen.rpartition(":")[2]):
            raise ConfigError(
                problem=f"ORCHESTRATOR_METRICS_LISTEN={self.metrics_listen!r} is no place to listen.",
                remedy="Use PORT (on this machine only) or HOST:PORT.",
            )
        if self.body_limit_bytes > MAX_BODY_BYTES:
            raise ConfigError(
                problem=f"ORCHESTRATOR_BODY_LIMIT_BYTES={self.body_limit_bytes} is more than can be stored.",
                remedy=f"Use at most {MAX_BODY_BYTES}.",
            )
        if self.lease_seconds < 0.5 or self.steps_per_task < 1 or self.streams < 1:
            raise ConfigError(
                problem="ORCHESTRATOR_LEASE_SECONDS is below 0.5, or ORCHESTRATOR_STEPS_PER_TASK or ORCHESTRATOR_STREAMS below 1.",
                remedy="Raise it.",
            )
        for name in ("session_days", "retention_days"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    problem=f"ORCHESTRATOR_{name.upper()}={getattr(self, name)} is no number of days.",
                    remedy="Use 0 (never) or more.",
                )
        for origin in self.origins:
            if not _is_origin(origin) and self.origins != ("*",):
                raise ConfigError(
                    problem=f"ORCHESTRATOR_CORS_ORIGINS has {origin!r}, which is no origin.",
                    remedy="Use https://host or https://host:port, several separated by commas, or * alone.",
                )
        if (self.jwt_key or self.jwt_audience or self.jwt_issuer) and not (self.jwt_issuer and self.jwt_audience):
            raise ConfigError(
                problem="For tokens ORCHESTRATOR_JWT_ISSUER and ORCHESTRATOR_JWT_AUDIENCE are both needed.",
                remedy="Set them to the `iss` and the `aud` of the tokens to accept.",
            )
        if not self.prefix or any(letter in "{}*?[]: " for letter in self.prefix):
            raise ConfigError(
                problem=f"ORCHESTRATOR_PREFIX={self.prefix!r} cannot begin a key.",
                remedy="Use letters, digits, '.', '_' and '-'.",
            )


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _is_origin(text: str) -> bool:
    try:
        found = urlsplit(text)
        _ = found.port
    except ValueError:
        return False
    return bool(found.scheme and found.hostname) and text == f"{found.scheme}://{found.netloc}" and "@" not in text


def from_environment(base: Settings | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process: the environment over `base` over the defaults. Raises `ConfigError`."""
    environ = os.environ if environ is None else environ
    settings = base or Settings()
    found: dict[str, object] = {}
    for name in Settings.__dataclass_fields__:
        text = environ.get(f"ORCHESTRATOR_{name.upper()}")
        if text is not None and text != "":
            found[name] = _parse(name, text, getattr(settings, name))
    return replace(settings, **found) if found else settings  # type: ignore[arg-type]  # parsed to the field's own type


def _parse(name: str, text: str, like: object) -> object:
    if name in WORDS:
        return WORDS[name].get(text.strip().lower(), text)
    try:
        if isinstance(like, bool):
            return text.strip().lower() in ("1", "true", "yes", "on")
        if isinstance(like, int):
            return int(text)
        if isinstance(like, float):
            return float(text)
    except ValueError as broken:
        raise ConfigError(
            problem=f"ORCHESTRATOR_{name.upper()}={text!r} is no number.", remedy="Give a number."
        ) from broken
    return text
