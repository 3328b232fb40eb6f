"""Looking at sessions: filters, pages, what one waits for, its stream as people read it."""

import json
import re
import signal
import subprocess
from dataclasses import replace
from itertools import pairwise

import pytest
import redis

from orchestrator import Agent, App, Engine, ScriptedModel, Settings, always, answers, asks, tool
from orchestrator.cli.why import Scene, why
from orchestrator.core.delivery import Body, Part, Response
from orchestrator.core.names import CallId, Millis, SessionId, TurnId
from orchestrator.core.snapshot import EMPTY, Call, Compacting, Turn
from orchestrator.ids import new_session
from tests.cli.conftest import Run, Told, command
from tests.tasks.shop import app as shop
from tests.tasks.workers import ROOT, environment


@tool(approval=always(prompt="Pay \x1b[31m{amount}\x1b[0m?"))
def pay(amount: int) -> str:
    """Pay."""
    return f"{amount} paid"


both = App(
    agents=[
        Agent("clerk", model=ScriptedModel([answers("Good day.", pieces=3)])),
        Agent("cashier", model=ScriptedModel([asks("pay", amount=7), answers("Paid.")]), tools=[pay]),
    ]
)


def body(text: str = "Hello") -> Body:
    return Body((Part("text", text),))


def carry(engine: Engine, session: SessionId) -> SessionId:
    while engine.carry_on(session).how != "parked":
        pass
    return session


@pytest.fixture
def engine(url: str) -> Engine:
    return Engine(both, Settings(url=url))


def ids_of(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


# list ---------------------------------------------------------------------------------------------------------------------


def test_sessions_can_be_looked_for_by_agent_and_status(engine: Engine, told: Told) -> None:
    clerk = carry(engine, engine.create(body()).session)
    cashier = carry(engine, engine.create(body(), agent="cashier").session)
    fresh = engine.create(body(), agent="cashier").session
    assert ids_of(told("sessions", "list").lines) == [fresh, cashier, clerk]
    assert ids_of(told("sessions", "list", "--agent", "cashier").lines) == [fresh, cashier]
    assert ids_of(told("sessions", "list", "--status", "idle").lines) == [clerk]
    assert ids_of(told("sessions", "list", "--agent", "cashier", "--status", "waiting_for_input").lines) == [cashier]
    nobody = told("sessions", "list", "--agent", "nobody")
    assert (nobody.code, nobody.out, nobody.err) == (0, "", "")


@pytest.mark.parametrize("filters", [(), ("--agent", "clerk")], ids=["all", "filtered"])
def test_pages_name_every_session_once(filters: tuple[str, ...], engine: Engine, told: Told) -> None:
    made = [engine.create(body()).session for _ in range(7)]
    seen, after = list[str](), list[str]()
    while True:
        page = told("sessions", "list", "--limit", "3", *filters, *after)
        seen += ids_of(page.lines)
        more = re.search(r"--after (\S+)", page.err)
        if more is None:
            break
        assert len(page.lines) == 3
        after = ["--after", more[1]]
    assert len(seen) == 7
    assert sorted(seen) == sorted(made)
    assert ids_of(told("sessions", "list", "--after", seen[2]).lines) == seen[3:]


def test_sessions_of_one_millisecond_are_paged_too(url: str, client: "redis.Redis", told: Told) -> None:
    """Also those of one shard: an index that is cut in the middle of a millisecond must not lose the rest of it."""
    engine = Engine(both, Settings(url=url))
    made = [engine.create(body(), session=new_session(Millis(at), "07")).session for at in range(1, 7)]
    client.zadd(engine.journal.keys(made[0]).index, dict.fromkeys(made, 1_000_000))
    seen, after = list[SessionId](), None
    while page := engine.reads.sessions(2, after):
        seen += [session for session, _ in page]
        after = page[-1]
    assert seen == sorted(made, reverse=True)


def test_a_place_in_the_list_stays_while_its_session_is_used_again(engine: Engine, told: Told) -> None:
    for _ in range(3):
        carry(engine, engine.create(body()).session)
    lines = [json.loads(line) for line in told("sessions", "list", "--json").lines]
    assert all(one["lastActivityMs"] >= two["lastActivityMs"] for one, two in pairwise(lines))
    engine.deliver(SessionId(lines[1]["sessionId"]), body())
    rest = told("sessions", "list", "--json", "--after", lines[1]["cursor"]).lines
    assert [json.loads(line)["sessionId"] for line in rest] == [lines[2]["sessionId"]]


# show ---------------------------------------------------------------------------------------------------------------------


def test_show_says_what_it_waits_for_and_what_it_asks(engine: Engine, told: Told) -> None:
    session = engine.create(body(), agent="cashier").session
    queued = told("sessions", "show", session).out
    assert "1 message waits for a worker of the deployment default, of which none lives: start one" in queued
    carry(engine, session)
    shown = told("sessions", "show", session)
    [request] = [asked["requestId"] for asked in engine.requests(session)]
    assert "why        It waits for somebody to approve a call of pay: “Pay" in shown.out
    assert re.search(rf"^ +{request}  Pay .*\(approve, cancel\)$", shown.out, re.MULTILINE)
    assert "\x1b" not in shown.out, "a prompt gives the terminal no orders"
    data = json.loads(told("sessions", "show", session, "--json").out)
    assert (data["status"], data["agent"]) == ("waiting_for_input", "cashier")
    assert data["why"].startswith("It waits for somebody to approve")
    assert [asked["requestId"] for asked in data["requests"]] == [request]
    assert "link" not in data["requests"][0]
    engine.answer(session, [Response(request, "approve")])
    carry(engine, session)
    after = told("sessions", "show", session).out
    assert "It waits for the next message" in after
    assert "requests" not in after


TURN = Turn(TurnId("turn_3"), 3, (), None, "clerk", Millis(0), step=2, step_open=True)
QUIET = Scene("idle", EMPTY, "blue", 2)
ASKED = {"kind": "question", "prompt": "Which one?", "expires_ms": 0}
TOOLS = replace(
    TURN, phase="tools", calls=tuple(Call(CallId(f"call_{n}"), "", name, "") for n, name in enumerate(("find", "pay")))
)


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        (QUIET, "It waits for the next message; nothing runs, and nothing is lost by waiting."),
        (replace(QUIET, status="ended"), "It has ended and takes no more messages."),
        (replace(QUIET, status="ending"), "It is being ended."),
        (
            replace(QUIET, status="ending", workers=0),
            "It is being ended, once there is one: no worker of the deployment blue lives.",
        ),
        (replace(QUIET, status="running"), "A worker is at it: it is looking at what came in."),
        (
            replace(QUIET, status="running", snapshot=replace(EMPTY, turn=TURN)),
            "A worker is at it: the model is asked in step 2 of turn_3.",
        ),
        (
            replace(QUIET, status="running", snapshot=replace(EMPTY, turn=replace(TURN, tries=1))),
            "A worker is at it: the model is asked in step 2 of turn_3, after 1 failed try.",
        ),
        (
            replace(QUIET, status="running", snapshot=replace(EMPTY, turn=TOOLS)),
            "A worker is at it: the tools find, pay in step 2 of turn_3.",
        ),
        (
            replace(QUIET, status="running", snapshot=replace(EMPTY, turn=replace(TURN, cancelling=True))),
            "A worker is at it: turn_3 is coming to its end.",
        ),
        (
            replace(QUIET, status="running", snapshot=replace(EMPTY, compacting=Compacting(asked=True))),
            "A worker is at it: what was said long ago is being summed up.",
        ),
        (
            replace(QUIET, status="interrupted", now_ms=5_000, lease_ms=2_000),
            "Its worker's lease ran out 3.0 s ago without a sign of life, so another one takes it over.",
        ),
        (
            replace(QUIET, status="queued", waiting=2),
            "2 messages wait for a worker of the deployment blue, of which 2 live.",
        ),
        (
            replace(QUIET, status="queued", workers=0),
            "It has work for a worker of the deployment blue, of which none lives: start one with `orchestrator worker`.",
        ),
        (
            replace(QUIET, status="waiting_for_input", requests=[ASKED]),
            "It waits for somebody to answer its question: “Which one?”.",
        ),
        (
            replace(
                QUIET,
                status="waiting_for_input",
                requests=[{**ASKED, "kind": "session-limit", "expires_ms": 1_000}, ASKED, ASKED],
            ),
            "It waits for somebody to let it go on beyond its budget: “Which one?” (until 1970-01-01T00:00:01.000Z), and 2 more requests.",
        ),
        (
            replace(
                QUIET,
                status="waiting_for_timer",
                timer_ms=65_000,
                now_ms=5_000,
                snapshot=replace(EMPTY, turn=replace(TURN, tries=2, retry_at=Millis(65_000))),
            ),
            "It waits until 1970-01-01T00:01:05.000Z, 1.0 min from now, when the model is asked again after 2 failed tries.",
        ),
        (
            replace(QUIET, status="needs_newer_worker"),
            "A newer version has written it: start a worker of that version, or a later one.",
        ),
        (replace(QUIET, status="waiting_for_tasks"), "It waits for tasks that it has started."),
    ],
    ids=lambda one: one.status if isinstance(one, Scene) else "",
)
def test_why_is_one_sentence(scene: Scene, said: str) -> None:
    assert why(scene) == said


# follow -------------------------------------------------------------------------------------------------------------------


def test_a_stream_is_read_as_text_or_as_lines(engine: Engine, told: Told) -> None:
    session = carry(engine, engine.create(body("Good morning,\nis \x1b[2Janybody there?")).session)
    text = told("sessions", "follow", session, "--to-end", "--text").out
    said = [line[14:] for line in text.splitlines()]
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3}  \S", line) for line in text.splitlines())
    assert "message     Good morning, is \\u001b[2Janybody there?" in said
    assert said.count("agent       Good day.") == 1, "the pieces are one line, and the whole is not said again"
    assert said[-2:] == ["turn        turn_0 completed", "session     waits for the next message"]
    stored = [line.decode() for line in engine.reads.events(session, 0)]
    assert told("sessions", "follow", session, "--to-end").lines == stored, "a pipe gets what is stored"
    assert told("sessions", "follow", session, "--to-end", "--json", "--from", "-2").lines == stored[-2:]


def test_a_readable_stream_shows_calls_results_and_what_is_asked(engine: Engine, told: Told) -> None:
    session = carry(engine, engine.create(body(), agent="cashier").session)
    text = told("sessions", "follow", session, "--to-end", "--text").out
    assert "calls       pay(amount=7)" in text
    assert re.search(r"asks        Pay .*7.* \[approve / cancel\] req_", text)
    assert "turn        turn_0 waits for people" in text


def test_follow_ends_with_its_session(engine: Engine, told: Told) -> None:
    session = carry(engine, engine.create(body()).session)
    engine.control(session, "reset")
    engine.carry_on(session)
    assert "session.completed" in told("sessions", "follow", session, "--text").lines[-1]


def test_a_reader_that_has_read_enough_is_no_failure(engine: Engine, url: str) -> None:
    session = carry(engine, engine.create(body()).session)
    # Buffered, as everywhere but in tests: what is short is written when all is over.
    env = {**environment(url, ""), "PYTHONUNBUFFERED": ""}
    for words in (("list",), ("follow", session, "--to-end")):
        process = subprocess.Popen(
            command("sessions", *words), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with process.stderr as errors:
            assert errors.read() == b""
        assert process.wait(30) == 0


def test_ctrl_c_ends_a_stream_that_is_followed(engine: Engine, url: str, run: Run) -> None:
    session = carry(engine, engine.create(body()).session)
    process = run("sessions", "follow", session, env=environment(url, "")).says("session.waiting")
    process.signal(signal.SIGINT)
    assert process.ends() == 130
    assert "Traceback" not in process.log


def test_what_comes_is_followed_live(engine: Engine, url: str, run: Run) -> None:
    session = carry(engine, engine.create(body()).session)
    process = run("sessions", "follow", session, "--text", env=environment(url, "")).says("waits for the next message")
    engine.deliver(session, body("Still there?"))
    carry(engine, session)
    process.says("message     Still there?").says("turn_1 completed")
    assert process.running


def test_nothing_of_the_app_is_needed_to_look(url: str, told: Told) -> None:
    engine = Engine(shop, Settings(url=url))
    session = carry(engine, engine.create(body("hello")).session)
    assert "You said hello." in told("sessions", "follow", session, "--to-end", "--text").out
