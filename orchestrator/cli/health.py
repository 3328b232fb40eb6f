"""What is well, what is not, and what to do: a judgement of each thing that `doctor` looks at. Values in, lines out."""

from __future__ import annotations

import difflib
import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from orchestrator import auth
from orchestrator import world as worlds
from orchestrator.agent import App
from orchestrator.apikeys import parse
from orchestrator.cli.printed import plain, seconds
from orchestrator.config import Settings
from orchestrator.errors import OrchestratorError
from orchestrator.ids import SHARDS
from orchestrator.journal.looking import BEAT_MS, Queue, Server, World
from orchestrator.local import SCHEME

Level = Literal["ok", "warn", "fail"]
OLDEST = {"Redis": (7, 0), "Valkey": (7, 2)}
NEARLY_FULL = 0.85
LATE_MS = 10_000
"""A wake or a due session that is older than this should have been taken by now."""
SKEW_MS = 1000
SLOW_MS = 20
SITE_SECONDS = 3.0
PROMISE = {
    "server": "an accepted message is as safe as Redis is set to keep it",
    "fsync": "an accepted message and every checkpoint are on the disk of Redis before they are answered",
    "replica": "an accepted message and every checkpoint are at a replica before they are answered",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing: what it is about, whether it is well, what was found, and what to do."""

    about: str
    level: Level
    says: str
    do: str = ""


def ok(about: str, says: str) -> Line:
    """It is well."""
    return Line(about, "ok", says)


def warn(about: str, says: str, do: str) -> Line:
    """It works, and may hurt somebody later."""
    return Line(about, "warn", says, do)


def fail(about: str, says: str, do: str = "") -> Line:
    """It cannot work. Without `do` the text itself says what to do."""
    return Line(about, "fail", says, do)


# The App and the settings -----------------------------------------------------------------------------------------------


def app(found: App | None, model: str) -> Line:
    """The App, and whether its agents have a model."""
    if found is None:
        return warn(
            "app",
            "No App is named.",
            "Name it: `orchestrator doctor module:name`, ORCHESTRATOR_APP, or [tool.orchestrator] app in pyproject.toml.",
        )
    agents = [f"{agent.name} ({len(agent.tools)} tools, {model or _model(agent.model)})" for agent in found.agents]
    said = ", ".join(agents) + (f"; channels: {', '.join(found.channels_by_name)}" if found.channels else "")
    if without := [agent.name for agent in found.agents if agent.model is None and not model]:
        return warn("app", said, f"Give {' and '.join(without)} a model: Agent(model=...) or ORCHESTRATOR_MODEL.")
    return ok("app", said)


def _model(model: object) -> str:
    if model is None:
        return "no model"
    return model if isinstance(model, str) else str(getattr(model, "name", "") or type(model).__name__)


def unknown_settings(variables: Set[str]) -> Iterator[Line]:
    """Variables that look like settings and are none: nobody reads them."""
    known = [f"ORCHESTRATOR_{name.upper()}" for name in Settings.__dataclass_fields__]
    for variable in sorted(variables):
        if variable.startswith("ORCHESTRATOR_") and variable not in known:
            close = difflib.get_close_matches(variable, known, 1)
            yield warn(
                "settings",
                f"{variable} is set, and there is no such setting.",
                f"Did you mean {close[0]}?" if close else "Take it away.",
            )


# Redis ------------------------------------------------------------------------------------------------------------------


def server(found: Server) -> Iterator[Line]:
    """What it is, whether it keeps what it is given, and its clock."""
    said = f"{found.kind} {found.version}, {found.role}, answers in {found.round_trip_ms:.1f} ms"
    oldest = OLDEST[found.kind]
    if _version(found.version) < oldest:
        yield fail("redis", said, f"Use {found.kind} {'.'.join(map(str, oldest))} or newer.")
    elif found.cluster:
        yield fail("redis", f"{said}, a cluster", "Use a single server: this version does not know clusters.")
    elif found.role not in ("master", ""):
        yield fail("redis", f"{said}: it takes no writes", "Name the primary in ORCHESTRATOR_URL.")
    elif found.round_trip_ms > SLOW_MS:
        yield warn("redis", said, "Every step takes some round trips: put workers near their Redis.")
    else:
        yield ok("redis", said)
    yield _eviction(found)
    yield _memory(found)
    yield _persistence(found)
    apart = seconds(abs(found.apart_ms))
    if abs(found.apart_ms) - found.round_trip_ms / 2 > SKEW_MS:
        where = "ahead of" if found.apart_ms > 0 else "behind"
        yield warn(
            "clock",
            f"The clock of Redis is {apart} {where} this machine's.",
            "Let NTP set both: expiries of tokens and signatures of webhooks go by this machine's.",
        )
    else:
        yield ok("clock", f"{apart} apart from Redis")


def _version(text: str) -> tuple[int, ...]:
    numbers = [part for part in text.split(".")[:2] if part.isdigit()]
    return tuple(map(int, numbers)) if numbers else (9999,)  # unknown: let it pass


def _eviction(found: Server) -> Line:
    policy = found.facts.policy
    if policy.startswith("allkeys"):
        return fail(
            "eviction", f"maxmemory-policy is {policy}: it throws sessions away.", "Set maxmemory-policy noeviction."
        )
    if policy != "noeviction":
        return warn(
            "eviction",
            f"maxmemory-policy is {policy}: it finds none of our keys, and others' may go.",
            "Set maxmemory-policy noeviction.",
        )
    return ok("eviction", policy)


def _memory(found: Server) -> Line:
    used = f"{found.used / 1e6:,.1f} MB used"
    if not found.limit:
        return ok("memory", f"{used}, no maxmemory")
    share = found.used / found.limit
    said = f"{used} of {found.limit / 1e6:,.1f} MB ({share:.0%})"
    if share > NEARLY_FULL:
        return warn(
            "memory", said, "Raise maxmemory, or lower ORCHESTRATOR_RETENTION_DAYS: a full Redis takes no new messages."
        )
    return ok("memory", said)


def _persistence(found: Server) -> Line:
    if found.loading:
        return fail("persistence", "It is still loading its data.", "Wait until it has.")
    if found.aof:
        said = f"append-only, appendfsync {found.facts.appendfsync or 'not known (its user may not ask)'}"
        if not found.aof_ok:
            return fail("persistence", f"{said}, and its last write to disk failed.", "Look at its log and its disk.")
        if found.facts.appendfsync == "no":
            return warn("persistence", said, "Set appendfsync everysec or always.")
        return ok("persistence", said)
    if found.saves is False:
        return warn(
            "persistence", "Nothing is written to disk: a restart of Redis loses every session.", "Set appendonly yes."
        )
    how = "snapshots of its memory only" if found.saves else "no append-only file"
    trouble = "" if found.saved_ok else ", and the last one failed"
    return warn(
        "persistence", f"{how}{trouble}: a crash of Redis loses what came since the last one.", "Set appendonly yes."
    )


def durability(settings: Settings, found: Server) -> Iterator[Line]:
    """The level, what it promises on this server, and whether the server can keep it."""
    level = settings.durability
    try:
        worlds.refuse_unsafe(settings, found.facts)
    except OrchestratorError as refused:
        if not found.facts.policy.startswith("allkeys"):  # which has a line of its own
            yield fail("durability", str(refused))
        return
    said = f"{level}: {PROMISE[level]}"
    if level == "server":
        loss = {"always": "a power loss costs nothing", "everysec": "a power loss costs up to two seconds"}
        said += f"; {loss[found.facts.appendfsync]}" if found.facts.appendfsync in loss else ""
    if level == "replica" and not found.needed_replicas:
        yield warn(
            "durability",
            said,
            "Set min-replicas-to-write as well: WAIT does not say that this replica will be elected.",
        )
    else:
        yield ok("durability", said)


# The world --------------------------------------------------------------------------------------------------------------


def world(found: World) -> Iterator[Line]:
    """Whether this version can work with what is stored."""
    mine = (worlds.PROTOCOL, SHARDS)
    if found.protocol is None:
        yield ok("world", "not used yet: the first process that starts makes it")
    elif found.protocol != mine:
        yield fail(
            "world",
            f"It is of protocol {found.protocol[0]} with {found.protocol[1]} shards, this version needs {mine[0]} with {mine[1]}.",
            "Use another ORCHESTRATOR_PREFIX, or the version that wrote it.",
        )
    else:
        yield ok("world", f"protocol {mine[0]}, {found.sessions} {'session' if found.sessions == 1 else 'sessions'}")


def workers(settings: Settings, found: World, now_ms: int) -> Iterator[Line]:
    """Who lives, by deployment."""
    living = [worker for worker in found.workers if now_ms - worker.beat_ms < BEAT_MS]
    silent = len(found.workers) - len(living)
    by_label = Counter(worker.label for worker in living)
    for label in sorted({settings.deployment, *by_label}):
        count = by_label[label]
        said = f"{label}: {count} {'lives' if count == 1 else 'live'}"
        digests = {worker.digest for worker in living if worker.label == label}
        if not count:
            yield warn("workers", said, "Start one: `orchestrator worker`.")
        elif len(digests) > 1:
            yield warn(
                "workers",
                f"{said}, with {len(digests)} versions of the agents",
                "Restart those of the old code, unless a deploy is under way.",
            )
        else:
            yield ok("workers", said)
    if silent:
        yield warn(
            "workers",
            f"{silent} said nothing for {seconds(BEAT_MS)} and have not said good-bye.",
            "They were killed, or cannot reach Redis; they are forgotten an hour after their last word.",
        )


def queues(found: Sequence[Queue], now_ms: int, *, living: bool) -> Iterator[Line]:
    """How long wakes wait for a worker."""
    for queue in found:
        age_ms = now_ms - queue.oldest_ms if queue.waiting and queue.oldest_ms is not None else None
        said = f"orc.{queue.label}: {queue.waiting} waiting" + (
            f", the oldest for {seconds(age_ms)}" if age_ms is not None else ""
        )
        if age_ms is not None and age_ms > LATE_MS:
            yield warn(
                "queue",
                said,
                "Start more workers, or give them more -c." if living else "Start a worker: `orchestrator worker`.",
            )
        else:
            yield ok("queue", said)


def due(found: World, now_ms: int) -> Line:
    """Sessions that a worker must look at, and whether it does."""
    age_ms = now_ms - found.oldest_due_ms if found.oldest_due_ms is not None else 0
    said = f"{found.planned} to be looked at, {found.due} of them by now" + (
        f", the first {seconds(age_ms)} overdue" if age_ms else ""
    )
    if age_ms > LATE_MS:
        return warn("due", said, "No keeper rings for them: start a worker, or read what the workers log.")
    return ok("due", said)


# Who may call -----------------------------------------------------------------------------------------------------------


def access(found: App | None, settings: Settings) -> Iterator[Line]:
    """Who may call the HTTP interface, and how."""
    try:
        auth.walk(found.auth if found else (), settings)
        keys = parse(settings.api_keys)
    except OrchestratorError as wrong:
        yield fail("access", str(wrong))
        return
    ways = [f"App(auth=[{', '.join(type(one).__name__ for one in found.auth)}])"] if found and found.auth else []
    if keys:
        ways.append("keys: " + ", ".join(f"{key.name} ({'+'.join(sorted(key.scopes))})" for key in keys))
    if settings.jwt_issuer:
        ways.append(f"tokens of {settings.jwt_issuer} for {settings.jwt_audience}")
    match settings.allow_anonymous:
        case "all":
            said = ", ".join([*ways, "everybody, without a key"])
            yield warn(
                "access",
                said,
                "Anybody who reaches the port may use and read every session: set ORCHESTRATOR_API_KEYS instead.",
            )
        case "loopback":
            yield ok("access", ", ".join([*ways, "callers on its own machine, without a key"]))
        case _ if ways:
            yield ok("access", ", ".join(ways))
        case _ if settings.url.startswith(SCHEME):
            yield ok("access", "nobody, but for what `orchestrator dev` starts: it lets callers on this machine in")
        case _:
            yield warn(
                "access",
                "nobody may call the HTTP interface",
                "Make a key: `orchestrator keys new NAME`, and set ORCHESTRATOR_API_KEYS.",
            )
    routes = ["/v1", "/eve/v1"]
    for name, channel in (found.channels_by_name if found else {}).items():
        routes += [f"/v1/channels/{name}"] + ([f"/v1/webhooks/{name}"] if channel.takes_webhooks else [])
    pages = f"; pages of {', '.join(settings.origins)} may call" if settings.origins else ""
    yield ok("routes", f"{', '.join(routes)}{pages}")


def site(url: str, settings: Settings, environ: Mapping[str, str]) -> Line:
    """Whether a web process answers, and whether it is of this deployment."""
    asked, base = bool(url), (url or _here(environ)).rstrip("/")
    if not base:
        return ok("web", "none is asked: BIND is a socket")
    try:
        with urllib.request.urlopen(f"{base}/v1/health", timeout=SITE_SECONDS) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as refused:
        return _strange(asked, f"{base} answers /v1/health with {refused.code}.")
    except (OSError, ValueError) as away:
        if not asked and not isinstance(away, ValueError):
            return ok("web", f"none at {base} (--web URL asks one elsewhere)")
        return _strange(
            asked, f"{base} does not answer as a web process of ours: {plain(getattr(away, 'reason', away))}."
        )
    if not isinstance(told, dict) or "workflowId" not in told:
        return _strange(asked, f"{base} is something else.")
    if told.get("deployment") != settings.deployment:
        return warn(
            "web",
            f"{base} is of the deployment {plain(told.get('deployment'))}, these settings say {settings.deployment}.",
            "Give both the same ORCHESTRATOR_DEPLOYMENT.",
        )
    streams = told.get("streams") or {}
    return ok("web", f"{base} answers, {streams.get('open', '?')} of {streams.get('limit', '?')} readers")


def _strange(asked: bool, said: str) -> Line:
    if asked:
        return fail("web", said, "Start it with `orchestrator web`, or name another one with --web.")
    return warn("web", said, "If yours is elsewhere, name it with --web.")


def _here(environ: Mapping[str, str]) -> str:
    host, port = environ.get("BIND") or "127.0.0.1", environ.get("PORT") or "8000"
    if host.startswith("unix:"):
        return ""
    where = host if ":" in host and not host.endswith("]") else f"{host}:{port}"
    return f"http://{where.replace('0.0.0.0', '127.0.0.1').replace('[::]', '[::1]')}"
