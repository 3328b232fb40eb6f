"""The record of a request as it is shown outside the stream: what was asked, of which exact call, who answered, when and what."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.notes import Note, wire


def record(note: Note, *, link: bool = False) -> dict[str, object]:
    """All that is kept of a request. The token of its link opens a door, so it is there only on demand, while it is open."""
    shown: dict[str, object] = {
        **wire(note),
        "turnId": note["turn"],
        "digest": note["digest"],
        "requester": note["requester"],
        "askedMs": note["asked_ms"],
        "expiresMs": note["expires_ms"] or None,
        "state": note["state"],
        "optionId": note.get("option") or None,
        "text": note.get("text") or None,
        "decidedBy": note.get("by"),
        "endedMs": note.get("ended_ms"),
        "answers": [_answer(one) for one in cast("list[dict[str, Any]]", note.get("answers", []))],
    }
    return {**shown, "link": note["link"]} if link and is_open(note) else shown


def is_open(note: Note) -> bool:
    """Whether it still waits for an answer."""
    return bool(note["state"] == "open")


def _answer(said: dict[str, Any]) -> dict[str, object]:
    return {
        "deliveryId": said["delivery"],
        "by": said["by"],
        "atMs": said["at_ms"],
        "optionId": said.get("option") or None,
        "text": said.get("text") or None,
        "says": said["says"],
    }
