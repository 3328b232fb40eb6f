import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

import web
from orchestrator import Agent, App, Channel, Engine, Incoming, ScriptedModel, Settings, StandardWebhook, answers
from orchestrator.channels import ChannelHandle, handle
from orchestrator.core.names import SessionId
from tests.channels.signing import GOOD, signed
from tests.web.support import Http, http_of


class ByText(StandardWebhook):
    """Whose messages are the same when their text begins with the same number: `7: Hello`."""

    def identity(self, incoming: Incoming) -> str:
        number, found, _ = str(incoming.message).partition(":")
        return f"{incoming.address}/{number}" if found else ""


def an_app(*channels: Channel, **more: Any) -> App:
    """An App that answers `ok` to everything."""
    return App([Agent("helper", model=ScriptedModel(lambda _call: answers("ok")))], channels=channels, **more)


class Site:
    """An engine, the routes over it, and what can be seen of both."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.engine = Engine(app, settings)
        self.http: Http = http_of(web.create_app(engine=self.engine))

    def send(self, body: object, id: str = "msg_1", channel: str = "tickets", **more: str) -> Any:
        """A signed webhook."""
        text = json.dumps(body).encode()
        return self.http.post(f"/v1/webhooks/{channel}", data=text, headers={**signed(text, id, by=GOOD), **more})

    def twin(self) -> "Site":
        """Another web process for the same App."""
        return Site(self.engine.app, self.engine.settings)

    def channel(self, name: str) -> ChannelHandle:
        """A channel to talk through from Python, over this site's engine."""
        return handle(self.engine.app, name, self.engine)

    def events(self, session: str) -> list[dict[str, Any]]:
        """The stream."""
        return [json.loads(line) for line in self.engine.reads.events(SessionId(session), 0, 10_000)]

    def run(self, session: str) -> None:
        """Carry a session on until it is parked."""
        for _ in range(50):
            if self.engine.carry_on(SessionId(session)).how in ("parked", "idle", "ended", "gone"):
                return
        raise AssertionError(f"{session} comes to no rest")

    def said(self, session: str) -> list[str]:
        """What people have said to a session."""
        self.run(session)
        return [one["data"]["message"] for one in self.events(session) if one["type"] == "message.received"]

    def sessions(self) -> list[SessionId]:
        """All sessions there are."""
        return [name for name, _ in self.engine.sessions(1000)]

    def close(self) -> None:
        self.engine.close()


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(url: str) -> Iterator[MakeSite]:
    """`make_site(channel, ..., auth=..., api_keys=...)`: a site of its own, on the same journal."""
    made: list[Site] = []

    def make(*channels: Channel, settings: Mapping[str, Any] | None = None, **app: Any) -> Site:
        base = Settings(url=url, allow_anonymous="all")
        made.append(Site(an_app(*channels, **app), replace(base, **(settings or {}))))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    """A site with the channel `tickets`."""
    return make_site(ByText("tickets", secrets=[GOOD]))


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What they answer, begun at the same moment on threads of their own."""
    answers: list[Any] = [None] * len(calls)
    ready = threading.Barrier(len(calls))

    def run(place: int, call: Callable[[], Any]) -> None:
        ready.wait(10)
        answers[place] = call()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return answers
