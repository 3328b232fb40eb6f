"""Both clients and the whole product: Valkey, workers, gunicorn. What is sent comes in once, and what is read is what is stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx2
import pytest

from orchestrator.client import (
    Answer,
    AsyncClient,
    BadRequest,
    Client,
    Forbidden,
    NoAnswer,
    Outcome,
    RequestUnknown,
    ServerAway,
    SessionNotActive,
    SessionNotFound,
    TookTooLong,
    events,
)
from orchestrator.core.names import SessionId
from tests.acceptance.sites import Site, with_gunicorn
from tests.client.both import QUICK, AsyncCutting, Both, Cuts, Cutting, Losing
from tests.servers import free_port, wait_for
from tests.web.support import Web

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(120)]
WAIT = 30.0
NOBODY = "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV00"
numbers = count()
Told = list[tuple[int, str]]


def saying(text: str) -> str:
    """A message like no other: the provider of these tests tells them apart."""
    return f"{text} #{next(numbers)}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with with_gunicorn(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def both(request: pytest.FixtureRequest, site: Site) -> Both:
    return Both(request.param, site.url, auth=site.key)


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(site.url, auth=site.key) as made:
        yield made


def app_of(site: Site) -> dict[str, str]:
    """What another web process of the same site needs to know."""
    return {"ORCHESTRATOR_APP": site.system.environment["ORCHESTRATOR_APP"]}


def stored(site: Site, session: str) -> Told:
    return [(index, event["meta"]["id"]) for index, event in enumerate(site.system.events(SessionId(session)))]


def received(site: Site, session: str) -> list[str]:
    told = site.system.events(SessionId(session))
    return [event["data"]["message"] for event in told if event["type"] == "message.received"]


def holders(site: Site, message: str) -> list[str]:
    """The sessions that have received a message."""
    return [name for name, _ in site.system.engine.sessions(100) if message in received(site, name)]


# Turns ------------------------------------------------------------------------------------------------------------------


def test_a_session_is_started_followed_and_talked_to(both: Both, site: Site) -> None:
    def story(client: Client) -> tuple[list[events.Event], Outcome, str]:
        turn = client.start(saying("steps=2 tool=work"))
        return list(turn.events(WAIT)), turn.result(), turn.session.send(saying("thanks")).text(WAIT)

    async def story_async(client: AsyncClient) -> tuple[list[events.Event], Outcome, str]:
        turn = await client.start(saying("steps=2 tool=work"))
        told = [event async for event in turn.events(WAIT)]
        return told, await turn.result(), await (await turn.session.send(saying("thanks"))).text(WAIT)

    told, outcome, thanks = both.say(story if both.kind == "sync" else story_async)
    assert outcome.state == "completed"
    assert outcome.text.startswith("done after 2 steps")
    assert thanks.startswith("done after 1 steps: thanks")
    assert [(event.index, event.id) for event in told] == stored(site, outcome.session_id)[: len(told)]
    assert outcome.usage.output_tokens > 0
    # What the server writes today has a class of its own today.
    assert all(type(event) is not events.Event for event in told)


def test_a_caller_without_a_name_may_start_a_session_too(site: Site) -> None:
    with Web(site.system.server.url, target="web:create_app()", **app_of(site)) as web:
        for auth in (None, "a key that nobody looks at"):
            with Client(f"http://127.0.0.1:{web.port}", auth=auth) as client:
                assert client.start(saying("hello")).text(WAIT).startswith("done after 1 steps")


def test_parts_context_and_schema_go_with_a_message(client: Client) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": saying("two")}]
    turn = client.start(parts, context={"page": 7}, may_ask=False, agent="load")
    turn.text(WAIT)
    [message] = [one for one in turn.session.events(follow=False) if isinstance(one, events.MessageReceived)]
    assert len(message.parts) == 2
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    outcome = client.start(saying("hello"), output=schema).result(WAIT)
    # The provider of these tests knows nothing of schemas.
    assert outcome.error is not None
    assert outcome.error.code == "OUTPUT_SCHEMA_NOT_FULFILLED"


def test_queued_and_steering_messages_each_find_their_turn(client: Client) -> None:
    running = client.start(saying('steps=2 tool=linger args={"seconds":1}'))
    assert any(isinstance(event, events.ActionsRequested) for event in running.events(WAIT))
    running = client.start(saying('steps=2 tool=linger args={"seconds":1}'))
    told = running.events(WAIT)
    while not isinstance(next(told), events.ActionsRequested):
        pass
    steers = running.session.send(saying("steps=1 joins"), policy="steer")
    queued = running.session.send(saying("waits"), policy="queue")
    assert steers.result(WAIT).turn_id == running.result(WAIT).turn_id == "turn_0"
    assert "joins" in steers.text()
    assert queued.result(WAIT).turn_id == "turn_1"
    assert "waits" in queued.text()


def test_a_turn_can_be_found_again_by_the_id_of_its_message(client: Client, site: Site) -> None:
    turn = client.start(saying("hello"))
    again = turn.session.send(saying("the second"))
    text = again.text(WAIT)
    with Client(site.url, auth=site.key) as other:
        assert again.delivery_id is not None
        assert other.session(turn.session.id).turn(again.delivery_id).text(WAIT) == text


def test_a_turn_is_cancelled_and_no_other(client: Client) -> None:
    running = client.start(saying("tokens=400 token_seconds=0.05"))
    queued = running.session.send(saying("waits"), policy="queue")
    assert running.cancel(WAIT) == "cancelling"
    outcome = running.result(WAIT)
    assert outcome.state == "cancelled"
    with pytest.raises(NoAnswer, match="cancelled"):
        outcome.answer()
    assert "waits" in queued.text(WAIT)
    assert running.cancel(WAIT) == "other_turn"


def test_the_time_of_the_caller_is_kept_and_stops_nothing(client: Client) -> None:
    turn = client.start(saying("call_seconds=2"))
    with pytest.raises(TookTooLong, match=r"within 0\.5 s"):
        turn.text(timeout=0.5)
    assert turn.text(WAIT).startswith("done after 1 steps")


def test_a_failed_turn_says_what_failed(client: Client) -> None:
    outcome = client.start(saying("fail=400")).result(WAIT)
    assert outcome.state == "failed"
    assert outcome.error is not None
    assert outcome.error.code == "MODEL_CALL_FAILED"
    with pytest.raises(NoAnswer, match="MODEL_CALL_FAILED"):
        outcome.answer()


# Requests ---------------------------------------------------------------------------------------------------------------


def test_a_turn_that_asks_goes_on_with_the_answer(both: Both) -> None:
    async def story_async(client: AsyncClient) -> tuple[Outcome, Outcome, Any]:
        turn = await client.start(saying("steps=2 tool=sign"))
        waits = await turn.result(WAIT)
        await turn.answer(waits.requests[0].approve())
        return waits, await turn.result(WAIT), await turn.session.requests()

    def story(client: Client) -> tuple[Outcome, Outcome, Any]:
        turn = client.start(saying("steps=2 tool=sign"))
        assert any(isinstance(event, events.InputRequested) for event in turn.events(WAIT))
        waits = turn.result(WAIT)
        turn.answer(waits.requests[0].approve())
        return waits, turn.result(WAIT), turn.session.requests()

    waits, done, record = both.say(story if both.kind == "sync" else story_async)
    assert (waits.state, waits.requests[0].kind) == ("waiting", "tool-approval")
    assert (done.state, done.requests, done.turn_id) == ("completed", (), waits.turn_id)
    [known] = record
    assert (known.request_id, known.state, known.option_id) == (waits.requests[0].request_id, "approved", "approve")


def test_who_comes_later_sees_a_wait_that_lasts_and_passes_over_one_that_is_over(client: Client, site: Site) -> None:
    turn = client.start(saying("steps=2 tool=sign"))
    waits = turn.result(WAIT)
    delivery = turn.delivery_id
    assert delivery is not None
    session = client.session(turn.session.id)
    assert session.turn(delivery).result(WAIT).state == "waiting"
    assert [one.state for one in session.requests(open_only=True)] == ["open"]
    session.answer(waits.requests[0].deny("Not today."))
    wait_for(lambda: site.system.outcomes(SessionId(session.id)), WAIT, what="the turn to end")
    assert session.turn(delivery).result(WAIT).state == "completed"
    assert session.requests(open_only=True) == ()


def test_what_was_never_asked_cannot_be_answered(client: Client) -> None:
    with pytest.raises(RequestUnknown):
        client.create().answer(Answer("req_1", text="red"))


# Sessions ---------------------------------------------------------------------------------------------------------------


def test_sessions_are_shown_listed_and_controlled(client: Client) -> None:
    turn = client.start(saying("hello"))
    session = turn.session
    turn.text(WAIT)
    shown = session.show()
    assert (shown.session_id, shown.agent, shown.status, shown.turn_id) == (session.id, "load", "idle", None)
    assert shown.events == session.cursor
    assert session.id in [one.session_id for one in client.sessions()]
    told = session.events(session.cursor, timeout=WAIT)
    assert (session.clear(), session.compact(), session.cancel()) == (True, True, "nothing_runs")
    assert isinstance(next(told), events.ContextCleared)
    assert (session.reset("enough"), session.reset()) == (True, False)
    assert isinstance(list(told)[-1], events.SessionCompleted)
    assert list(session.events(session.cursor, timeout=WAIT)) == []
    with pytest.raises(SessionNotActive):
        session.send("one more")


def test_what_a_caller_may_not_do_or_see_is_told(client: Client) -> None:
    with pytest.raises(Forbidden, match="erase"):
        client.create().erase()
    with pytest.raises(SessionNotFound):
        client.session(NOBODY).show()
    with pytest.raises(SessionNotFound):
        list(client.session(NOBODY).events())


def test_a_session_that_is_erased_ends_the_reading_of_it(site: Site) -> None:
    loopback = {"ORCHESTRATOR_ALLOW_ANONYMOUS": "loopback"}  # who may erase
    with Web(site.system.server.url, target="web:create_app()", **app_of(site), **loopback) as web:
        client = Client(f"http://127.0.0.1:{web.port}", patience=QUICK)
        session = client.create()
        heard: list[BaseException] = []

        def read() -> None:
            try:
                list(session.events(timeout=WAIT))
            except Exception as error:
                heard.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: client.health().said["streams"]["open"] == 1, WAIT, what="the reader")
        session.erase()
        reader.join(WAIT)
        client.close()
    assert [type(error) for error in heard] == [SessionNotFound]


@pytest.mark.parametrize("address", ["ticket-17", "a/b c", "..", "x/cancel", "%41", "grüße", "?a=1#b"])
def test_a_conversation_is_reached_by_any_address(client: Client, address: str) -> None:
    place = client.address("desk", address)
    turn = place.send(saying("hello"))
    assert turn.text(WAIT).startswith("done after 1 steps")
    found = place.session()
    assert found is not None
    assert found.id == turn.session.id
    assert place.send(saying("again")).session.id == turn.session.id
    assert (place.clear(), place.compact(), place.cancel(), place.reset()) == (True, True, "cancelling", True)
    assert place.session() is None
    assert (place.reset(), place.cancel()) == (False, "nothing_runs")


def test_a_conversation_asks_and_is_answered_by_its_address(client: Client) -> None:
    place = client.address("desk", "sign")
    turn = place.send(saying("steps=2 tool=sign"))
    waits = turn.result(WAIT)
    place.answer(waits.requests[0].approve())
    assert turn.result(WAIT).state == "completed"


def test_the_server_says_how_it_is_and_what_it_offers(client: Client) -> None:
    health = client.health()
    assert (health.ok, health.journal) == (True, "ok")
    assert client.info()["agent"]["name"] == "load"


def test_what_is_wrong_with_a_message_is_said(client: Client) -> None:
    with pytest.raises(BadRequest, match="JSON Schema"):
        client.start("hello", output={"type": "nope"})


# Once -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("losses", [1, 3])
def test_a_message_whose_answers_were_lost_came_in_once(site: Site, losses: int) -> None:
    network = Losing(losses)
    with httpx2.Client(transport=network) as http, Client(site.url, auth=site.key, http=http, patience=QUICK) as client:
        message, more = saying("hello"), saying("more")
        turn = client.start(message)
        turn.text(WAIT)
        assert holders(site, message) == [turn.session.id]
        network.lost.clear()
        turn.session.send(more).text(WAIT)
        assert received(site, turn.session.id) == [message, more]
        assert len(network.lost) == losses


def test_a_first_message_of_nobody_in_particular_comes_in_once_too(site: Site) -> None:
    network, message = Losing(3), saying("hello")
    with Web(site.system.server.url, target="web:create_app()", **app_of(site)) as web:
        http = httpx2.Client(transport=network)
        with http, Client(f"http://127.0.0.1:{web.port}", http=http, patience=QUICK) as client:
            turn = client.start(message)
            network.lost.clear()
            network.losses = 2
            more = saying("more")
            turn.session.send(more).text(WAIT)
            assert received(site, turn.session.id) == [message, more]
            assert holders(site, message) == [turn.session.id]


def test_an_answer_whose_answers_were_lost_counts_once(site: Site) -> None:
    network = Losing(0)
    with httpx2.Client(transport=network) as http, Client(site.url, auth=site.key, http=http, patience=QUICK) as client:
        turn = client.start(saying("steps=2 tool=sign"))
        waits = turn.result(WAIT)
        network.losses = 2
        turn.answer(waits.requests[0].approve())
        assert turn.result(WAIT).state == "completed"
        assert len(network.lost) == 2
        [known] = turn.session.requests()
        assert len(known.answers) == 1


def test_an_operation_is_one_session_whoever_says_it_again(site: Site, client: Client) -> None:
    first = client.start(saying("hello"), operation="order-17")
    with Client(site.url, auth=site.key) as other:
        again = other.start("something else", operation="order-17")
        assert again.session.id == first.session.id
        assert again.text(WAIT) == first.text(WAIT)


def test_a_message_under_a_key_of_the_callers_own_is_found_wherever_it_is(client: Client) -> None:
    session, message = client.create(), saying("mail")
    first = session.send(message, key="mail-1")
    text = first.text(WAIT)
    session.send(saying("later")).text(WAIT)
    again = client.session(session.id, cursor=session.cursor).send(message, key="mail-1")
    assert again.delivery_id == first.delivery_id
    assert again.text(WAIT) == text


# Streams ----------------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_cut_all_the_time_says_everything_once(site: Site, client: Client) -> None:
    session = client.create()
    cut, cut_async = Cuts(20, 1), Cuts(20, 2)
    session.send(saying("steps=3 tool=work calls=2 tokens=60"))

    def read() -> Told:
        with httpx2.Client(transport=Cutting(cut)) as http:
            reader = Client(site.url, auth=site.key, http=http, patience=QUICK).session(session.id)
            return [(event.index, event.id) for event in reader.events(timeout=WAIT)]

    async def read_async() -> Told:
        async with httpx2.AsyncClient(transport=AsyncCutting(cut_async)) as http:
            reader = AsyncClient(site.url, auth=site.key, http=http, patience=QUICK).session(session.id)
            return [(event.index, event.id) async for event in reader.events(timeout=WAIT)]

    found: dict[str, Told] = {}

    def keep(name: str, reading: Callable[[], Told]) -> threading.Thread:
        thread = threading.Thread(target=lambda: found.update({name: reading()}))
        thread.start()
        return thread

    readers = [keep("sync", read), keep("async", lambda: asyncio.run(read_async()))]
    wait_for(lambda: site.system.outcomes(SessionId(session.id)), WAIT, what="the turn to end")
    session.reset()
    for reader in readers:
        reader.join(WAIT)
    truth = stored(site, session.id)
    assert found == {"sync": truth, "async": truth}
    assert min(cut.connections, cut_async.connections) > 10


def test_a_reader_goes_on_when_the_server_is_started_again(site: Site, client: Client) -> None:
    """On the same port; while nobody is there it is refused."""
    session = client.create()
    port = free_port()
    told: list[int] = []

    def begin() -> Web:
        web = Web(site.system.server.url, target="web:create_app()", **app_of(site), PORT=str(port))
        web.port = port
        return web.ready()

    with Client(f"http://127.0.0.1:{port}", patience=QUICK) as other:

        def read() -> None:
            for event in other.session(session.id).events(timeout=60):
                told.append(event.index)  # noqa: PERF401  # looked at meanwhile

        web = begin()
        reader = threading.Thread(target=read)
        reader.start()
        try:
            session.send(saying("first")).text(WAIT)
            wait_for(lambda: len(told) == session.cursor, WAIT, what="the first turn")
            web.__exit__()
            with pytest.raises(ServerAway):
                other.health()
            session.send(saying("second")).text(WAIT)
            web = begin()
            wait_for(lambda: len(told) == session.cursor, WAIT, what="the second turn")
            session.reset()
            reader.join(WAIT)
        finally:
            web.__exit__()
    assert told == [*range(len(stored(site, session.id)))]


def test_a_tail_is_read_without_the_rest(client: Client) -> None:
    turn = client.start(saying("hello"))
    turn.text(WAIT)
    last = list(turn.session.events(-2, follow=False))
    assert [event.type for event in last] == ["turn.completed", "session.waiting"]
    assert last[-1].index == turn.session.cursor - 1
