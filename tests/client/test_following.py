"""Reading a stream, whatever becomes of its connections. The server is made up here, and so is the time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.client.asks import Reply
from orchestrator.client.errors import Forbidden, ServerAway, SessionNotFound, StreamBroken, TookTooLong
from orchestrator.client.events import Event
from orchestrator.client.following import Following, Open
from orchestrator.client.retrying import Patience, Pause, Unanswered
from tests.client.logs import LEASE, Log


@dataclass
class Fate:
    """What becomes of one connection. `cut`: after so many bytes; `grows`: so many events are written meanwhile."""

    kind: str = "serves"
    cut: int | None = None
    piece: int = 1000
    grows: int = 0


@dataclass
class Server:
    """Serves a log to one reader, as its connections are fated; when there are no more fates, all of it and in order."""

    lines: list[bytes]
    there: int
    fates: list[Fate] = field(default_factory=list)
    now: float = 0.0
    opened: list[dict[str, str]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    opens: Callable[[int], None] = lambda opened: None
    waits: bool = False
    """A session that is not over says nothing more, until the reader has had enough."""

    def read(self, following: Following) -> Iterator[Event]:
        """A shell, as there are two in the product."""
        while (due := following.due(self.now, 0.5)) is not None:
            if isinstance(due, Pause):
                self.pauses.append(due.seconds)
                self.now += due.seconds
                continue
            self.opened.append(dict(due.query))
            self.opens(len(self.opened))
            fate = self.fates.pop(0) if self.fates else Fate(grows=len(self.lines))
            if fate.kind == "away":
                following.ended(self.now, Unanswered("ConnectError: refused", False))
                continue
            if fate.kind == "busy":
                body = {"ok": False, "code": "too_many_streams", "error": "Try again."}
                following.refused(Reply(503, {"retry-after": "1"}, json.dumps(body).encode()), self.now)
                continue
            yield from self._serve(following, due, fate)

    def _serve(self, following: Following, due: Open, fate: Fate) -> Iterator[Event]:
        tail, start = self.there, int(due.query["startIndex"])
        first = start if start >= 0 else max(tail + start, 0)
        bounded = due.query.get("follow") == "false"
        following.opened({"x-eve-stream-tail-index": str(tail - 1)})
        self.there = min(self.there + fate.grows, len(self.lines))
        body = b"\n" + b"\n".join(line.rstrip() for line in self.lines[first : tail if bounded else self.there])
        body += b"\n\n" + (LEASE if fate.kind == "lease" else b"")
        body = body[: fate.cut] if fate.cut is not None else body
        for place in range(0, len(body), fate.piece):
            following.took(body[place : place + fate.piece], self.now)
            while (event := following.next()) is not None:
                yield event
            if following.resting or following.over:
                following.ended(self.now)
                return
        if fate.cut is None and self.waits and not bounded and fate.kind == "serves":
            self.now += due.quiet_seconds
            following.ended(self.now, Unanswered("ReadTimeout: ", True))
            return
        following.ended(self.now, Unanswered("ReadError: cut", True) if fate.cut is not None else None)


def story(turns: int = 3, ended: bool = True) -> Log:
    log = Log()
    for turn in range(turns):
        log.begin(f"dlv_{turn}").says("one two three").ends()
    return log.add("session.completed", {}) if ended else log


def ids(events: list[Event]) -> list[tuple[int, str]]:
    return [(event.index, event.id) for event in events]


fates = st.lists(
    st.builds(
        Fate,
        kind=st.sampled_from(["serves", "serves", "lease", "away", "busy"]),
        cut=st.none() | st.integers(0, 3000),
        piece=st.sampled_from([1, 7, 100, 4096]),
        grows=st.integers(0, 8),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(fates=fates, start=st.integers(-40, 40), there=st.integers(0, 31))
def test_every_event_comes_once_and_in_its_place_whatever_becomes_of_the_connections(
    fates: list[Fate], start: int, there: int
) -> None:
    log = story()
    server = Server(log.lines(), there, fates)
    first = start if start >= 0 else None
    told = list(server.read(Following(start, 0.0)))
    # A start that counts from the end is counted when the first connection opens.
    begin = first if first is not None else told[0].index if told else len(log.events)
    assert ids(told) == ids(log.read()[begin:])


@settings(max_examples=100, deadline=None)
@given(fates=fates, start=st.integers(-40, 40), there=st.integers(0, 30))
def test_a_bounded_reading_ends_with_what_was_there_when_it_began(fates: list[Fate], start: int, there: int) -> None:
    log = story(ended=False)
    server = Server(log.lines(), there, fates)
    began = next((there for fate in [*fates, Fate()] if fate.kind not in ("away", "busy")), there)
    told = list(server.read(Following(start, 0.0, follow=False)))
    begin = start if start >= 0 else max(began + start, 0)
    assert ids(told) == ids(log.read()[begin:began])
    assert all(query["follow"] == "false" for query in server.opened)


def test_a_lease_is_followed_by_another_connection_without_a_pause() -> None:
    log = story()
    server = Server(log.lines(), 5, [Fate("lease"), Fate("lease", grows=3)])
    assert ids(list(server.read(Following(0, 0.0)))) == ids(log.read())
    assert [query["startIndex"] for query in server.opened] == ["0", "5", "8"]
    assert server.pauses == []


def test_pauses_double_without_progress_and_begin_anew_with_it() -> None:
    log = story()
    refused = [Fate("away")] * 6
    server = Server(log.lines(), 5, [*refused, Fate(grows=1, cut=1500), *refused])
    assert ids(list(server.read(Following(0, 0.0)))) == ids(log.read())
    assert server.pauses[:6] == pytest.approx([0.1875, 0.375, 0.75, 1.5, 3.0, 3.0])
    assert server.pauses[6:8] == pytest.approx([0.1875, 0.375])


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    server = Server(story().lines(), 5, [Fate("busy")])
    list(server.read(Following(0, 0.0)))
    assert server.pauses == [1.0]


def test_half_a_line_is_forgotten_and_read_again() -> None:
    log = story()
    whole = len(b"".join(log.lines()[:2])) + 1
    server = Server(log.lines(), 31, [Fate(cut=whole + 40)])
    assert ids(list(server.read(Following(0, 0.0)))) == ids(log.read())
    assert [query["startIndex"] for query in server.opened] == ["0", "2"]


def test_a_quiet_session_is_followed_for_as_long_as_it_lives() -> None:
    log = story(ended=False)
    known = len(log.events)
    server = Server(log.lines(), known, waits=True)
    told = server.read(Following(0, 0.0))
    assert ids([next(told) for _ in range(known)]) == ids(log.read())

    def wakes(opened: int) -> None:
        if opened == 100:
            log.begin("dlv_late")
            server.lines, server.there = log.lines(), len(log.events)

    server.opens = wakes
    assert next(told).index == known
    assert server.now > 99 * 15


@pytest.mark.parametrize("start", [29, 30, 31, 32, 50])
def test_who_reads_on_behind_the_end_of_an_ended_session_is_not_kept_waiting(start: int) -> None:
    log = story()
    assert len(log.events) == 32
    server = Server(log.lines(), 32)
    assert [event.index for event in server.read(Following(start, 0.0))] == [*range(start, 32)]
    assert len(server.opened) <= 2


def test_who_reads_on_at_the_end_of_a_session_that_lives_sees_nothing_twice() -> None:
    log = story(ended=False)
    there = len(log.events)
    server = Server(log.lines(), there, [Fate()] * 5)

    def grows(opened: int) -> None:
        if opened == 4:
            log.add("session.completed", {})
            server.lines = log.lines()

    server.opens = grows
    assert [event.index for event in server.read(Following(there, 0.0))] == [there]


def test_patience_ends_when_no_connection_can_be_made_and_the_error_says_where_to_go_on() -> None:
    log = story()
    server = Server(log.lines(), 3, [Fate(cut=1200), *[Fate("away")] * 1000])
    following = Following(0, 0.0, patience=Patience(seconds=20))
    with pytest.raises(ServerAway, match=r"from event [123] on") as raised:
        list(server.read(following))
    assert f"from event {following.cursor} on" in str(raised.value)
    assert 16 <= server.now <= 20


def test_a_server_that_is_away_for_longer_than_there_is_patience_is_not_waited_for() -> None:
    following = Following(0, 0.0, patience=Patience(seconds=20))
    following.due(0.0, 0.5)
    following.refused(Reply(503, {"retry-after": "3600"}, b""), 0.0)
    with pytest.raises(ServerAway, match="503"):
        following.due(0.0, 0.5)


def test_connections_that_open_and_say_nothing_at_all_are_given_up_too() -> None:
    """The server says something at once: whoever holds that up holds up all of it."""
    following, now, opened = Following(0, 0.0), 0.0, 0

    def read() -> None:
        nonlocal now, opened
        while (due := following.due(now, 0.5)) is not None:
            if isinstance(due, Open):
                opened += 1
                following.opened({})
                now += due.quiet_seconds
                following.ended(now, Unanswered("ReadTimeout: ", True))
            else:
                now += due.seconds

    with pytest.raises(ServerAway, match="ReadTimeout"):
        read()
    assert 3 <= opened <= 6


def test_time_that_the_reader_takes_is_not_time_that_the_server_is_away() -> None:
    log = story()
    server = Server(log.lines(), 31, [Fate(cut=1200), Fate("away")])
    told = server.read(Following(0, 0.0, patience=Patience(seconds=20)))
    assert next(told).index == 0
    server.now += 3600
    assert [event.index for event in told] == [*range(1, len(log.events))]


@pytest.mark.parametrize("timeout", [0.0, 3.0, 20.0, 47.0])
def test_the_time_of_the_caller_is_kept(timeout: float) -> None:
    server = Server(story(ended=False).lines(), 31, waits=True)
    with pytest.raises(TookTooLong, match="The end of the stream") as raised:
        list(server.read(Following(0, 0.0, timeout=timeout)))
    assert isinstance(raised.value, TimeoutError)
    assert timeout <= server.now <= timeout + 1.5


def test_signs_of_life_do_not_make_the_caller_wait_longer() -> None:
    following = Following(0, 0.0, timeout=16.0)
    due = following.due(0.0, 0.5)
    assert isinstance(due, Open)
    assert due.quiet_seconds == 15.0
    following.opened({"x-eve-stream-tail-index": "-1"})
    rests = []
    for at in (0.0, 10.0):
        following.took(b"\n", at)
        rests.append(following.resting)
    assert rests == [False, True]
    following.ended(10.0)
    due = following.due(10.0, 0.5)
    assert isinstance(due, Open)
    assert due.quiet_seconds == 6.0


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(404, "session_not_found", SessionNotFound), (403, "forbidden", Forbidden)],
)
def test_what_the_server_refuses_is_not_asked_again(status: int, code: str, kind: type[Exception]) -> None:
    following = Following(0, 0.0)
    following.due(0.0, 0.5)
    with pytest.raises(kind):
        following.refused(Reply(status, {}, json.dumps({"code": code, "error": "No."}).encode()), 0.0)


@pytest.mark.parametrize("line", [b"<html>", b"[1]", b"{}", b'{"type":7}', b"[" * 100_000])
def test_a_line_that_is_no_event_is_an_error_and_not_skipped(line: bytes) -> None:
    following = Following(4, 0.0)
    following.due(0.0, 0.5)
    following.opened({})
    following.took(line + b"\n", 0.0)
    with pytest.raises(StreamBroken, match="event 4"):
        following.next()


def test_records_of_the_stream_itself_have_no_index() -> None:
    following = Following(0, 0.0)
    following.due(0.0, 0.5)
    following.opened({})
    following.took(b'{"$eve":"something.new"}\n' + story().lines()[0], 0.0)
    event = following.next()
    assert event is not None
    assert (event.index, event.type) == (0, "session.started")


def test_what_stands_behind_the_end_of_a_lease_is_read_again_and_not_twice() -> None:
    lines, following = story().lines(), Following(0, 0.0)
    following.due(0.0, 0.5)
    following.opened({})
    following.took(lines[0] + LEASE + lines[1], 0.0)
    first = following.next()
    assert first is not None
    assert (first.index, following.next(), following.resting) == (0, None, True)
    following.ended(0.0)
    due = following.due(0.0, 0.5)
    assert isinstance(due, Open)
    assert due.query["startIndex"] == "1"
    following.opened({})
    assert following.next() is None


def test_a_start_from_the_end_needs_the_tail() -> None:
    following = Following(-1, 0.0)
    following.due(0.0, 0.5)
    with pytest.raises(StreamBroken, match="tail"):
        following.opened({})
