"""The message that scripts push is the one that Celery would have pushed."""

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

import tasks
from orchestrator.envelope import RESUME, STEP, TASKS, fill, queue_name, template
from tasks.steps import register
from tasks.worker import Orchestrator
from tests.servers import wait_for
from tests.tasks.conftest import Desk, StartWorker
from tests.tasks.workers import environment

SESSION = "ses_01M8PDT0000000000000000000AB"


@pytest.fixture
def published(url: str, client: "redis.Redis", monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `apply_async` leaves in the queue."""

    def publish(task: str, key: str) -> dict[str, Any]:
        monkeypatch.setenv("ORCHESTRATOR_URL", url)
        app = Orchestrator("golden", set_as_current=False)
        app.config_from_object("celeryconfig")
        register(app, app.here)
        about = f"{SESSION}/{key}"
        ring: Any = app.tasks[task].apply_async
        ring((SESSION, key), task_id=about, argsrepr=about, kwargsrepr="{}", queue="orc.blue")
        app.close()
        text = client.rpop("orc.blue")
        assert isinstance(text, bytes)
        return dict(json.loads(text))

    return publish


def ours(task: str, key: str) -> dict[str, Any]:
    text = fill(template(task), session=SESSION, key=key, queue=queue_name("blue"), number=7, at_ms=1_796_000_000_000)
    return dict(json.loads(text))


@pytest.mark.parametrize("task", TASKS)
def test_a_message_is_what_apply_async_would_have_put_there(task: str, published: Any) -> None:
    theirs, mine = published(task, "turn_0/1"), ours(task, "turn_0/1")

    assert mine.pop("wake") == {"number": 7, "at": 1_796_000_000_000}
    assert mine.keys() == theirs.keys()
    # base64 is for bodies that are no text; ours is text, and a third shorter without.
    assert theirs["properties"].pop("body_encoding") == "base64"
    assert json.loads(mine.pop("body")) == json.loads(base64.b64decode(theirs.pop("body")))
    # Each message has a tag of its own; ours says which wake it is.
    assert mine["properties"].pop("delivery_tag") == f"{SESSION}.7"
    assert theirs["properties"].pop("delivery_tag")
    # Who wrote it: a process there, whichever script here. Nothing waits for an answer.
    assert mine["headers"].pop("origin") == "orchestrator"
    assert theirs["headers"].pop("origin")
    assert mine["properties"].pop("reply_to") == ""
    assert theirs["properties"].pop("reply_to")
    # Celery hands options it does not know on to the transport, beside using them: two copies nobody reads.
    assert theirs["properties"].pop("argsrepr") == mine["headers"]["argsrepr"]
    assert theirs["properties"].pop("kwargsrepr") == mine["headers"]["kwargsrepr"]
    assert mine == theirs


def test_a_message_pushed_by_a_script_is_the_filled_template(desk: Desk, client: "redis.Redis") -> None:
    session = desk.say("hello")

    text = client.lindex("orc.default", 0)
    assert isinstance(text, bytes)
    found = json.loads(text)
    key = found["headers"]["id"].partition("/")[2]
    number, at = found["wake"]["number"], found["wake"]["at"]
    expected = fill(template(RESUME), session=session, key=key, queue="orc.default", number=number, at_ms=at)
    assert text.decode() == expected


def test_nothing_a_person_said_is_in_a_message(desk: Desk, client: "redis.Redis") -> None:
    desk.say("the secret is swordfish")
    assert b"swordfish" not in str(client.lrange("orc.default", 0, -1)).encode()


def test_workers_take_it_and_tell_about_it_under_our_name(
    desk: Desk, start: StartWorker, url: str, client: "redis.Redis"
) -> None:
    process = start("-E")
    with watching(url, client) as seen:
        session = desk.say("the secret is swordfish")
        wait_for(lambda: any(event["type"] == "task-succeeded" for event in seen))

    told = [event for event in seen if event["type"].startswith("task-")]
    assert [event["type"] for event in told[:3]] == ["task-received", "task-started", "task-succeeded"]
    assert {event["uuid"].partition("/")[0] for event in told} == {session}
    received = told[0]
    assert received["name"] == RESUME
    assert received["args"].startswith(f"{session}/dlv_")
    assert "swordfish" not in json.dumps(seen, default=str)
    assert "Traceback" not in process.log
    assert "ERROR" not in process.log


@contextmanager
def watching(url: str, client: "redis.Redis") -> Iterator[list[dict[str, Any]]]:
    """What the workers tell about their tasks, as Flower hears it."""
    seen: list[dict[str, Any]] = []
    app = Celery("watcher", broker=url, set_as_current=False)
    over = threading.Event()

    def watch() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": seen.append})
            while not over.is_set():
                with suppress(OSError):
                    receiver.capture(limit=None, timeout=2.0, wakeup=False)

    before = client.pubsub_numpat()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        wait_for(lambda: client.pubsub_numpat() > before, what="the watcher's subscription")
        yield seen
    finally:
        over.set()
        thread.join(10)
        app.close()


def test_the_tasks_are_registered_under_their_names() -> None:
    assert (tasks.step.name, tasks.resume.name) == (STEP, RESUME)
    for task in (tasks.step, tasks.resume):
        assert task.acks_late
        assert task.ignore_result
        assert task.typing


def test_importing_tasks_connects_to_nothing(tmp_path: Path) -> None:
    code = "import tasks; print(tasks.app.main)"
    env = environment("redis://127.0.0.1:1/0", app="no.such:app")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "tasks"
