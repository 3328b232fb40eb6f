"""What a turn asks of the people in a room: who of them may answer there, and that a webhook answers once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator import Agent, App, Incoming, ScriptedModel, Settings, StandardWebhook, always, answers, asks, tool
from orchestrator.channels import Request
from orchestrator.core.snapshot import Principal
from orchestrator.models.scripted import Conversation, Reply
from tests.channels.conftest import Site
from tests.channels.signing import GOOD


class Room(StandardWebhook):
    """A chat room, where each message says who has written it."""

    def parse(self, request: Request) -> Incoming:
        """A message of one of the people in the room."""
        said: Any = request.json()
        by = Principal("chat", "user", said["user"]) if "user" in said else None
        return Incoming(said["room"], said.get("text", ""), principal=by, kind=said.get("kind", "message"))


class Till:
    """A room whose agent pays back with leave. `paid` is what it really did."""

    def __init__(self, url: str, **channel: Any) -> None:
        self.paid: list[int] = []
        self.number = 0

        @tool(approval=always())
        def refund(cents: int) -> str:
            """Pay back."""
            self.paid.append(cents)
            return "paid"

        def clerk(talk: Conversation) -> Reply:
            return asks("refund", cents=500) if "pay" in talk.message and talk.step == 0 else answers("Well.")

        agent = Agent("clerk", model=ScriptedModel(clerk), tools=[refund])
        room = Room("room", secrets=[GOOD], **channel)
        self.site = Site(App([agent], channels=[room]), Settings(url=url, allow_anonymous="all"))

    def say(self, text: str, by: str | None = None, *, id: str = "", **more: str) -> str:
        self.number += 1
        who = {"user": by} if by else {}
        answer = self.site.send({"room": "r", "text": text, **who, **more}, id or f"msg_{self.number}", "room")
        assert answer.status_code in (200, 202), answer.get_data(as_text=True)
        told = answer.get_json()
        session = str(told.get("sessionId") or told["previousSessionId"])
        self.site.run(session)
        return session

    def types(self, session: str) -> list[str]:
        return [event["type"] for event in self.site.events(session)]


MakeTill = Callable[..., Till]


@pytest.fixture
def make_till(url: str) -> Iterator[MakeTill]:
    made: list[Till] = []

    def make(**channel: Any) -> Till:
        made.append(Till(url, **channel))
        return made[-1]

    yield make
    for till in made:
        till.site.close()


@pytest.mark.parametrize("policy", ["steer", "queue"])
def test_in_a_room_of_many_only_who_asked_gives_leave(make_till: MakeTill, policy: str) -> None:
    till = make_till(turn_policy=policy)
    session = till.say("pay me", "ann")
    assert till.types(session)[-1] == "turn.waiting"
    till.say("approve", "ben")
    assert till.paid == []
    assert till.types(session)[-1] == "turn.waiting"
    till.say("Approve", "ann")
    assert till.paid == [500]
    assert till.site.said(session) == ["pay me", "approve"], "what the other has said is a message of its own"


def test_where_a_channel_does_not_say_who_has_written_all_are_one(make_till: MakeTill) -> None:
    till = make_till()
    session = till.say("pay me")
    till.say("approve")
    assert till.paid == [500]
    assert till.site.said(session) == ["pay me"]


def test_a_webhook_that_comes_again_gives_no_leave_to_what_is_asked_later(make_till: MakeTill) -> None:
    till = make_till()
    session = till.say("pay me", "ann")
    till.say("approve", "ann", id="leave")
    till.say("pay me again", "ann")
    assert till.types(session)[-1] == "turn.waiting"
    for _ in range(3):
        till.say("approve", "ann", id="leave")
    assert till.paid == [500]
    assert till.types(session)[-1] == "turn.waiting"
    till.say("approve", "ann")
    assert till.paid == [500, 500]


def test_a_word_behind_a_cancel_from_the_room_gives_no_leave(make_till: MakeTill) -> None:
    till = make_till()
    session = till.say("pay me", "ann")
    till.say("", "ann", kind="cancel")
    till.say("approve", "ann")
    assert till.paid == []
    assert till.site.said(session) == ["pay me", "approve"]
    assert till.types(session)[-2:] == ["turn.completed", "session.waiting"]


def test_after_a_reset_from_the_room_a_word_begins_a_session_and_gives_no_leave(make_till: MakeTill) -> None:
    till = make_till()
    session = till.say("pay me", "ann")
    till.say("", "ann", kind="reset")
    other = till.say("approve", "ann")
    till.site.run(session)
    assert other != session
    assert till.paid == []
    assert till.types(session)[-3:] == ["turn.cancelled", "session.waiting", "session.completed"]
    assert till.site.said(other) == ["approve"]
