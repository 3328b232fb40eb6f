"""Short commands: what they print, and how they say that something is wrong."""

import json
from pathlib import Path

import pytest

from orchestrator import apikeys
from orchestrator.cli import main
from orchestrator.core.delivery import Response
from tests.cli.conftest import APP, Say
from tests.tasks.conftest import Desk
from tests.tasks.workers import environment, worker


@pytest.mark.parametrize("verb", [("worker",), ("web",), ("dev", "--port", "0")], ids=" ".join)
@pytest.mark.parametrize(
    ("app", "said"),
    [
        (None, "ORCHESTRATOR_APP is not set"),
        ("no.such:app", "there is no module"),
        ("tests.tasks.shop:nothing", "has no 'nothing'"),
        ("tests.tasks.shop:note", "not an App"),
    ],
)
def test_a_missing_or_wrong_app_is_one_line_and_exit_2(
    verb: tuple[str, ...],
    app: str | None,
    said: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ORCHESTRATOR_APP", raising=False)
    assert main([verb[0], *([app] if app else []), *verb[1:]]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_without_a_command_it_helps(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "worker" in capfd.readouterr().err


def test_a_new_key_is_one_that_the_server_recognises(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "shop"]) == 0
    out, err = capfd.readouterr()
    entry = err.split("ORCHESTRATOR_API_KEYS=")[1].split(" ")[0]
    assert apikeys.owner(apikeys.parse(entry), out.strip()) == "shop"
    assert out.strip() not in err


def test_a_new_key_may_be_made_for_less(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "shop", "--scopes", "read, send"]) == 0
    entry = capfd.readouterr().err.split("ORCHESTRATOR_API_KEYS=")[1].split(" ")[0]
    assert [key.scopes for key in apikeys.parse(entry)] == [{"read", "send"}]
    assert main(["keys", "new", "shop", "--scopes", "write"]) == 2
    assert "no scope" in capfd.readouterr().err


def test_a_port_that_is_taken_is_said_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["dev", APP, "--port", str(taken.getsockname()[1])]) == 2
    assert "--port" in capfd.readouterr().err


def test_sessions_can_be_listed_shown_and_followed(say: Say, desk: Desk, url: str, tmp_path: Path) -> None:
    process = worker(tmp_path / "log", environment(url))
    try:
        first = desk.say("hello")
        desk.wait(first)
        second = desk.say("there")
        desk.wait(second)
    finally:
        process.stop()
    listed = say("sessions", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == [second, first]
    assert "idle" in listed[0]
    assert "clerk" in listed[0]
    assert len(say("sessions", "list", "-n", "1").stdout.splitlines()) == 1
    shown = say("sessions", "show", first).stdout
    assert f"session    {first}" in shown
    assert "status     idle" in shown
    events = [json.loads(line)["type"] for line in say("sessions", "follow", first, "--to-end").stdout.splitlines()]
    assert events == desk.events(first)
    some = say("sessions", "follow", first, "--from", "3", "--to-end").stdout.splitlines()
    assert [json.loads(line)["type"] for line in some] == events[3:]


def test_a_session_can_be_cleared_ended_and_erased(say: Say, desk: Desk, url: str, tmp_path: Path) -> None:
    process = worker(tmp_path / "log", environment(url))
    try:
        session = desk.say("hello")
        desk.wait(session, "session.waiting")
        for control, event in (("clear", "context.cleared"), ("reset", "session.completed")):
            assert say("sessions", control, session).stdout.startswith("accepted")
            desk.wait(session, event)
    finally:
        process.stop()
    assert say("sessions", "compact", session).stderr.startswith(f"{session} takes no more messages")
    assert "ended" in say("sessions", "show", session).stdout
    assert say("sessions", "erase", session).stdout.strip() == "erased"
    assert "Session not found" in say("sessions", "show", session).stderr


def test_a_turn_can_be_cancelled(say: Say, desk: Desk, url: str, tmp_path: Path) -> None:
    session = desk.say("hello")
    assert say("sessions", "cancel", session).stdout.strip() == "cancelling"
    process = worker(tmp_path / "log", environment(url))
    try:
        desk.wait(session, "session.waiting")
    finally:
        process.stop()
    assert "message.completed" not in desk.events(session)
    assert say("sessions", "cancel", session).stdout.strip() == "nothing runs"


@pytest.mark.parametrize("verb", ["show", "follow", "cancel"])
@pytest.mark.parametrize("session", ["nonsense", "ses_01M8PDT0000000000000000000AB"])
def test_a_session_that_is_not_there_is_one_line(verb: str, session: str, say: Say) -> None:
    done = say("sessions", verb, session)
    assert done.returncode == 2
    assert session in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_a_session_asks_is_shown_and_exported(say: Say, desk: Desk, url: str, tmp_path: Path) -> None:
    process = worker(tmp_path / "log", environment(url))
    try:
        session = desk.say("sign it")
        desk.wait(session, "turn.waiting")
        assert "waits for an answer to 1 request\n" in say("sessions", "show", session).stdout
        [request] = map(json.loads, say("sessions", "requests", session).stdout.splitlines())
        assert (request["state"], request["action"]["toolName"]) == ("open", "sign")
        assert "link" not in request
        desk.engine.answer(session, [Response(request["requestId"], "approve")])
        desk.wait(session, "session.waiting")
    finally:
        process.stop()
    [request] = map(json.loads, say("sessions", "requests", session).stdout.splitlines())
    assert (request["state"], request["optionId"]) == ("approved", "approve")
    assert "requests" not in say("sessions", "show", session).stdout
