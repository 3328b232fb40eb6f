"""What a session says is posted back: at least once, in order, under a key that never changes."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator import Channel
from orchestrator.channels import Event, ReplyTo, outbox
from orchestrator.channels.outbox import post_outbox
from orchestrator.core.names import SessionId
from orchestrator.parts import body_of
from tests.channels.conftest import MakeSite, Site, at_once
from tests.servers import wait_for

ROOT = Path(__file__).parents[2]


class Out(Channel):
    """Writes down what it is told. `before` is asked first and may raise."""

    def __init__(self, name: str = "out") -> None:
        super().__init__(name)
        self.posted: list[tuple[str, str, str]] = []
        """Address, text, key."""
        self.attempts: list[int] = []
        self.before: Callable[[Event, ReplyTo], object] = lambda event, to: None
        self.on("message.received")(self.answer)

    def answer(self, event: Event, to: ReplyTo) -> None:
        self.attempts.append(to.attempt)
        self.before(event, to)
        self.posted.append((to.address, event.data["message"], to.key))

    @property
    def texts(self) -> list[str]:
        return [text for _, text, _ in self.posted]

    @property
    def keys(self) -> list[str]:
        return [key for _, _, key in self.posted]


@pytest.fixture
def out() -> Out:
    return Out()


@pytest.fixture
def site(make_site: MakeSite, out: Out) -> Site:
    return make_site(out)


def say(site: Site, *texts: str, address: str = "a") -> SessionId:
    """Messages, each with a turn of its own, and what comes of them."""
    session = SessionId("")
    for text in texts:
        session = site.channel("out").from_(address).send(text).session
        site.run(session)
    return session


def skip(site: Site, session: SessionId, ms: int = 400_000) -> None:
    """So much time passes for what an outbox waits for."""
    client, own = site.engine.journal.client, site.engine.journal.keys(session).own
    for name in ("out_until", "out_at"):
        if (at := cast("bytes | None", client.hget(own, name))) is not None:
            client.hset(own, name, str(int(at) - ms))


def post(site: Site, session: SessionId) -> int:
    """Look into the outbox when what it waited for has come."""
    skip(site, session)
    return post_outbox(site.engine.process, session)


def waiting(site: Site, session: SessionId) -> int:
    """Entries in the outbox."""
    return site.engine.journal.client.llen(site.engine.journal.keys(session).out)


def refuse(*texts: str) -> Callable[[Event, ReplyTo], None]:
    """Raise for these messages (for all of them if none is named)."""

    def before(event: Event, to: ReplyTo) -> None:
        if not texts or event.data["message"] in texts:
            raise ConnectionError("the help desk does not answer")

    return before


# Where it goes ------------------------------------------------------------------------------------------------------------


def test_an_event_is_posted_to_the_address_of_its_session(site: Site, out: Out) -> None:
    one, two = say(site, "Hi", address="a"), say(site, "Hello", address="b")
    assert [(address, text) for address, text, _ in out.posted] == [("a", "Hi"), ("b", "Hello")]
    ids = [next(e["meta"]["id"] for e in site.events(s) if e["type"] == "message.received") for s in (one, two)]
    assert out.keys == [f"{one}/{ids[0]}/answer", f"{two}/{ids[1]}/answer"]
    assert waiting(site, one) == waiting(site, two) == 0


def test_a_session_that_came_another_way_posts_nothing(site: Site, out: Out) -> None:
    made = site.engine.create(body_of("Hi"))
    site.run(made.session)
    site.run(site.channel("other").from_("a").send("Hi").session)
    assert out.posted == []


def test_a_session_that_takes_an_address_posts_there_from_then_on(site: Site, out: Out) -> None:
    made = site.engine.create(body_of("Before"))
    site.run(made.session)
    site.channel("out").attach(made.session).alias("a")
    site.engine.deliver(made.session, body_of("After"))
    site.run(made.session)
    assert [(address, text) for address, text, _ in out.posted] == [("a", "After")]


def test_an_event_goes_to_every_address_of_the_channel_under_keys_of_their_own(site: Site, out: Out) -> None:
    session = say(site, "First")
    site.channel("out").attach(session).alias("b")
    site.channel("elsewhere").attach(session).alias("c")
    say(site, "Second")
    assert sorted((address, text) for address, text, _ in out.posted[1:]) == [("a", "Second"), ("b", "Second")]
    assert len(set(out.keys)) == 3
    site.channel("out").attach(session).drop("b")
    say(site, "Third")
    assert [address for address, _, _ in out.posted[3:]] == ["a"]


def test_handlers_may_be_async_and_each_has_its_own_posts(make_site: MakeSite) -> None:
    channel, told = Channel("out"), list[tuple[str, str]]()

    @channel.on("turn.completed")
    async def later(event: Event, to: ReplyTo) -> None:
        await asyncio.sleep(0)
        told.append((threading.current_thread().name.split("-")[1], to.key.rpartition("/")[2]))

    @channel.on("turn.completed")
    def too(event: Event, to: ReplyTo) -> None:
        told.append((threading.current_thread().name.split("-")[1], to.key.rpartition("/")[2]))

    site = make_site(channel)
    say(site, "Hi")
    assert [name for _, name in told] == ["later", "too"]
    assert told[0][0] == "loop"


def test_the_end_of_a_session_is_posted_too(make_site: MakeSite) -> None:
    channel, told = Channel("out"), list[str]()

    @channel.on("*")
    def hear(event: Event, to: ReplyTo) -> None:
        told.append(event.type)

    site = make_site(channel)
    session = say(site, "Hi")
    site.channel("out").from_("a").reset()
    site.run(session)
    assert told == [event["type"] for event in site.events(session) if not event["type"].endswith(".appended")]
    assert told[-1] == "session.completed"


# When it breaks -----------------------------------------------------------------------------------------------------------


def test_a_handler_that_raises_is_tried_again_under_the_same_key(site: Site, out: Out) -> None:
    keys: list[str] = []

    def before(event: Event, to: ReplyTo) -> None:
        keys.append(to.key)
        if len(keys) < 3:
            raise ConnectionError

    out.before = before
    session = say(site, "Hi")
    assert (out.posted, waiting(site, session)) == ([], 1)
    assert post(site, session) == 0
    assert post(site, session) == 1
    assert out.attempts == [1, 2, 3]
    assert out.texts == ["Hi"]
    assert len(set(keys)) == 1
    assert waiting(site, session) == 0


def test_the_next_try_is_not_before_its_time_whatever_comes_in(site: Site, out: Out) -> None:
    out.before = refuse("One")
    session = say(site, "One", "Two", "Three")
    assert out.attempts == [1]
    assert waiting(site, session) == 3


def test_what_comes_after_a_failure_waits_behind_it(site: Site, out: Out) -> None:
    out.before = refuse("One")
    session = say(site, "One", "Two")
    post(site, session)
    assert out.posted == []
    out.before = refuse("nothing")
    post(site, session)
    assert out.texts == ["One", "Two"]


def test_a_handler_that_goes_on_raising_is_given_up_and_the_next_one_comes(
    site: Site, out: Out, caplog: pytest.LogCaptureFixture
) -> None:
    out.before = refuse("One")
    session = say(site, "One", "Two")
    with caplog.at_level(logging.ERROR, outbox.__name__):
        for _ in range(out.tries):
            post(site, session)
    assert out.attempts == [*range(1, out.tries + 1), 1]
    assert out.texts == ["Two"]
    assert waiting(site, session) == 0
    assert len([record for record in caplog.records if "given up after 10 tries" in record.message]) == 1


def test_waits_between_tries_grow(site: Site, out: Out, caplog: pytest.LogCaptureFixture) -> None:
    out.before = refuse()
    with caplog.at_level(logging.WARNING, outbox.__name__):
        session = say(site, "Hi")
        for _ in range(9):
            post(site, session)
    said = [record.message for record in caplog.records]
    assert [f"in {pause} s" in text for pause, text in zip((1, 2, 4, 8, 16, 32, 64, 128, 256), said, strict=False)] == [
        True
    ] * 9


def test_a_handler_that_hangs_has_failed_and_holds_nobody_up(site: Site, out: Out) -> None:
    the_end = threading.Event()
    out.timeout_seconds = 0.05
    out.before = lambda event, to: the_end.wait(20)
    begun = time.monotonic()
    session = say(site, "Hi")
    assert time.monotonic() - begun < 5
    assert waiting(site, session) == 1
    the_end.set()


def test_an_async_handler_that_hangs_is_cancelled(make_site: MakeSite) -> None:
    channel, cancelled = Channel("out"), threading.Event()
    channel.timeout_seconds = 0.05

    @channel.on("turn.completed")
    async def hang(event: Event, to: ReplyTo) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    site = make_site(channel)
    session = say(site, "Hi")
    assert cancelled.wait(5)
    assert waiting(site, session) == 1


def test_a_post_for_a_handler_of_another_version_is_left_to_that(site: Site, out: Out, make_site: MakeSite) -> None:
    out.before = refuse()
    session = say(site, "Hi")
    out.before = refuse("nothing")
    redeployed = make_site(Channel("out"))
    assert post(redeployed, session) == 0
    assert post(site, session) == 1
    assert out.texts == ["Hi"]


def test_a_post_for_a_handler_that_is_gone_is_given_up(site: Site, out: Out, make_site: MakeSite) -> None:
    out.before = refuse()
    session = say(site, "Hi")
    redeployed = make_site(Channel("out"))
    assert sum(post(redeployed, session) for _ in range(outbox.ELSEWHERE_TRIES)) == 1
    assert waiting(site, session) == 0


def test_an_entry_that_nobody_can_read_is_given_up_and_holds_nobody_up_for_ever(site: Site, out: Out) -> None:
    out.before = refuse()
    session = say(site, "Hi")
    client, keys = site.engine.journal.client, site.engine.journal.keys(session)
    client.lset(keys.out, 0, '[99,"of a later version"]')
    client.rpush(keys.out, b'[1,"out","answer","a","","no event"]')
    for _ in range(2 * outbox.ELSEWHERE_TRIES):
        post(site, session)
    assert waiting(site, session) == 0


# When a process dies ------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process was killed here."""


def test_a_process_that_dies_after_the_post_lets_it_be_posted_again_under_the_same_key(
    site: Site, out: Out, make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Died

    session = site.channel("out").from_("a").send("Hi").session
    monkeypatch.setattr(site.engine.journal, "settle_out", die)
    with pytest.raises(Died):
        site.run(session)
    assert out.texts == ["Hi"]
    another = make_site(out)
    assert post_outbox(another.engine.process, session) == 0, "it is still the dead one's"
    assert post(another, session) == 1
    assert out.texts == ["Hi", "Hi"]
    assert out.keys[0] == out.keys[1]
    assert out.attempts == [1, 2]


def test_a_worker_that_is_killed_after_the_post_has_a_successor_that_posts_the_same(
    url: str, site: Site, tmp_path: Path, out: Out
) -> None:
    session = site.channel("out").from_("a").send("Hi").session
    log = tmp_path / "posted"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.channels.dying", url, session, str(log)], cwd=ROOT, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    assert waiting(site, session) >= 1
    post(site, session)
    site.run(session)
    assert log.read_text().splitlines() == out.keys[:1]


def test_a_handler_that_brings_its_process_down_is_given_up_too(
    site: Site, out: Out, make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.before = refuse()
    session = say(site, "Hi")

    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "_run", die)
        for _ in range(out.tries - 2):
            with pytest.raises(Died):
                post(site, session)
    assert waiting(site, session) == 1
    assert post(site, session) == 1
    assert out.posted == []


def test_two_posters_at_once_keep_the_order_and_post_nothing_twice(site: Site, out: Out, make_site: MakeSite) -> None:
    out.before = refuse()
    session = say(site, *[f"Message {place}" for place in range(20)])
    skip(site, session)
    out.before = lambda event, to: time.sleep(0.002)
    twin = make_site(out)

    def all_of_it(one: Site) -> None:
        while waiting(one, session):
            post_outbox(one.engine.process, session)

    at_once(lambda: all_of_it(site), lambda: all_of_it(twin))
    assert out.texts == [f"Message {place}" for place in range(20)]


def test_what_a_commit_left_is_posted_by_whoever_comes_next(site: Site, out: Out, make_site: MakeSite) -> None:
    out.before = refuse()
    session = say(site, "Hi")
    out.before = refuse("nothing")
    client, keys = site.engine.journal.client, site.engine.journal.keys(session)
    assert client.zscore(keys.due, session) is not None, "a keeper will ring for it"
    skip(site, session)
    another = make_site(out)
    another.run(session)
    assert out.texts == ["Hi"]


def test_an_ended_session_still_posts(site: Site, out: Out, make_site: MakeSite) -> None:
    out.before = refuse()
    session = say(site, "Hi")
    site.channel("out").from_("a").reset()
    site.run(session)
    assert site.engine.view(session).status == "ended"
    assert waiting(site, session) == 1
    client, keys = site.engine.journal.client, site.engine.journal.keys(session)
    assert client.zscore(keys.due, session) is not None, "a keeper will ring for it"
    out.before = refuse("nothing")
    skip(site, session)
    another = make_site(out)
    another.run(session)
    assert out.texts == ["Hi"]


def test_a_process_that_leaves_begins_no_post(site: Site, out: Out) -> None:
    out.before = refuse()
    session = say(site, "Hi")
    attempts = len(out.attempts)
    site.engine.process.draining.set()
    assert post(site, session) == 0
    assert len(out.attempts) == attempts


def test_a_post_leaves_the_hash_of_the_session_small(site: Site, out: Out) -> None:
    out.before = refuse("Two")
    session = say(site, "One", "Two")
    client, keys = site.engine.journal.client, site.engine.journal.keys(session)
    assert client.object("ENCODING", keys.own) == b"listpack"
    post(site, session)
    wait_for(lambda: waiting(site, session) == 1)
    assert client.object("ENCODING", keys.own) == b"listpack"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_wants_to_end_the_process_has_failed(make_site: MakeSite, kind: str) -> None:
    channel = Channel("out")

    def leave(event: Event, to: ReplyTo) -> None:
        raise SystemExit

    async def leave_later(event: Event, to: ReplyTo) -> None:
        raise SystemExit

    channel.on("turn.completed")(leave if kind == "sync" else leave_later)
    site = make_site(channel)
    session = say(site, "Hi")
    assert waiting(site, session) == 1
    assert say(site, "And now?") == session
