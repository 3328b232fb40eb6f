"""What docs/channels.md says is so, and the example works."""

import hashlib
import hmac
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import web
from examples import webhooks
from orchestrator import App, Settings
from orchestrator.channels import Channel, handle
from tests.channels.conftest import MakeSite, Site
from tests.channels.signing import GOOD, signed

PAGE = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()
BLOCKS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
HELPDESK = """
comments = {}

def comment(address, message, *, key):
    comments[key] = (address, message)
"""


@pytest.fixture
def modules(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The blocks as modules that can be imported, on the journal of the test."""
    for name, text in {**BLOCKS, "helpdesk": HELPDESK}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TICKETS_SECRETS", GOOD)
    monkeypatch.setenv("ORCHESTRATOR_URL", url)
    yield tmp_path
    for name in (*BLOCKS, "helpdesk"):
        sys.modules.pop(name, None)


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def site_of(app: App, url: str) -> Site:
    return Site(app, Settings(url=url, allow_anonymous="all"))


def test_every_block_is_named_and_short_enough() -> None:
    assert list(BLOCKS) == ["desk", "chat", "anywhere", "alias"]
    lines = [line for line in BLOCKS["desk"].splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_channel_of_fifteen_lines_answers_a_webhook(modules: Path, url: str) -> None:
    desk, helpdesk = load("desk"), load("helpdesk")
    site = site_of(desk.app, url)
    (example,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    answer = site.send(json.loads(example))
    assert answer.status_code == 202
    site.run(answer.get_json()["sessionId"])
    assert list(helpdesk.comments.values()) == [("ticket-1007", "It is on its way.")]
    (key,) = helpdesk.comments
    assert re.fullmatch(r"ses_\w+/evt_\w+/comment", key)
    site.close()


def test_the_chat_channel_does_what_its_comments_say(modules: Path, make_site: MakeSite) -> None:
    chat: Channel = load("chat").chat
    site = make_site(chat)

    def post(said: dict[str, str], secret: bytes = b"the chat's secret") -> tuple[int, dict[str, str]]:
        body = json.dumps(said).encode()
        signature = hmac.new(secret, body, hashlib.sha256).hexdigest()
        answer = site.http.post("/v1/webhooks/chat", data=body, headers={"x-chat-signature": signature})
        return answer.status_code, answer.get_json()

    place = {"room": "r", "thread": "7"}
    hello = {"type": "message", "user": "ada", "text": "Hi", "event_id": "e1", **place}
    assert post({"type": "url_verification", "challenge": "c"}) == (200, {"challenge": "c"})
    assert post({"type": "typing"}) == (200, {"ok": True, "status": "ignored"})
    assert post(hello, b"another")[0] == 401
    status, first = post(hello)
    assert status == 202
    assert post(hello) == (202, first)
    assert post({"type": "thread_closed", **place})[1]["status"] == "reset"
    assert handle(site.engine.app, "chat", site.engine).resolve("r:7") is None


def test_the_other_blocks_run_as_they_stand(modules: Path) -> None:
    load("anywhere")
    load("alias")


def test_the_example_takes_what_its_help_desk_signs(make_site: MakeSite, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(webhooks.app, make_site().engine.settings)
    body = json.dumps({"address": "ticket-1", "message": "Where is B-1006?"}).encode()
    answer = site.http.post("/v1/webhooks/tickets", data=body, headers=dict(webhooks.signed(body, "msg_1")))
    assert answer.status_code == 202
    site.run(answer.get_json()["sessionId"])
    assert any("B-1006" in record.message for record in caplog.records if record.name == webhooks.__name__)
    refused = site.http.post("/v1/webhooks/tickets", data=body, headers=signed(body, by=GOOD))
    assert refused.status_code == 401
    site.close()


def test_every_route_of_channels_is_on_the_page() -> None:
    rows = set(re.findall(r"^\| (GET|POST) \| `(\S+)` \| yes \|", PAGE, re.MULTILINE))
    real = {
        (method, rule.rule.removeprefix("/v1").replace("orc_address:", ""))
        for rule in web.create_app(webhooks.app).url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.rule.startswith(("/v1/channels", "/v1/webhooks"))
    }
    assert rows == real
