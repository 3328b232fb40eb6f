"""A channel as its author sees it: names, handlers, what a request says, what a commit leaves behind."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.agent import App
from orchestrator.channels import Channel, Event, Incoming, ReplyTo, Request, entries, listens, on
from orchestrator.channels.channel import Headers
from orchestrator.channels.entries import Entry, UnreadableEntry
from orchestrator.core.names import SessionId
from orchestrator.errors import BadRequest, ConfigError, Unauthorized
from orchestrator.journal import Address
from orchestrator.parts import body_of

SESSION = SessionId("ses_01JQ2M8V6W3C4D5E6F7G8H9J0KA7")


def line(type: str, id: str = "evt_1", **data: object) -> str:
    return json.dumps({"type": type, "data": data, "meta": {"id": id}}, ensure_ascii=False, separators=(",", ":"))


def of(*channels: Channel) -> App:
    """An App, as far as channels look at it."""
    return cast(App, SimpleNamespace(channels=channels))


def unpacked(found: tuple[bytes, ...]) -> list[tuple[str, str, str, str]]:
    made = [Entry.unpack(packed) for packed in found]
    return [(one.channel, one.handler, one.address, one.event.type) for one in made]


# Names --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Support", "a b", "a/b", "x" * 49, "ü"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        Channel(name)


def test_a_class_may_say_everything() -> None:
    class Tickets(Channel):
        name = "tickets"
        agent = "support"
        turn_policy = "queue"

    made = Tickets()
    assert (made.name, made.agent, made.turn_policy) == ("tickets", "support", "queue")
    assert Tickets("other").name == "other"


def test_a_policy_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError):
        Channel("tickets", turn_policy=cast(Any, "later"))


# Who comes in -------------------------------------------------------------------------------------------------------------


def test_a_channel_without_a_check_lets_nobody_in() -> None:
    channel = Channel("tickets")
    assert not channel.takes_webhooks
    with pytest.raises(Unauthorized):
        channel.verify(Request())


def test_without_a_parser_a_request_has_an_address_and_a_message() -> None:
    body = {"address": "ticket-1", "message": "Hi", "agent": "support", "turnPolicy": "queue", "more": 1}
    found = Channel("tickets").parse(Request(body=json.dumps(body).encode()))
    assert found == Incoming("ticket-1", "Hi", agent="support", turn_policy="queue")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b'"a"', b"\xff", b'{"message": "Hi"}', b'{"address": "a"}', b"[" * 100_000),
        *(b'{"address": "a", "message": "m", "agent": 1}', b'{"address": "a", "message": "m", "turnPolicy": "later"}'),
    ],
)
def test_what_makes_no_sense_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        Channel("tickets").parse(Request(body=body))


@pytest.mark.parametrize("message", ["", [], None, 1, {"type": "text"}, [{"type": "text", "text": ""}], [1]])
def test_what_is_no_message_is_a_bad_request(message: Any) -> None:
    with pytest.raises(BadRequest):
        body_of(message)


def test_parts_are_a_message() -> None:
    assert body_of([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).text == "a\nb"


def test_headers_have_names_in_any_case_and_show_no_values() -> None:
    headers = Headers({"Authorization": "secret"})
    assert headers["authorization"] == headers.get("AUTHORIZATION") == "secret"
    assert "secret" not in repr(headers)


# Who hears ----------------------------------------------------------------------------------------------------------------


def test_handlers_hear_the_types_they_named_in_the_order_they_were_named() -> None:
    channel = Channel("tickets")

    @channel.on("message.completed", "turn.failed")
    def second(event: Event, to: ReplyTo) -> None: ...

    @channel.on("*")
    async def all_of_it(event: Event, to: ReplyTo) -> None: ...

    assert [handler.name for handler in channel.handlers("message.completed")] == ["second", "all_of_it"]
    assert [handler.name for handler in channel.handlers("turn.started")] == ["all_of_it"]


def test_methods_of_a_class_hear_too() -> None:
    class Tickets(Channel):
        @on("turn.failed")
        def sorry(self, event: Event, to: ReplyTo) -> str:
            return f"{self.name} {event.type}"

        def on_event(self, event: Event, to: ReplyTo) -> None: ...

    channel = Tickets("tickets")
    assert [handler.name for handler in channel.handlers("turn.failed")] == ["sorry", "on_event"]
    told = channel.handlers("turn.failed")[0].run(Event("turn.failed", {}, {}), ReplyTo("tickets", "a", SESSION, "key"))
    assert told == "tickets turn.failed"


def test_two_handlers_of_one_name_are_refused() -> None:
    channel = Channel("tickets")

    def answer(event: Event, to: ReplyTo) -> None: ...

    channel.on("turn.failed")(answer)
    with pytest.raises(ConfigError, match="two handlers"):
        channel.on("turn.completed")(answer)


def test_a_handler_without_a_type_is_refused() -> None:
    with pytest.raises(ConfigError):
        Channel("tickets").on()
    with pytest.raises(ConfigError):
        on(cast(Any, lambda event, to: None))


# What a commit leaves behind ----------------------------------------------------------------------------------------------


@pytest.fixture
def tickets() -> Channel:
    channel = Channel("tickets")

    @channel.on("message.completed")
    def answer(event: Event, to: ReplyTo) -> None: ...

    @channel.on("message.completed", "turn.failed")
    def log(event: Event, to: ReplyTo) -> None: ...

    return channel


def test_there_is_an_entry_for_each_event_address_and_handler_in_the_order_of_the_events(tickets: Channel) -> None:
    lines = [line("turn.started"), line("message.completed"), line("turn.failed")]
    found = entries(of(Channel("other"), tickets), [Address("tickets", "t-1", "channel")], lines)
    assert unpacked(found) == [
        ("tickets", "answer", "t-1", "message.completed"),
        ("tickets", "log", "t-1", "message.completed"),
        ("tickets", "log", "t-1", "turn.failed"),
    ]


def test_a_session_without_an_address_of_the_channel_leaves_nothing(tickets: Channel) -> None:
    lines = [line("message.completed")]
    assert entries(of(tickets), [], lines) == ()
    assert entries(of(tickets), [Address("other", "t-1", "channel"), Address("tickets", "key", "op")], lines) == ()


def test_only_an_app_whose_channels_are_heard_has_to_look_for_addresses(tickets: Channel) -> None:
    assert listens(of(Channel("other"), tickets))
    assert not listens(of(Channel("other")))
    assert not listens(of())


def test_posts_of_one_event_to_two_addresses_have_two_keys(tickets: Channel) -> None:
    addresses = [Address("tickets", name, "channel") for name in ("t-2", "t-1")]
    found = [Entry.unpack(one) for one in entries(of(tickets), addresses, [line("turn.failed", "evt_7")])]
    keys = [one.key(SESSION, one.event) for one in found]
    assert keys[0] == f"{SESSION}/evt_7/log"
    assert keys[1].startswith(f"{SESSION}/evt_7/log/")
    assert [one.address for one in found] == ["t-1", "t-2"]


@pytest.mark.parametrize("text", ["ü 🐘 \u2028", "\\u0000", '"', ""])
def test_an_entry_keeps_its_line_to_the_letter(text: str) -> None:
    event = line("message.completed", message=text)
    entry = Entry("tickets", "answer", text or "a", event)
    assert Entry.unpack(entry.pack()) == entry
    assert entry.event.data["message"] == text


@pytest.mark.parametrize("packed", [b"", b"\xff", b"[]", b"{}", b'[2,"a","b","c","d","e"]', b"7"])
def test_an_entry_of_another_version_is_told_apart(packed: bytes) -> None:
    with pytest.raises(UnreadableEntry):
        Entry.unpack(packed)
