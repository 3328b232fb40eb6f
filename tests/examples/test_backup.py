"""What docs/operations.md says of backups: the steps restore one, and every session is as it was then."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from orchestrator import Agent, App, Engine, ScriptedModel, Settings, ToolContext, answers, asks, tool
from orchestrator.core.names import SessionId
from tests.servers import Server, wait_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SECTION = PAGE.partition("## Backups")[2].partition("\n## ")[0]
KEYS: list[tuple[str, str]] = []


@tool
def note(ctx: ToolContext, what: str) -> str:
    """Note something."""
    KEYS.append((ctx.idempotency_key, what))
    return "noted"


MODEL = ScriptedModel(lambda talk: answers("Noted.") if talk.results else asks("note", what=talk.message))
APP = App([Agent("clerk", model=MODEL, tools=[note])])


def say(engine: Engine, session: SessionId, text: str) -> list[str]:
    """A message, carried on to the end of its turn; all that people have said so far, as the stream has it."""
    engine.deliver(session, text)
    while engine.carry_on(session).how != "parked":
        pass
    events = [json.loads(line) for line in engine.reads.events(session, 0, 1000)]
    return [event["data"]["message"] for event in events if event["type"] == "message.received"]


@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_a_restored_backup_takes_every_session_back_and_it_goes_on_from_there(
    make_server: Callable[..., Server], kind: str, tmp_path: Path
) -> None:
    KEYS.clear()
    server = make_server(kind, appendonly=True)
    engine = Engine(APP, Settings(url=server.url))
    session = engine.create().session
    say(engine, session, "one")
    with redis.Redis.from_url(server.url) as client:
        client.save()
    shutil.copy(server.dir / "dump.rdb", tmp_path / "backup.rdb")
    assert say(engine, session, "two") == ["one", "two"]
    engine.close()
    server.stop()

    shutil.move(server.dir / "appendonlydir", tmp_path / "moved-away")
    shutil.copy(tmp_path / "backup.rdb", server.dir / "dump.rdb")
    once = re.findall(r"^redis-server (.*)$", SECTION, re.MULTILINE)[0].split()
    assert once[once.index("--appendonly") + 1] == "no"
    server.start(appendonly=False)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("appendonly", "yes")
        wait_for(lambda: not any(client.info("persistence")[name] for name in rewriting()), 20, what="the rewrite")
    server.stop()
    server.start(appendonly=True)

    engine = Engine(APP, Settings(url=server.url))
    assert say(engine, session, "three") == ["one", "three"]
    # What the page warns of: a key of the lost turn comes again, for another call.
    (_, two), (_, three) = (pair for pair in KEYS if "/turn_1/" in pair[0])
    assert (two, three) == ("two", "three")
    assert len({key for key, _ in KEYS}) == 2
    engine.close()


def rewriting() -> list[str]:
    named = re.findall(r"`(aof_rewrite_\w+)`", SECTION)
    assert len(named) == 2
    return named
