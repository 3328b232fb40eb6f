"""Which Redis a process works with: opening the journal, and refusing what would lose data or mix up versions."""

from __future__ import annotations

from urllib.parse import urlsplit

from orchestrator import local
from orchestrator.config import Settings
from orchestrator.errors import ConfigError, WorldMismatch
from orchestrator.ids import SHARDS
from orchestrator.journal import Journal, connect
from orchestrator.journal.server import Facts, ask, same_server, state_world
from orchestrator.ports import Wake
from orchestrator.wake import AtomicWake

PROTOCOL = 1


def journal_url(settings: Settings) -> str:
    """The journal's URL; a local world is started if it does not run."""
    return local.resolve(settings.url)


def broker_url(settings: Settings) -> str:
    """The broker's URL: the journal's server unless another is named."""
    url = local.resolve(settings.broker_url) if settings.broker_url else journal_url(settings)
    return url.replace("valkey://", "redis://", 1).replace("valkeys://", "rediss://", 1)


def database(url: str) -> int:
    """The database number of a Redis URL."""
    path = urlsplit(url).path.strip("/")
    return int(path) if path.isdigit() else 0


def announces_itself(settings: Settings) -> bool:
    """Whether scripts can push wakes: broker and journal are one server."""
    if not settings.broker_url:
        return True
    journal, broker = journal_url(settings), broker_url(settings)
    return same_server(journal, broker)


def atomic_wake(settings: Settings) -> AtomicWake:
    """The wake for a broker on the journal's own server."""
    return AtomicWake(
        prefix=settings.prefix, broker_db=database(broker_url(settings)), journal_db=database(journal_url(settings))
    )


def open_journal(settings: Settings, wake: Wake | None = None) -> Journal:
    """The journal of these settings, checked. Raises `ConfigError`, `WorldMismatch`, `JournalAway`."""
    client = connect(journal_url(settings))
    if wake is None:
        if not announces_itself(settings):
            raise ConfigError(
                problem="ORCHESTRATOR_BROKER_URL names another server than ORCHESTRATOR_URL, and this process cannot publish to it.",
                remedy="Use tasks.engine(), which can.",
            )
        wake = atomic_wake(settings)
    facts = ask(client)
    refuse_unsafe(settings, facts)
    found = state_world(client, settings.prefix, PROTOCOL, SHARDS)
    if found != (PROTOCOL, SHARDS):
        raise WorldMismatch(
            found=f"protocol {found[0]}, {found[1]} shards", needed=f"protocol {PROTOCOL}, {SHARDS} shards"
        )
    return Journal(
        client,
        wake,
        prefix=settings.prefix,
        lease_ms=settings.lease_ms,
        waiting_limit=settings.waiting_limit,
        durability=settings.durability,
        waits_for_disk=facts.waits_for_disk,
        retention_ms=int(settings.retention_days * 24 * 3600 * 1000),
    )


def refuse_unsafe(settings: Settings, facts: Facts) -> None:
    """Refuse a server that would lose sessions, or that cannot keep what the settings promise. Raises `ConfigError`."""
    if facts.policy.startswith("allkeys"):
        raise ConfigError(
            problem=f"The journal's maxmemory-policy is {facts.policy}: it would throw sessions away.",
            remedy="Set it to noeviction.",
        )
    if settings.durability == "fsync" and facts.appendfsync != "always" and not facts.waits_for_disk:
        raise ConfigError(
            problem="ORCHESTRATOR_DURABILITY=fsync, but the server neither has appendfsync always nor knows WAITAOF.",
            remedy="Set appendfsync always, or use Valkey or Redis 7.2 and later with AOF on.",
        )
    if settings.durability == "replica" and facts.replicas < 1:
        raise ConfigError(
            problem="ORCHESTRATOR_DURABILITY=replica, but the journal has no replica.",
            remedy="Attach one, or use server.",
        )
