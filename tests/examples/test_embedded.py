"""The shop that had Celery tasks and Flask routes before the agent came: all of it works, side by side."""

from __future__ import annotations

import re

import pytest

import examples.embedded
from tests.acceptance.caller import Caller
from tests.examples.conftest import House
from tests.servers import wait_for
from tests.tasks.workers import Process

WORKER, SITE = (
    [word for word in line.split() if "=" not in word]
    for line in (examples.embedded.__doc__ or "").splitlines()
    if re.match(r"    (\S+=\S+ )*(celery|gunicorn) ", line)
)
"""The commands that the package names."""


@pytest.fixture
def shop(house: House) -> House:
    """The team's environment: a Redis, and nothing that names an App."""
    house.runs("", REDIS_URL=house.url)
    return house


def team_worker(house: House, *flags: str) -> Process:
    return house.start(*WORKER, "-l", "INFO", "-c", "2", *flags).says(" ready.")


def site(house: House) -> tuple[Caller, Caller]:
    """The shop's own routes, and the agent's."""
    agent = house.web(*SITE, prefix="/agent/v1")
    return Caller(agent.port, prefix=""), agent


def packed(pages: Caller, number: str) -> bool:
    return bool(pages.get(f"/orders/{number}").body["packed"])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_team_s_task_and_routes_work_beside_the_agent(shop: House, pool: str) -> None:
    pages, agent = site(shop)
    team_worker(shop, "-P", pool)
    assert pages.get("/orders/B-1007").body == {"order": "B-1007", "status": "waiting for stock", "packed": False}
    assert pages.post("/orders/B-1007/pack").status == 202
    wait_for(lambda: packed(pages, "B-1007"), 20, what="the team's own task")
    session = agent.create("Could you hurry with B-1013, please?")
    assert agent.ended(session) == ["turn.completed"]
    wait_for(lambda: packed(pages, "B-1013"), 20, what="the task that the agent has asked for")
    said = [event["data"]["message"] for event in agent.events(session) if event["type"] == "message.completed"]
    assert said[-1] == "B-1013 is being packed."
    assert not packed(pages, "B-1011")


def test_an_order_that_the_shop_does_not_have_is_said_by_both(shop: House) -> None:
    pages, agent = site(shop)
    team_worker(shop)
    session = agent.create("Hurry with B-9999!")
    assert agent.ended(session) == ["turn.completed"]
    assert "There is no order B-9999" in str(agent.events(session))
    with pytest.raises(ValueError, match="Expecting value"):  # the page of the shop's own 404 is HTML, as it was
        pages.get("/orders/B-9999")


def test_a_task_that_the_agent_asks_for_carries_the_key_of_its_call(shop: House) -> None:
    pages, agent = site(shop)
    worker = team_worker(shop)
    session = agent.create("Hurry with B-1013.")
    assert agent.ended(session) == ["turn.completed"]
    wait_for(lambda: packed(pages, "B-1013"), 20)
    worker.says(f"bookshop.pack[{session}/turn_0/call_0_0_0] succeeded")


def test_a_conversation_goes_on_when_the_team_restarts_its_workers(shop: House) -> None:
    _, agent = site(shop)
    worker = team_worker(shop)
    session = agent.create("I cannot wait.")
    assert agent.ended(session) == ["turn.completed"]
    worker.signal()
    worker.ends()
    agent.say(session, "It is B-1013.")
    team_worker(shop)
    wait_for(lambda: agent.outcomes(session) == ["turn.completed"] * 2, 30, what="the second turn")
