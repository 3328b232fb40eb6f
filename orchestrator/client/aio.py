"""The client for asyncio: as `sync`, with other verbs for sending and waiting."""

from __future__ import annotations

import time
from asyncio import sleep
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from inspect import isawaitable
from random import random
from typing import Any, Self, TypeVar, Unpack
from uuid import uuid4

import httpx2

from orchestrator.client import asks, flows
from orchestrator.client.asks import Ask, Beside, Json, Message
from orchestrator.client.credentials import AsyncAuth, headers
from orchestrator.client.errors import SessionNotFound
from orchestrator.client.events import Event
from orchestrator.client.flows import Flow
from orchestrator.client.following import Following
from orchestrator.client.http import BROKEN, LIMITS, asking, base_of, headers_of, opening, reply_of, unanswered
from orchestrator.client.retrying import Done, Patience, Pause, Trying, Unanswered
from orchestrator.client.turns import Outcome, Watch
from orchestrator.client.values import Answer, Health, RequestRecord, SessionRecord, SessionSeen

T = TypeVar("T")


class AsyncClient:
    """A server, from outside. Threads may share one; `close` it, or use it in a `with`.

    auth:             an API key or token; (name, password); or a function that gives a token, or headers, before each request
    patience:         for how long a server that does not answer is asked again
    timeout_seconds:  of one try of a request; the server answers within six
    quiet_seconds:    a stream that says nothing for so long is read over another connection; the server says something every ten
    http:             an `httpx2.AsyncClient` of yours (certificates, proxies), which stays yours to close
    """

    def __init__(
        self,
        url: str,
        *,
        auth: AsyncAuth | None = None,
        patience: Patience = Patience(),  # noqa: B008  # a value
        timeout_seconds: float = 10.0,
        quiet_seconds: float = 15.0,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        self._base = base_of(url)
        self._auth = auth
        self._patience = patience
        self._timeout_seconds = timeout_seconds
        self._quiet_seconds = quiet_seconds
        self._http = http or httpx2.AsyncClient(limits=LIMITS)
        self._ours = http is None

    async def close(self) -> None:
        """Close its connections. Streams that are read over them end."""
        if self._ours:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Sessions ---------------------------------------------------------------------------------------------------------

    async def start(
        self,
        message: Message,
        *,
        agent: str = "",
        may_ask: bool = True,
        operation: str = "",
        **beside: Unpack[Beside],
    ) -> AsyncTurn:
        """A new session with its first message: the turn of it, whose `session` is the session.

        `operation`: your own name for this start. Whoever says it again gets the session of the first time, and nothing is sent again;
        callers without a name cannot use it. Without `may_ask` the session asks nobody for approval.
        """
        key = beside.get("key") or uuid4().hex
        named = self._auth is not None
        begun = await self._run(
            flows.start(message, beside, key=key, agent=agent, may_ask=may_ask, operation=operation, named=named)
        )
        return AsyncTurn(AsyncSession(self, begun.session, 0), begun.delivery, 0)

    async def create(self, *, agent: str = "", may_ask: bool = True, operation: str = "") -> AsyncSession:
        """A new session without a message."""
        key, named = uuid4().hex, self._auth is not None
        flow = flows.create(key=key, agent=agent, may_ask=may_ask, operation=operation, named=named)
        return AsyncSession(self, await self._run(flow), 0)

    def session(self, session_id: str, cursor: int = 0) -> AsyncSession:
        """A session that is there already; nobody is asked. `cursor`: how many of its events are known, so that turns are not looked
        for among those."""
        return AsyncSession(self, session_id, cursor)

    async def sessions(self, limit: int = 100) -> tuple[SessionSeen, ...]:
        """The sessions used last, newest first; of a user those they take part in."""
        return await self._do(asks.sessions(limit))

    def address(self, channel: str, address: str) -> AsyncAddress:
        """A conversation of a channel; nobody is asked."""
        return AsyncAddress(self, channel, address)

    # The server -------------------------------------------------------------------------------------------------------

    async def health(self) -> Health:
        """Whether the server can do its work, now: it is asked once. Raises `ServerAway` when there is no answer."""
        return await self._do(asks.health())

    async def info(self) -> Json:
        """What the server offers: its agent and tools."""
        return await self._do(asks.info())

    # Sending ----------------------------------------------------------------------------------------------------------

    async def _shown(self) -> Json:
        given = self._auth() if callable(self._auth) else self._auth
        shown = await given if isawaitable(given) else given
        return {} if shown is None else headers(shown)

    async def _do(self, ask: Ask[T]) -> T:
        trying = Trying(ask, self._patience, time.monotonic())
        while True:
            came: asks.Reply | Unanswered
            try:
                came = reply_of(
                    await self._http.request(**asking(self._base, ask, await self._shown(), self._timeout_seconds))
                )
            except BROKEN as broken:
                came = unanswered(broken)
            match trying.settle(came, time.monotonic(), random()):
                case Done(value=value):
                    return value
                case Pause(seconds=seconds):
                    await sleep(seconds)

    async def _run(self, flow: Flow[T]) -> T:
        try:
            ask = next(flow)
            while True:
                try:
                    answer = await self._do(ask)
                except Exception as error:
                    ask = flow.throw(error)
                else:
                    ask = flow.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # the flow says what

    def _following(self, start: int, **how: Any) -> Following:
        quiet, patience = self._quiet_seconds, self._patience
        return Following(start, time.monotonic(), quiet_seconds=quiet, patience=patience, **how)

    async def _follow(self, place: str, following: Following) -> AsyncGenerator[Event, None]:
        while (due := following.due(time.monotonic(), random())) is not None:
            if isinstance(due, Pause):
                await sleep(due.seconds)
                continue
            broken = None
            try:
                async with self._http.stream(
                    **opening(self._base, place, due, await self._shown(), self._timeout_seconds)
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        following.refused(reply_of(response), time.monotonic())
                        continue
                    following.opened(headers_of(response))
                    async for data in response.aiter_bytes():
                        following.took(data, time.monotonic())
                        while (event := following.next()) is not None:
                            yield event
                        if following.resting or following.over:
                            break
            except BROKEN as error:
                broken = unanswered(error)
            following.ended(time.monotonic(), broken)


class AsyncSession:
    """One session. `cursor` is how many of its events were seen through this handle: begin there to go on."""

    def __init__(self, client: AsyncClient, session_id: str, cursor: int) -> None:
        self.client = client
        self.id = session_id
        self.cursor = cursor
        self._place = asks.of_session(session_id)

    def __repr__(self) -> str:
        return f"AsyncSession({self.id!r}, cursor={self.cursor})"

    async def send(self, message: Message, **beside: Unpack[Beside]) -> AsyncTurn:
        """A message: the turn that uses it. It is stored when this returns, and only once, however often it was sent on the way."""
        # Before it is sent. Under a key of the caller's own it may have been sent long ago, and be anywhere.
        start = 0 if beside.get("key") else self.cursor
        sent = await self.client._do(asks.send(self._place, message, beside, key=beside.get("key") or uuid4().hex))
        return AsyncTurn(self, sent.delivery, start)

    def turn(self, delivery_id: str, start: int = 0) -> AsyncTurn:
        """The turn of a message that was sent before. It is looked for from event `start` on."""
        return AsyncTurn(self, delivery_id, start)

    async def answer(self, *answers: Answer, key: str = "") -> str:
        """Answer requests. It is stored when this returns; the stream says what it did. Returns its delivery id."""
        return (await self.client._do(asks.answer(self._place, answers, key=key or uuid4().hex))).delivery

    async def cancel(self, turn_id: str = "") -> str:
        """Stop this turn, or whichever is open: `cancelling`, `other_turn` or `nothing_runs`. Without a turn it is never sent twice: when
        the answer is lost it raises `ServerAway`."""
        return await self.client._do(asks.cancel(self._place, turn_id))

    async def clear(self) -> bool:
        """The model forgets what was said, as soon as no turn is open. False: there is no such session, or it has ended. Never sent
        twice, as `cancel`."""
        return await self.client._do(asks.clear(self._place))

    async def compact(self) -> bool:
        """What was said is summed up, as soon as no turn is open. False: there is no such session, or it has ended."""
        return await self.client._do(asks.compact(self._place))

    async def reset(self, reason: str = "") -> bool:
        """End the session; its stream can still be read. False: there is none, or it has ended already."""
        return await self.client._do(asks.reset(self._place, reason))

    async def erase(self) -> None:
        """Leave nothing of the session."""
        await self.client._do(asks.erase(self._place))

    async def show(self) -> SessionRecord:
        """The session as it is now."""
        return await self.client._do(asks.show(self._place))

    async def requests(self, *, open_only: bool = False) -> tuple[RequestRecord, ...]:
        """What the session has asked people, oldest first, and what became of it."""
        return await self.client._do(asks.requests(self._place, open_only=open_only))

    def events(self, start: int = 0, *, follow: bool = True, timeout: float | None = None) -> AsyncIterator[Event]:
        """The events from index `start` on, and those that come, until the session ends. A negative start counts from the end.

        Without `follow` it ends behind the last event that is there when it begins. Lost connections are made again; raises
        `ServerAway` when the client's patience is over, `TookTooLong` when `timeout` seconds are.
        """
        following = self.client._following(start, follow=follow, timeout=timeout)
        return self._seen(following)

    async def _seen(self, following: Following) -> AsyncGenerator[Event, None]:
        async with aclosing(self.client._follow(self._place, following)) as told:
            async for event in told:
                self.cursor = max(self.cursor, event.index + 1)
                yield event


class AsyncTurn:
    """What becomes of one message. Iterate `events`, or ask for the `result`, or both, in any order: each event is read once.

    `turn_id` is None until the message is used.
    """

    def __init__(self, session: AsyncSession, delivery_id: str | None, start: int) -> None:
        self.session = session
        self._watch = Watch(session.id, delivery_id, start)

    def __repr__(self) -> str:
        return f"AsyncTurn({self.session.id!r}, {self.delivery_id!r})"

    @property
    def delivery_id(self) -> str | None:
        """The id of the message. Of one that began its session it is known from the first event on."""
        return self._watch.delivery

    @property
    def turn_id(self) -> str | None:
        """The turn that uses the message."""
        return self._watch.turn_id

    async def events(self, timeout: float | None = None) -> AsyncIterator[Event]:
        """The events of this turn that were not read yet, until it is over or waits for people. Go on with another call."""
        watch = self._watch
        watch.go_on()
        async with aclosing(self._read(watch, timeout, "The end of the turn")) as told:
            async for event in told:
                yield event

    async def result(self, timeout: float | None = None) -> Outcome:
        """How the turn ended, or that it waits for people. After a wait that was told, it waits for what comes next.

        Raises `TookTooLong` after `timeout` seconds, which stops nothing.
        """
        if not self._watch.has_news:
            async for _ in self.events(timeout):
                pass
        return self._watch.tell()

    async def text(self, timeout: float | None = None) -> str:
        """The answer, when it is complete. Raises `NoAnswer` when the turn failed, was cancelled, or waits for people."""
        return (await self.result(timeout)).answer()

    async def answer(self, *answers: Answer, key: str = "") -> None:
        """Answer what the turn asks; `result` then waits for what comes of it."""
        await self.session.answer(*answers, key=key)
        self._watch.go_on()

    async def cancel(self, timeout: float | None = None) -> str:
        """Stop this turn and no other: `cancelling`, `other_turn` (it is over), `nothing_runs`. Waits until the message is used."""
        watch = self._watch
        if watch.turn_id is None and not watch.over:
            watch = watch.ahead()
            async with aclosing(self._read(watch, timeout, "The turn")) as told:
                async for _ in told:
                    if watch.turn_id is not None:
                        break
        return "nothing_runs" if watch.turn_id is None else await self.session.cancel(watch.turn_id)

    async def _read(self, watch: Watch, timeout: float | None, what: str) -> AsyncGenerator[Event, None]:
        if watch.over:
            return
        following = self.session.client._following(watch.cursor, timeout=timeout, what=what)
        async with aclosing(self.session._seen(following)) as told:
            async for event in told:
                ours = watch.take(event, following.tail)
                if ours:
                    yield event
                if watch.stops:
                    return


class AsyncAddress:
    """A conversation of a channel, by its address. A message goes to the session that has the address now, or begins one."""

    def __init__(self, client: AsyncClient, channel: str, address: str) -> None:
        self.client = client
        self.channel = channel
        self.address = address
        self._place = asks.of_address(channel, address)
        self._known: AsyncSession | None = None

    def __repr__(self) -> str:
        return f"AsyncAddress({self.channel!r}, {self.address!r})"

    async def send(self, message: Message, **beside: Unpack[Beside]) -> AsyncTurn:
        """A message: the turn that uses it. As `AsyncSession.send`."""
        known = self._known
        start = 0 if beside.get("key") or known is None else known.cursor
        sent = await self.client._do(asks.send(self._place, message, beside, key=beside.get("key") or uuid4().hex))
        session = self._session(sent.session)
        return AsyncTurn(session, sent.delivery, start if session is known else 0)

    async def answer(self, *answers: Answer, key: str = "") -> str:
        """Answer requests of the session that has the address. Returns the delivery id."""
        return (await self.client._do(asks.answer(self._place, answers, key=key or uuid4().hex))).delivery

    async def cancel(self, turn_id: str = "") -> str:
        """Stop a turn: `cancelling` (the session was told) or `nothing_runs`. As `AsyncSession.cancel`."""
        return await self.client._do(asks.cancel(self._place, turn_id))

    async def clear(self) -> bool:
        """As `AsyncSession.clear`. False: no live session has the address."""
        return await self.client._do(asks.clear(self._place))

    async def compact(self) -> bool:
        """As `AsyncSession.compact`. False: no live session has the address."""
        return await self.client._do(asks.compact(self._place))

    async def reset(self, reason: str = "") -> bool:
        """End the session; the next message begins another. Never sent twice, as `AsyncSession.cancel`. False: no live session has it."""
        return await self.client._do(asks.reset(self._place, reason))

    async def session(self) -> AsyncSession | None:
        """The live session that has the address now."""
        try:
            return self._session(await self.client._do(asks.resolve(self._place)))
        except SessionNotFound:
            return None

    def _session(self, session_id: str) -> AsyncSession:
        if self._known is None or self._known.id != session_id:
            self._known = AsyncSession(self.client, session_id, 0)
        return self._known
