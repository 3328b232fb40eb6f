"""`orchestrator sessions`: looking at sessions in the journal, and what an operator does to one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from orchestrator.cli.printed import as_json as json_of
from orchestrator.cli.printed import note, plain, say
from orchestrator.cli.reach import named, reach
from orchestrator.cli.why import Scene, why
from orchestrator.clock import iso
from orchestrator.core.delivery import Control
from orchestrator.core.names import Millis, SessionId
from orchestrator.core.status import Status
from orchestrator.engine import Engine
from orchestrator.errors import BadRequest, JournalAway, SessionNotFound
from orchestrator.journal import View
from orchestrator.notes import Note
from orchestrator.records import is_open, record
from orchestrator.seen import Seen, seen

LOOK_SECONDS = 0.2
AGAIN_SECONDS = 1.0
PAGE = 256
LOOKED_THROUGH = 20_000
"""Sessions among which those of an agent or a status are looked for in one go."""

Place = tuple[SessionId, int]


# list ---------------------------------------------------------------------------------------------------------------------


def list_(limit: int, after: str, agent: str, status: str, *, as_json: bool) -> int:
    """The sessions used last, newest first; `after` a session or a cursor, of an agent, with a status."""
    if status and status not in get_args(Status):
        raise BadRequest(problem=f"{status!r} is no status. There are {', '.join(get_args(Status))}.")
    session, at_ms = _read(after) if after else (None, None)
    engine = reach()
    begin = _place(engine, session, at_ms) if session else None
    wanted = Wanted(limit, agent, status)
    for place, one in _found(engine, begin, wanted):
        if as_json:
            say(json_of({**_fields(one), "lastActivityMs": place[1], "cursor": _cursor(place)}))
        else:
            say(f"{one.session}  {iso(Millis(place[1]))}  {one.status:<18} {plain(one.agent):<16} {one.events} events")
    if wanted.more is not None:
        sys.stdout.flush()
        looked = f"looked through {wanted.looked} sessions; " if wanted.found < limit else ""
        note(f"{looked}there are more: --after {_cursor(wanted.more)}")
    return 0


@dataclass(slots=True)
class Wanted:
    """What is looked for, and how far the search has come: `more` is the last place, if there is something behind it."""

    limit: int
    agent: str
    status: str
    found: int = 0
    looked: int = 0
    more: Place | None = None

    def fits(self, one: Seen) -> bool:
        """Whether this is one of those."""
        return self.agent in ("", one.agent) and self.status in ("", one.status)


def _found(engine: Engine, after: Place | None, wanted: Wanted) -> Iterator[tuple[Place, Seen]]:
    filtered = bool(wanted.agent or wanted.status)
    while True:
        page = engine.reads.sessions(PAGE if filtered else min(PAGE, wanted.limit - wanted.found + 1), after)
        if not page:
            return
        for place, view in zip(page, engine.reads.views([session for session, _ in page]), strict=True):
            if wanted.found == wanted.limit or wanted.looked == LOOKED_THROUGH:
                wanted.more = after
                return
            wanted.looked += 1
            after = place
            if view is not None and wanted.fits(one := seen(view)):
                wanted.found += 1
                yield place, one


def _cursor(place: Place) -> str:
    """A place in the list that stays where it is while its session is used again: ms.id."""
    return f"{place[1]}.{place[0]}"


def _read(text: str) -> tuple[SessionId, int | None]:
    """A cursor, or a session id alone."""
    at, dot, name = text.rpartition(".")
    if dot and not at.isdecimal():
        raise BadRequest(problem=f"{text} is no place in the list: give the cursor of a line, or a session id.")
    return named(name), int(at) if dot else None


def _place(engine: Engine, session: SessionId, at_ms: int | None) -> Place:
    used_ms = engine.reads.used_ms(session) if at_ms is None else at_ms
    if used_ms is None:
        raise SessionNotFound(session=session)
    return session, used_ms


def _fields(one: Seen) -> dict[str, object]:
    """As the HTTP interface has them."""
    return {
        "sessionId": one.session,
        "agent": one.agent,
        "status": one.status,
        "turnId": one.turn or None,
        "events": one.events,
        "waiting": one.waiting,
        "attempt": one.attempt,
        "epoch": one.epoch,
        "createdMs": one.created_ms,
        "deployment": one.deployment,
    }


# show ---------------------------------------------------------------------------------------------------------------------


def show(text: str, *, as_json: bool) -> int:
    """One session: a field a line, the sentence, what it asks people."""
    session = named(text)
    engine = reach()
    view = engine.reads.view(session)
    if view is None:
        raise SessionNotFound(session=session)
    one, requests = seen(view), [note for note in engine.requests(session) if is_open(note)]
    sentence = why(_scene(engine, view, one, requests))
    if as_json:
        say(json_of({**_fields(one), "why": sentence, "requests": [record(note) for note in requests]}))
        return 0
    fields = {
        "session": one.session,
        "agent": plain(one.agent),
        "status": one.status,
        "why": sentence,
        "turn": one.turn or "-",
        "waiting": f"{one.waiting} messages",
        "events": one.events,
        "attempt": one.attempt,
        "epoch": one.epoch,
        "deployment": one.deployment,
        "created": iso(Millis(one.created_ms)),
    }
    for name, value in fields.items():
        say(f"{name:<11}{value}")
    if requests:
        count = len(requests)
        say(f"{'requests':<11}waits for an answer to {count} request{'' if count == 1 else 's'}")
    for asked in requests:
        options = ", ".join(str(option["id"]) for option in asked.get("options") or ())
        say(
            f"{'':<11}{asked['requestId']}  {plain(asked.get('prompt', ''))}{f'  ({plain(options)})' if options else ''}"
        )
    return 0


def _scene(engine: Engine, view: View, one: Seen, requests: list[Note]) -> Scene:
    deployment = engine.reads.deployments().get(one.deployment, {})
    return Scene(
        status=one.status,
        snapshot=engine.reads.snapshot(one.session),
        deployment=one.deployment,
        workers=int(str(deployment.get("workers", 0))),
        requests=requests,
        waiting=one.waiting,
        now_ms=view.now_ms,
        lease_ms=view.number("lease"),
        timer_ms=view.number("next_timer"),
    )


def requests(text: str) -> int:
    """What a session has asked people and who has answered, one JSON object a line. Links are not in it: it is to be kept."""
    session = named(text)
    for asked in reach().requests(session):
        say(json_of(record(asked)))
    return 0


# follow -------------------------------------------------------------------------------------------------------------------


def follow(text: str, first: int, *, to_end: bool, as_json: bool | None) -> int:
    """The stream: to somebody who reads along as text, else as it is stored, one JSON object a line. Ends with the session, or at the end
    of what is there."""
    session = named(text)
    engine = reach()
    if first < 0:
        first = max(0, (engine.reads.tail(session) or 0) + first)
    lines = _lines(engine, session, first, to_end=to_end)
    if as_json or (as_json is None and not sys.stdout.isatty()):
        for line in lines:
            if line:
                sys.stdout.write(line.decode() + "\n")
            else:
                sys.stdout.flush()
        return 0
    from orchestrator.cli.reading import Reader

    reader = Reader()
    for line in lines:
        if line:
            reader.show(line)
        sys.stdout.flush()
    reader.close()
    return 0


def _lines(engine: Engine, session: SessionId, index: int, *, to_end: bool) -> Iterator[bytes]:
    """The lines of a stream as they come, and an empty one whenever there is no more for now."""
    said = False
    while True:
        try:
            # Asked before the lines: what ended after this has all its events by the next look.
            life = engine.reads.life(session)
            if life is None:
                raise SessionNotFound(session=session)
            lines = engine.reads.events(session, index)
        except JournalAway as away:
            if to_end:
                raise
            if not said:
                note(f"The journal does not answer ({away.facts.get('reason', '')}); waiting for it.")
            said = True
            time.sleep(AGAIN_SECONDS)
            continue
        said = False
        yield from lines
        index += len(lines)
        if lines:
            yield b""
        elif to_end or life == "ended":
            return
        else:
            time.sleep(LOOK_SECONDS)


# Orders -------------------------------------------------------------------------------------------------------------------


def order(what: str, text: str) -> int:
    """Cancel, clear, compact, reset or erase."""
    session = named(text)
    engine = reach()
    match what:
        case "cancel":
            say(engine.cancel(session).replace("_", " "))
        case "erase":
            engine.erase(session)
            say("erased")
        case "clear" | "compact" | "reset":
            kind: Control = what
            engine.control(session, kind)
            say(f"accepted; what becomes of it: orchestrator sessions follow {session}")
        case _:
            raise AssertionError(what)
    return 0
