"""Talks to an agent as any program would: HTTP, and nothing but the standard library. The other examples ask through this.

`WEB_URL` says where the web is (http://127.0.0.1:8000), `WEB_KEY` is a key for it where it wants one.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

URL = os.environ.get("WEB_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("WEB_KEY", "")


def request(path: str, body: object = None) -> urllib.request.Request:
    """A POST where there is a body, else a GET."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {KEY}"} if KEY else {})
    return urllib.request.Request(f"{URL}/v1{path}", content, headers)


def begin(message: object, **beside: object) -> str:
    """A new session with this message: a text, or a list of parts. `beside` are more fields of docs/http.md."""
    with urllib.request.urlopen(request("/session", {"message": message, **beside})) as answer:
        return str(json.load(answer)["sessionId"])


def decide(session: str, request_id: str, option: str) -> None:
    """Answer what a session has asked."""
    body = {"inputResponses": [{"requestId": request_id, "optionId": option}]}
    urllib.request.urlopen(request(f"/session/{session}", body)).close()


def follow(session: str) -> Iterator[dict[str, Any]]:
    """The events of a session as they come, until its turn is over."""
    with urllib.request.urlopen(request(f"/session/{session}/stream")) as lines:
        for line in filter(bytes.strip, lines):
            event = json.loads(line)
            yield event
            if event["type"] in ("session.waiting", "session.failed"):
                return
