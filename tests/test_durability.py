"""What a level of durability waits for, and what is said when it does not come."""

import pytest
import redis

from orchestrator import Agent, App, ConfigError, Engine, JournalAway, ScriptedModel, Settings, answers
from orchestrator.core.delivery import Body, Part
from tests.conftest import MakeServer

HELLO = Body((Part("text", "hello"),))
app = App(agents=[Agent("a", model=ScriptedModel([answers("yes")]))])


def commands(client: redis.Redis, name: str) -> int:
    """How often the server ran a command."""
    return int(client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


def test_fsync_waits_for_the_disk_before_a_message_counts_as_accepted(make_server: MakeServer) -> None:
    server = make_server("valkey", appendonly=True, appendfsync="everysec")
    engine = Engine(app, Settings(url=server.url, durability="fsync"))
    session, _ = engine.create(HELLO)
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
    session, _ = engine.create(HELLO)
    assert engine.carry_on(session).how == "parked"


def test_a_replica_that_went_away_is_said_and_the_same_request_counts_once(make_server: MakeServer) -> None:
    first, second = make_server("valkey"), make_server("valkey")
    with pytest.raises(ConfigError, match="no replica"):
        Engine(app, Settings(url=first.url, durability="replica")).create(HELLO)
    follower = redis.Redis.from_url(second.url)
    follower.replicaof("127.0.0.1", str(first.port))
    from tests.servers import wait_for

    wait_for(lambda: follower.info("replication")["master_link_status"] == "up", 20)
    engine = Engine(app, Settings(url=first.url, durability="replica"))
    session, _ = engine.create(HELLO)
    second.pause()
    from orchestrator.core.names import DeliveryId

    same = DeliveryId("dlv_" + "0" * 26)
    with pytest.raises(JournalAway, match="replica"):
        engine.deliver(session, HELLO, delivery=same)
    second.resume()
    assert wait_for(lambda: engine.deliver(session, HELLO, delivery=same).again, 20)
    assert engine.view(session).waiting == 2
