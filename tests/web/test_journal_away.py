"""Redis hangs, dies, comes back. Whoever asks meanwhile is told so in time, and nobody is told that it worked."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import web
from orchestrator.engine import Engine
from orchestrator.errors import JournalAway
from orchestrator.journal import Journal
from tests.conftest import MakeServer
from tests.servers import Server, wait_for
from tests.web.support import Hand, Web, engine_on, http_of

NOBODY = "ses_" + "0" * 28


@pytest.fixture
def own(make_server: MakeServer) -> Server:
    """A Valkey that this test may hurt."""
    return make_server("valkey", appendonly=True, appendfsync="always")


@pytest.fixture
def site(own: Server) -> Iterator[Web]:
    with Web(own.url, TEST_PACE="heartbeat_seconds=1,look_seconds=0.3") as site:
        yield site


Answer = tuple[int, dict[str, Any], dict[str, str]]


def at_once(*asks: Any) -> tuple[list[Answer], float]:
    """All answers, and how long the slowest took."""
    answers: list[Answer] = []
    begun = time.monotonic()
    threads = [threading.Thread(target=lambda ask=ask: answers.append(ask())) for ask in asks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, time.monotonic() - begun


def test_while_redis_hangs_every_route_but_health_is_503_within_six_seconds(site: Web, own: Server) -> None:
    """With open connections, and at the first use of a process, when many wait for the one that opens the journal."""
    session = site.post("/eve/v1/session", {"message": "a"})[1]["sessionId"]
    fresh = web.create_app(engine=engine_on(own.url))

    def first_use() -> Answer:
        answer = http_of(fresh).post("/eve/v1/session", json={"message": "b"})
        return answer.status_code, answer.json, {name.lower(): value for name, value in answer.headers}

    own.pause()
    try:
        asks = [
            lambda: site.post("/eve/v1/session", {"message": "b"}),
            lambda: site.post("/eve/v1/session"),
            lambda: site.post(f"/eve/v1/session/{session}", {"message": "b"}),
            lambda: site.post(f"/eve/v1/session/{session}/cancel"),
            lambda: site.post("/v1/session", {"message": "b"}),
            lambda: site.get(f"/eve/v1/session/{session}/stream"),
            lambda: site.get("/v1/health"),
            lambda: site.get("/v1/sessions"),
            first_use,
        ]
        answers, slowest = at_once(*asks * 4)
        assert {status for status, _, _ in answers} == {503}
        assert all(headers["retry-after"] for _, _, headers in answers)
        assert slowest < 6.0
        begun = time.monotonic()
        assert site.get("/eve/v1/health")[0] == 200
        assert time.monotonic() - begun < 0.5
    finally:
        own.resume()
    assert site.post("/eve/v1/session", {"message": "after"})[0] == 202
    assert first_use()[0] == 202


def slow(method: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slowly(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return method(*args, **kwargs)

    return slowly


def test_an_answer_that_comes_slowly_many_times_is_cut_too(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round trip may take nearly as long as a socket may be silent: together they must not."""
    engine = engine_on(own.url)
    http = http_of(web.create_app(engine=engine))
    assert http.post("/eve/v1/session").status_code == 202
    monkeypatch.setattr("web.front.ANSWER_SECONDS", 0.8)
    for owner, name, seconds in ((Engine, "living_label", 0.5), (Journal, "create", 0.6)):
        monkeypatch.setattr(owner, name, slow(getattr(owner, name), seconds))
    begun = time.monotonic()
    assert http.post("/eve/v1/session", json={"message": "a"}).status_code == 503
    assert time.monotonic() - begun < 1.0


def test_without_redis_posts_are_503_at_once_and_work_again_when_it_is_back(site: Web, own: Server) -> None:
    session = site.post("/eve/v1/session")[1]["sessionId"]
    own.kill()
    begun = time.monotonic()
    for _ in range(3):
        assert site.post("/eve/v1/session", {"message": "a"})[0] == 503
        assert site.post(f"/eve/v1/session/{session}", {"message": "a"})[0] == 503
        assert site.post(f"/eve/v1/session/{session}/cancel")[0] == 503
    assert time.monotonic() - begun < 4
    own.start()
    assert site.post(f"/eve/v1/session/{session}", {"message": "a"})[0] == 202


def test_a_web_process_starts_without_redis_and_works_when_it_comes(own: Server) -> None:
    own.kill()
    with Web(own.url) as site:
        assert site.post("/eve/v1/session")[0] == 503
        own.start()
        assert site.post("/eve/v1/session")[0] == 202


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_write_that_ended_unclearly_is_repeated_under_the_same_ids(
    own: Server, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    engine = engine_on(own.url)
    http = http_of(web.create_app(engine=engine))
    session = http.post("/eve/v1/session").json["sessionId"]
    call, tries = Journal.call, dict[str, int]()

    def breaks_once(self: Journal, verb: Any, command: Any) -> Any:
        tries[verb.name] = tries.get(verb.name, 0) + 1
        if tries[verb.name] == 1 and lost == "request":
            raise JournalAway(reason="lost")
        answer = call(self, verb, command)
        if tries[verb.name] == 1:
            raise JournalAway(reason="lost")
        return answer

    monkeypatch.setattr(Journal, "call", breaks_once)
    assert http.post(f"/eve/v1/session/{session}", json={"message": "a"}).status_code == 202
    assert http.post("/eve/v1/session", json={"message": "a"}).status_code == 202
    assert tries == {"deliver": 2, "create": 2}
    assert engine.view(session).waiting == 1
    assert len(engine.sessions()) == 2


def test_a_stream_lives_through_a_restart_of_redis_without_gap_or_repeat(site: Web, own: Server) -> None:
    hand = Hand(engine_on(own.url))
    hand.said(3)
    with site.follow(hand.session) as reader:
        reader.until(range(3))
        own.kill()
        before = reader.beats
        wait_for(lambda: reader.beats >= before + 2, 5)  # it is kept alive meanwhile
        own.start()
        hand = Hand.again(hand, engine_on(own.url))
        hand.said(3)
        reader.until(range(6))
        assert not reader.ended


def test_a_stream_lives_through_a_redis_that_hangs_and_is_never_silent_for_long(own: Server) -> None:
    hand = Hand(engine_on(own.url))
    hand.said(1)
    with Web(own.url, TEST_PACE="heartbeat_seconds=1") as site, site.follow(hand.session) as reader:
        reader.until([0])
        own.pause()
        try:
            before = reader.beats
            begun = time.monotonic()
            wait_for(lambda: reader.beats > before and time.monotonic() - begun > 4, 14)
        finally:
            own.resume()
        hand.said(2)
        reader.until([0, 1, 2])
        gaps = [later - earlier for earlier, later in zip(reader.arrived, reader.arrived[1:], strict=False)]
        assert max(gaps) < 1 + 5.5  # a heartbeat, and one look that hangs
