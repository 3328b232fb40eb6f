"""Files as a provider gets them, and what becomes of those that it does not take."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from orchestrator.core.delivery import File
from orchestrator.models import Layer
from orchestrator.models.files import MOST_TEXT_BYTES, download
from orchestrator.ports import Message, ModelCall, ModelFailure
from tests.fake_openai import error, text
from tests.models.conftest import NAME, Provider, ask, call

PNG = b"\x89PNG..."
CAT = File("image/png", name="cat.png", size=len(PNG), blob="b1")


def asked(layer: Layer, files: Sequence[tuple[File, bytes | str]], session: str = "ses_1") -> ModelCall:
    """A call whose history has one message with these files."""
    said = Message(("Look:", *(file.shown for file, _ in files)), files={n: one for n, (one, _) in enumerate(files, 1)})
    made = call(layer, [layer.read(layer.message_row([said]))], session=session)
    return replace(made, files={file.blob: data for file, data in files})


def content(fake: Any, place: int = 0) -> Any:
    """What the person said, as it came to the provider."""
    return fake.calls[place].messages[-1]["content"]


def told(fake: Any, place: int = 0) -> str:
    """The texts of it."""
    found = content(fake, place)
    return found if isinstance(found, str) else "\n".join(one["text"] for one in found if one["type"] == "text")


def test_a_row_speaks_of_a_file_and_has_no_bytes(layer: Layer) -> None:
    row = layer.message_row([Message(("Look:", CAT.shown), files={1: CAT}), Message(("plain",))])
    message = layer.read(row)
    assert layer.files([message]) == [CAT]
    assert [part.content for part in message.parts][1] == "plain"
    url = replace(CAT, name="", size=0, url="https://example.com/a", channel="desk")
    assert layer.files([layer.read(layer.message_row([Message((url.shown,), files={0: url})]))]) == [url]


def test_a_picture_is_sent_as_a_picture(layer: Layer, provider: Provider) -> None:
    fake = provider([text("A cat.")])
    ask(layer.model(NAME), asked(layer, [(CAT, PNG)]))
    [picture] = [one for one in content(fake) if one["type"] == "image_url"]
    assert picture["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert told(fake) == "Look:\n[file: cat.png (image/png)]"


@pytest.mark.parametrize("media_type", ["text/csv", "application/json", "application/vnd.api+json", "image/svg+xml"])
def test_a_text_is_told_as_text(layer: Layer, provider: Provider, media_type: str) -> None:
    fake = provider([text("ok")])
    file = File(media_type, name="a", blob="b1")
    ask(layer.model(NAME), asked(layer, [(file, "größer".encode() + b"\xff")]))
    assert told(fake) == f"Look:\n[file: a ({media_type})]\ngrößer\ufffd"


def test_a_long_text_is_cut(layer: Layer, provider: Provider) -> None:
    fake = provider([text("ok")])
    ask(layer.model(NAME), asked(layer, [(File("text/plain", blob="b1"), b"x" * (MOST_TEXT_BYTES + 1))]))
    assert told(fake).endswith(f"xx\n[the first {MOST_TEXT_BYTES} of {MOST_TEXT_BYTES + 1} bytes]")


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        (
            File("application/zip", name="a.zip", blob="b1"),
            b"123",
            "[file: a.zip (application/zip), 3 bytes, not shown",
        ),
        (CAT, "its server answered 404", "[file: cat.png (image/png), not shown: its server answered 404]"),
    ],
)
def test_the_model_is_told_of_what_it_cannot_see(
    layer: Layer, provider: Provider, file: File, data: bytes | str, words: str
) -> None:
    fake = provider([text("ok")])
    ask(layer.model(NAME), asked(layer, [(file, data)]))
    assert words in told(fake)


def test_a_file_whose_bytes_were_left_out_is_told_as_such(layer: Layer, provider: Provider) -> None:
    fake = provider([text("ok")])
    other = replace(CAT, blob="b2", name="dog.png")
    made = asked(layer, [(CAT, PNG), (other, PNG)])
    ask(layer.model(NAME), replace(made, files={"b2": PNG}))
    assert "[file: cat.png (image/png), not shown: it is left out here, for there are newer files]" in told(fake)


def test_what_a_model_does_not_take_is_told_it_instead_and_not_sent_again(layer: Layer, provider: Provider) -> None:
    fake = provider([error(400, message="This model has no eyes."), text("A pity."), text("Still.")])
    model = layer.model(NAME)
    assert ask(model, asked(layer, [(CAT, PNG)])).text == "A pity."
    assert "[file: cat.png (image/png), not shown: the model does not take it]" in told(fake, 1)
    assert ask(model, asked(layer, [(CAT, PNG)])).text == "Still."
    assert len(fake.calls) == 3
    assert "image_url" not in str(content(fake, 2))


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
def test_an_error_that_is_not_about_files_stays_one(layer: Layer, provider: Provider, status: int) -> None:
    fake = provider([error(status), text("a retry that nobody asked for")])
    with pytest.raises(ModelFailure):
        ask(layer.model(NAME), asked(layer, [(CAT, PNG)]))
    assert len(fake.calls) == 1


def test_a_request_that_is_wrong_without_files_as_well_fails(layer: Layer, provider: Provider) -> None:
    fake = provider([error(400), error(400), text("ok")])
    model = layer.model(NAME)
    with pytest.raises(ModelFailure):
        ask(model, asked(layer, [(CAT, PNG)]))
    ask(model, asked(layer, [(CAT, PNG)]))
    assert "image_url" in str(content(fake, 2)), "nothing was learned about the file"


# Fetching ---------------------------------------------------------------------------------------------------------------


class Site(BaseHTTPRequestHandler):
    """Answers /<status>/<number of tries it takes>."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        _, status, tries = self.path.split("/")
        found = int(status) if self.asked.count(self.path) < int(tries) or int(tries) == 0 else 200
        self.send_response(found)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Site.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def quickly(url: str, limit: int = 100, *, local: bool = True) -> bytes:
    return await download(url, "image/png", limit, local=local)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(_seconds: float) -> None: ...

    monkeypatch.setattr("orchestrator.models.files._pause", at_once)


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("path", ["200/1", "503/3"])
def test_what_is_behind_a_url_is_fetched_and_a_bad_moment_is_waited_out(site: str, path: str) -> None:
    assert asyncio.run(quickly(f"{site}/{path}")) == b"hello"


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(
    ("path", "limit", "problem", "times"),
    [
        ("404/0", 100, "its server answered 404", 1),
        ("500/0", 100, "its server answered 500", 3),
        ("200/1", 4, "more than 4 bytes", 1),
    ],
)
def test_why_there_is_nothing_is_said(site: str, path: str, limit: int, problem: str, times: int) -> None:
    with pytest.raises(ValueError, match=problem):
        asyncio.run(quickly(f"{site}/{path}", limit))
    assert len(Site.asked) == times


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://localhost/",
    ],
)
def test_private_addresses_are_never_asked(url: str) -> None:
    with pytest.raises(ValueError, match=r"private|metadata|blocked|not allowed"):
        asyncio.run(quickly(url, local=False))
