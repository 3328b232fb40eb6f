"""What a level of durability waits for, and what is said when it does not come."""

import threading
from typing import Any, Literal, cast

import pytest
import redis

from orchestrator import Agent, App, ConfigError, Engine, JournalAway, ScriptedModel, Settings, answers, asks, tool
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import DeliveryId
from orchestrator.journal.scripts import Script, Value
from tests.conftest import MakeServer
from tests.servers import wait_for

Durability = Literal["server", "fsync", "replica"]
HELLO = Body((Part("text", "hello"),))
app = App(agents=[Agent("a", model=ScriptedModel([answers("yes")]))])


def commands(client: redis.Redis, name: str) -> int:
    """How often the server ran a command."""
    return int(client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


def test_fsync_waits_for_the_disk_before_a_message_counts_as_accepted(make_server: MakeServer) -> None:
    server = make_server("valkey", appendonly=True, appendfsync="everysec")
    engine = Engine(app, Settings(url=server.url, durability="fsync"))
    session = engine.create(HELLO).session
    before = commands(engine.journal.client, "waitaof")
    engine.deliver(session, HELLO)
    assert commands(engine.journal.client, "waitaof") == before + 1
    while engine.carry_on(session).how == "chained":
        pass
    assert commands(engine.journal.client, "waitaof") >= before + 5


def test_fsync_is_refused_where_the_server_cannot_wait_and_does_not_always_sync(make_server: MakeServer) -> None:
    server = make_server("redis7", appendonly=True, appendfsync="everysec")
    with pytest.raises(ConfigError, match="appendfsync always"):
        Engine(app, Settings(url=server.url, durability="fsync")).create(HELLO)


def test_fsync_is_content_with_a_server_that_always_syncs(make_server: MakeServer) -> None:
    server = make_server("redis7", appendonly=True, appendfsync="always")
    engine = Engine(app, Settings(url=server.url, durability="fsync"))
    session = engine.create(HELLO).session
    assert engine.carry_on(session).how == "parked"


def test_a_replica_that_went_away_is_said_and_the_same_request_counts_once(make_server: MakeServer) -> None:
    first, second = make_server("valkey"), make_server("valkey")
    with pytest.raises(ConfigError, match="no replica"):
        Engine(app, Settings(url=first.url, durability="replica")).create(HELLO)
    follower = redis.Redis.from_url(second.url)
    follower.replicaof("127.0.0.1", str(first.port))
    wait_for(lambda: follower.info("replication")["master_link_status"] == "up", 20)
    engine = Engine(app, Settings(url=first.url, durability="replica"))
    session = engine.create(HELLO).session
    second.pause()
    same = DeliveryId("dlv_" + "0" * 26)
    with pytest.raises(JournalAway, match="replica"):
        engine.deliver(session, HELLO, delivery=same)
    second.resume()
    assert wait_for(lambda: engine.deliver(session, HELLO, delivery=same).again, 20)
    assert engine.view(session).waiting == 2


def settled(engine: Engine) -> int:
    """How often a write was made only so that the ones before it can be waited for."""
    return int(engine.journal.client.hget("orc:world", "settled") or 0)


@pytest.mark.parametrize("level", ["fsync", "replica"])
def test_a_repeated_message_is_accepted_when_it_is_as_safe_as_the_first(make_server: MakeServer, level: str) -> None:
    engine, verb = engine_at(make_server, level)
    made = engine.create(HELLO)
    session, first = made.session, made.delivery
    same = DeliveryId("dlv_" + "0" * 26)
    assert not engine.deliver(session, HELLO, delivery=same).again
    before, writes = commands(engine.journal.client, verb), settled(engine)
    assert engine.deliver(session, HELLO, delivery=same).again
    assert commands(engine.journal.client, verb) == before + 1
    assert settled(engine) == writes + 1, "it waits for a write of its own connection, which is behind the first"
    assert engine.create(HELLO, session=session, delivery=first).session == session
    assert commands(engine.journal.client, verb) == before + 2
    assert settled(engine) == writes + 2
    assert engine.view(session).waiting == 2


@pytest.mark.parametrize("level", ["fsync", "replica"])
def test_a_commit_whose_answer_was_lost_counts_when_it_is_safe(
    make_server: MakeServer, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, verb = engine_at(make_server, level)
    session = engine.create(HELLO).session
    call, lost, answers_after = engine.journal.call, list[tuple[int, int]](), list[bytes]()

    def loses_the_first_answer(script: Script, command: tuple[Value, ...]) -> Any:
        answer = call(script, command)
        if script.name == "commit" and not lost:
            lost.append((commands(engine.journal.client, verb), settled(engine)))
            raise JournalAway(reason="the test lost the answer")
        if script.name == "commit":
            answers_after.append(answer[0])
        return answer

    monkeypatch.setattr(engine.journal, "call", loses_the_first_answer)
    while engine.carry_on(session).how == "chained":
        pass
    ((before, writes),) = lost
    assert answers_after[0] == b"landed"
    assert settled(engine) == writes + 1, "a write on the connection that waits"
    assert commands(engine.journal.client, verb) > before


def test_a_server_that_never_syncs_cannot_have_fsync_and_keeps_no_call_waiting(make_server: MakeServer) -> None:
    server = make_server("valkey", appendonly=True, appendfsync="no")
    with pytest.raises(ConfigError, match="fsync"):
        Engine(app, Settings(url=server.url, durability="fsync")).create(HELLO)

    paid: list[int] = []

    @tool(on_interrupt="report")
    def pay(cents: int) -> str:
        """Pay, once."""
        paid.append(cents)
        return "paid"

    agent = Agent("a", model=ScriptedModel([asks("pay", cents=5), answers("yes")]), tools=[pay])
    engine = Engine(App(agents=[agent]), Settings(url=server.url))
    session = engine.create(HELLO).session
    hows: list[str] = []

    def carry_on() -> None:
        while not hows or hows[-1] == "chained":
            hows.append(engine.carry_on(session).how)

    thread = threading.Thread(target=carry_on, daemon=True)
    thread.start()
    thread.join(10)
    done = not thread.is_alive()
    engine.process.grace_over.set()  # or it would ask for ever
    assert done, "the start of the call was waited for, and the disk never comes"
    assert (hows[-1], paid) == ("parked", [5])


def engine_at(make_server: MakeServer, level: str) -> tuple[Engine, str]:
    """An engine of this level, and the command it waits with."""
    if level == "fsync":
        server = make_server("valkey", appendonly=True, appendfsync="everysec")
    else:
        server, second = make_server("valkey"), make_server("valkey")
        follower = redis.Redis.from_url(second.url)
        follower.replicaof("127.0.0.1", str(server.port))
        wait_for(lambda: follower.info("replication")["master_link_status"] == "up", 20)
    return Engine(
        app, Settings(url=server.url, durability=cast(Durability, level))
    ), "waitaof" if level == "fsync" else "wait"
