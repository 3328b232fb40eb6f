"""The agent with a model of one's own: the environment says where the server is, and all goes through real workers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.examples.conftest import House
from tests.fake_openai import Call, FakeOpenAI, Reply, error, text, tools, use
from tests.servers import wait_for
from tests.tasks.workers import ROOT

QUESTION = "How long does a worker own a session?"


def librarian(call: Call) -> Reply:
    """What a model on the local server does: finds, reads at the line that was found, answers."""
    last = call.messages[-1]["content"]
    match call.step:
        case 0:
            return tools(use("find", word="lease"))
        case 1:
            page, line, _ = json.loads(last)[0].split(":", 2)
            return tools(use("read", page=page, line=int(line)))
        case _:
            return text(f"Ten seconds, says the page. {len(last)} letters of it.")


@pytest.fixture
def provider() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(librarian) as running:
        yield running


@pytest.fixture
def local(house: House, provider: FakeOpenAI) -> House:
    house.runs(
        "examples.local_model:app", OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="none", LOCAL_MODEL="tiny-model"
    )
    return house


def test_the_agent_answers_from_the_pages_through_the_local_server(local: House, provider: FakeOpenAI) -> None:
    caller = local.web()
    local.worker()
    session = caller.create(QUESTION)
    assert caller.ended(session) == ["turn.completed"]
    assert [(call.user, call.body["model"]) for call in provider.calls] == [(QUESTION, "tiny-model")] * 3
    assert {tool["function"]["name"] for tool in provider.calls[0].body["tools"]} == {"find", "read"}
    assert "Answer from the pages" in provider.calls[0].messages[0]["content"]
    page, line, found = json.loads(provider.calls[1].messages[-1]["content"])[0].split(":", 2)
    assert found.strip() == (ROOT / "docs" / page).read_text().splitlines()[int(line) - 1]
    said = [event["data"]["message"] for event in caller.events(session) if event["type"] == "message.completed"]
    assert said[-1].startswith("Ten seconds, says the page.")


def test_a_server_that_is_busy_is_asked_again(house: House) -> None:
    with FakeOpenAI([error(503, retry_after=0), text("Here I am.")]) as server:
        house.runs("examples.local_model:app", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none")
        caller = house.web()
        house.worker()
        session = caller.create(QUESTION)
        assert caller.ended(session) == ["turn.completed"]
        assert [call.body["model"] for call in server.calls] == ["llama3.2"] * 2


def test_a_server_that_is_not_there_fails_the_turn_and_not_the_session(house: House) -> None:
    with FakeOpenAI() as gone:
        url = gone.url
    house.runs("examples.local_model:app", OPENAI_BASE_URL=url, OPENAI_API_KEY="none")
    caller = house.web()
    house.worker()
    session = caller.create(QUESTION)
    assert caller.ended(session, 60) == ["turn.failed"]
    assert caller.get(f"/session/{session}").body["status"] == "idle"


def test_a_model_in_circles_asks_whether_it_may_go_on(house: House) -> None:
    with FakeOpenAI(lambda _: tools(use("find", word="lease"))) as server:
        house.runs("examples.local_model:app", OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none")
        caller = house.web()
        house.worker()
        session = caller.create(QUESTION)
        wait_for(lambda: "turn.waiting" in caller.types(session), 30, what="the question")
        assert len(server.calls) == 12
