"""Files that come with messages: their bytes reach the model and nothing else, the same each time, as long as they are spoken of."""

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import Channel
from orchestrator.core.delivery import Body
from orchestrator.core.names import SessionId
from orchestrator.errors import BadRequest, DeliveryKeyReused, FileRefused, FileTooLarge, InboxFull, SessionNotActive
from orchestrator.models.scripted import Conversation, Reply, answers, asks
from orchestrator.parts import Uploads, body_of
from orchestrator.tool import ToolContext, ask_question, tool
from tests.engine.test_crash_table import WAYS
from tests.engine.test_steering import ANN, BEN
from tests.worlds import Fault, How, World

BYTES = b"\x89PNG not really" + bytes(range(256))
PICTURE = {"type": "file", "mediaType": "image/png", "filename": "cat.png", "data": BYTES}
WORDS = {"type": "text", "text": "What is it?"}
URL = "https://files.example/cat.png"
BEHIND_URL = {"type": "file", "mediaType": "image/png", "data": URL}


@tool
def look(ctx: ToolContext) -> str:
    """Look."""
    return "seen"


@tool
def measure(ctx: ToolContext) -> list[dict[str, object]]:
    """How large the files are."""
    return [{"name": file.name, "bytes": len(file.read()), "type": file.media_type} for file in ctx.files]


def sent(world: World) -> list[list[bytes | str]]:
    """What each model call was given of files."""
    return [list(request.files.values()) for request in world.requests]


def two_steps(talk: Conversation) -> Reply:
    return asks("look") if talk.step == 0 else answers("A cat.")


def blobs(world: World, session: SessionId) -> int:
    """How many files the store holds for a session."""
    return sum(1 for _ in world.client.scan_iter(match=world.journal.keys(session).blob("*")))


def test_a_file_is_sent_with_every_model_call_from_then_on_the_same_bytes(world: World) -> None:
    world.app(two_steps, [look])
    session = world.create([WORDS, PICTURE])
    world.run(session)
    world.kill(world.worker)
    world.say(session, "and now?")
    world.run(session)
    assert sent(world) == [[BYTES]] * 4
    world.check(session)


def test_the_bytes_are_in_no_event_no_row_and_no_delivery(world: World) -> None:
    world.app([answers("A cat.")])
    session = world.create([WORDS, PICTURE])
    body = next(iter(world.reads.bodies(session, world.accepted[session]).values()))
    assert [part.text for part in body.parts] == ["What is it?", "[file: cat.png (image/png)]"]
    file = body.parts[1].file
    assert file is not None
    assert (file.data, file.size) == (b"", len(BYTES))
    world.run(session)
    received = next(data for name, data in world.shown(session) if name == "message.received")
    assert received["message"] == "What is it?\n[file: cat.png (image/png)]"
    assert received["parts"] == [
        WORDS,
        {"type": "file", "mediaType": "image/png", "filename": "cat.png", "size": len(BYTES)},
    ]
    stored = world.reads.rows(session, 0, 0) + world.reads.events(session, 0)
    assert not [line for line in stored if b"not really" in line]
    world.check(session)


def test_a_message_of_one_file_is_shown_as_a_part(world: World) -> None:
    world.app([answers("A cat.")])
    session = world.create([{**PICTURE, "filename": ""}])
    world.run(session)
    received = next(data for name, data in world.shown(session) if name == "message.received")
    assert received["message"] == "[file: image/png]"
    assert received["parts"] == [{"type": "file", "mediaType": "image/png", "size": len(BYTES)}]


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_files_survive_whatever_breaks(world: World, at: int, how: How, late_by: int | None) -> None:
    world.app(two_steps, [look])
    world.traffic.fault = Fault(at, how, late_by)
    session = world.create([WORDS, PICTURE])
    world.run(session)
    assert {tuple(files) for files in sent(world)} == {(BYTES,)}
    assert world.types(session).count("turn.completed") == 1
    world.check(session)


def test_the_same_key_is_the_same_message_only_with_the_same_bytes(world: World) -> None:
    world.app([answers("ok")])
    session = world.create(None)
    first = world.worker.deliver(session, body_of([PICTURE]), key="k", principal=ANN)
    again = world.worker.deliver(session, body_of([PICTURE]), key="k", principal=ANN)
    assert (first.again, again.again, again.delivery) == (False, True, first.delivery)
    with pytest.raises(DeliveryKeyReused, match="The key k was used"):
        world.worker.deliver(session, body_of([{**PICTURE, "data": BYTES + b"!"}]), key="k", principal=ANN)
    world.run(session)
    assert sent(world) == [[BYTES]]
    assert blobs(world, session) == 1
    world.check(session)


def test_nothing_is_written_for_a_message_that_is_refused(world: World) -> None:
    world.app([answers("ok")])
    session = world.create(None)
    world.worker.journal.waiting_limit = 1
    world.say(session, "waits")
    with pytest.raises(InboxFull):
        world.worker.deliver(session, body_of([PICTURE]))
    world.control(session, "reset")
    with pytest.raises(SessionNotActive):
        world.worker.deliver(session, body_of([PICTURE]))
    assert blobs(world, session) == 0


def test_a_file_comes_to_an_address_and_to_one_that_is_elsewhere(world: World) -> None:
    world.app([answers("ok")])
    started = world.arrive("ann", [PICTURE])
    world.run(started.session)
    for name in range(20):  # some of them in other shards than the session
        world.worker.take_address(started.session, "desk", f"alias {name}")
        assert world.arrive(f"alias {name}", [PICTURE]).session == started.session
    world.run(started.session)
    assert len(sent(world)[-1]) == 21
    world.check(started.session)


def test_clear_lets_go_of_files_and_keeps_those_that_wait(world: World) -> None:
    world.app([answers("ok")])
    session = world.create([PICTURE])
    world.run(session)
    world.control(session, "clear")
    world.run(session)
    assert blobs(world, session) == 0
    world.control(session, "clear")
    world.say(session, [{**PICTURE, "data": b"Ann's"}], who=ANN)
    world.say(session, [{**PICTURE, "data": b"Ben's"}], who=BEN)
    world.run(session)
    assert sent(world)[-2:] == [[b"Ann's"], [b"Ann's", b"Ben's"]]
    assert blobs(world, session) == 2
    world.check(session)


def test_a_compaction_keeps_the_files_of_what_stays(world: World) -> None:
    world.app(lambda talk: answers(f"{talk.message} " * 50))
    session = world.create([PICTURE])
    world.run(session)
    for number in range(12):
        world.say(session, f"message {number}")
        world.run(session)
    world.say(session, [WORDS, {**PICTURE, "data": b"new"}])
    world.run(session)
    world.control(session, "compact")
    world.run(session)
    assert int(world.fields(session)["gen"]) == 1
    assert blobs(world, session) == 1
    world.say(session, "and now?")
    world.run(session)
    assert sent(world)[-1] == [b"new"]
    world.check(session)


def test_erase_leaves_no_file(world: World) -> None:
    world.app([answers("ok")])
    session = world.create([PICTURE])
    world.run(session)
    world.say(session, [PICTURE])
    world.worker.erase(session)
    assert [key for key in world.client.scan_iter(match="*", count=1000) if session.encode() in key] == []


def test_the_newest_files_go_first_where_there_are_too_many_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.turn.filing.MOST_SENT_BYTES", 25)
    world.app([answers("ok")])
    session = world.create([{**PICTURE, "data": bytes([number]) * 10} for number in range(4)])
    world.run(session)
    assert [set(files) for files in sent(world)] == [{b"\x03" * 10, b"\x02" * 10}]


def test_a_file_that_the_store_has_lost_is_told_as_lost(world: World) -> None:
    world.app([answers("ok")])
    session = world.create([PICTURE])
    for key in world.client.scan_iter(match=world.journal.keys(session).blob("*")):
        world.client.delete(key)
    world.run(session)
    assert sent(world) == [["its bytes are lost"]]
    assert world.types(session).count("turn.completed") == 1


def test_tools_read_the_files_of_the_conversation(world: World) -> None:
    world.app(lambda talk: asks("measure") if talk.step == 0 else answers("done"), [measure])
    session = world.create([PICTURE])
    world.run(session)
    result = next(data for name, data in world.shown(session) if name == "action.result")
    assert result["result"]["output"] == [{"name": "cat.png", "bytes": len(BYTES), "type": "image/png"}]


def test_a_file_is_more_than_an_answer(world: World) -> None:
    """A photo in the place of an answer takes the question back, and the model sees both."""

    def script(talk: Conversation) -> Reply:
        return asks("ask_question", question="Which one?") if talk.message == "hello" else answers("That one.")

    world.app(script, [ask_question])
    session = world.create("hello", who=ANN)
    world.run(session)
    world.say(session, [PICTURE], who=ANN)
    world.run(session)
    assert sent(world)[-1] == [BYTES]
    assert world.types(session).count("turn.completed") == 1
    world.check(session)


# What may come in -------------------------------------------------------------------------------------------------------


def test_uploads_say_which_files_may_come_in(world: World) -> None:
    app = world.app([answers("ok")])
    engine = world.engine(replace(app, uploads=Uploads(limit_bytes=10, media_types=["image/*"])))
    session = world.create(None)
    with pytest.raises(FileTooLarge) as large:
        engine.deliver(session, body_of([WORDS, PICTURE]))
    assert large.value.facts["violations"] == [
        {"part": 1, "filename": "cat.png", "mediaType": "image/png", "size": len(BYTES)}
    ]
    with pytest.raises(FileRefused, match="text/csv are not taken"):
        engine.create(body_of([{**PICTURE, "mediaType": "text/csv", "data": b"1"}]))
    engine.deliver(session, body_of([{**PICTURE, "data": b"small"}]))
    own = replace(app, uploads=Uploads(limit_bytes=10), channels=[Channel("desk", uploads=Uploads(1_000))])
    engine = world.engine(own)
    engine.arrive("desk", "ann", body_of([PICTURE]))
    with pytest.raises(FileTooLarge):
        engine.arrive("other", "ann", body_of([PICTURE]))


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "file"}, "must have mediaType and data"),
        ({"type": "file", "mediaType": "image/png"}, "must have mediaType and data"),
        ({"type": "file", "mediaType": "png", "data": ""}, "no media type"),
        ({"type": "file", "mediaType": "image/png", "data": "%%%"}, "neither base64 nor"),
        ({"type": "file", "mediaType": "image/png", "data": "data:image/png,abc"}, "not in base64"),
        ({"type": "file", "mediaType": "image/png", "data": "http://example.com/a"}, "Only https"),
        ({"type": "file", "mediaType": "image/png", "data": "https://"}, "no URL"),
        ({"type": "file", "mediaType": "image/png", "data": "https://exämple.com"}, "no URL"),
        ({"type": "file", "mediaType": "image/png", "data": "aGk=", "filename": 7}, "filename must be a text"),
        ({"type": "image", "image": "aGk="}, "there are text and file"),
    ],
)
def test_what_is_no_file_is_refused(part: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        body_of([part])


def test_files_are_base64_data_urls_or_bytes() -> None:
    given: list[dict[str, Any]] = [
        {"type": "file", "mediaType": "text/plain; charset=utf-8", "data": data}
        for data in ("aGk=", "data:text/plain;charset=utf-8;base64,aGk=", b"hi")
    ]
    body = body_of(given)
    assert [(part.file.media_type, part.file.data) for part in body.parts if part.file] == [("text/plain", b"hi")] * 3
    assert isinstance(body, Body)


def test_a_name_stays_on_its_line() -> None:
    [part] = body_of([{**PICTURE, "filename": " a\nb\x00.png "}]).parts
    assert part.text == "[file: a b .png (image/png)]"


def test_a_message_has_so_many_files_and_no_more() -> None:
    body_of([PICTURE] * 20)
    with pytest.raises(BadRequest, match="more than 20 files"):
        body_of([PICTURE] * 21)


# Behind a URL -----------------------------------------------------------------------------------------------------------


class Fetching(Channel):
    """Fetches its files itself."""

    def __init__(self) -> None:
        super().__init__("desk")
        self.fetched: list[str] = []
        self.go = threading.Event()
        self.go.set()
        self.found: Any = BYTES

    async def fetch_file(self, url: str) -> bytes | None:
        self.fetched.append(url)
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found  # type: ignore[no-any-return]


def fetching(world: World, channel: Channel, model: Any = two_steps) -> None:
    app = world.app(model, [look])
    world._app = replace(app, channels=[channel])


def test_a_url_is_fetched_once_and_is_the_same_from_then_on(world: World) -> None:
    channel = Fetching()
    fetching(world, channel)
    session = world.arrive("ann", [WORDS, BEHIND_URL]).session
    assert channel.fetched == [], "not at the door"
    world.run(session)
    channel.found = b"another"
    world.kill(world.worker)
    world.say(session, "and now?")
    world.run(session)
    assert channel.fetched == [URL]
    assert sent(world) == [[BYTES]] * 4
    received = next(data for name, data in world.shown(session) if name == "message.received")
    assert received["parts"][1] == {"type": "file", "mediaType": "image/png", "url": URL}
    world.check(session)


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize(("how", "late_by"), WAYS)
def test_what_was_fetched_is_what_every_call_gets_whatever_breaks(
    world: World, at: int, how: How, late_by: int | None
) -> None:
    channel = Fetching()
    fetching(world, channel)
    world.traffic.fault = Fault(at, how, late_by)
    session = world.arrive("ann", [WORDS, BEHIND_URL]).session
    world.run(session)
    assert {tuple(files) for files in sent(world)} == {(BYTES,)}
    assert world.types(session).count("turn.completed") == 1
    world.check(session)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (RuntimeError("The token is over."), "RuntimeError: The token is over."),
        ("text", "its channel returned str and not bytes"),
    ],
)
def test_the_model_is_told_why_a_file_could_not_be_fetched(world: World, found: object, told: str) -> None:
    channel = Fetching()
    channel.found = found
    fetching(world, channel)
    session = world.arrive("ann", [WORDS, BEHIND_URL]).session
    world.run(session)
    assert sent(world) == [[told]] * 2
    assert channel.fetched == [URL], "that is not tried again in the next step"
    world.check(session)


def test_a_private_address_is_not_fetched(world: World) -> None:
    world.app([answers("ok")])
    session = world.create([{**BEHIND_URL, "data": "https://127.0.0.1:9/secret"}])
    world.run(session)
    [[told]] = sent(world)
    assert isinstance(told, str)
    assert "private" in told or "not allowed" in told or "blocked" in told.lower()
    assert world.types(session).count("turn.completed") == 1


def test_a_cancel_ends_a_fetch(world: World) -> None:
    channel = Fetching()
    channel.go.clear()
    fetching(world, channel)
    session = world.arrive("ann", [WORDS, BEHIND_URL]).session
    thread = threading.Thread(target=world.run, args=(session,))
    thread.start()
    while not channel.fetched:
        time.sleep(0.005)
    world.cancel(session)
    thread.join(10)
    assert not thread.is_alive()
    assert world.types(session)[-2:] == ["turn.cancelled", "session.waiting"]
    channel.go.set()
    world.check(session)
