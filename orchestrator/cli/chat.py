"""`orchestrator chat`: talk to a running system from a terminal, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.cli.printed import note
from orchestrator.cli.talk import COMMANDS, Line, Order, Say, Talk, Unknown
from orchestrator.client import (
    Answer,
    AsyncClient,
    AsyncSession,
    AsyncTurn,
    ClientError,
    ServerAway,
    SessionNotActive,
    SessionNotFound,
    Unauthorized,
)
from orchestrator.errors import ConfigError

REPLAYED = 40
"""Events of a session that are shown again when somebody comes back to it."""
AGAIN_SECONDS = 1.0
Show = Callable[[Iterable[Line]], None]


class Leave(Exception):
    """Whoever types has said goodbye."""


def chat(url: str, *, session: str, agent: str, remember: Path | None) -> int:
    """Talk until Ctrl-D. `remember`: a file with the session of the last time, which is gone on with."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(problem=f"{url!r} is no address of a server.", remedy="Give one like http://127.0.0.1:8000.")
    try:
        return asyncio.run(_chat(url, session, agent, remember))
    except ServerAway:
        note(
            f"Nothing answers at {url}. Start it (`orchestrator dev`, or `orchestrator web` and a worker), or give another address."
        )
        return 1
    except Unauthorized:
        note(
            f"{url} wants a credential that it knows: set CHAT_KEY to a key (`orchestrator keys new NAME` makes one) or a token."
        )
        return 2
    except ClientError as broken:
        note(f"{url}: {broken}")
        return 2


async def _chat(url: str, session: str, agent: str, remember: Path | None) -> int:
    async with AsyncClient(url, auth=os.environ.get("CHAT_KEY") or None) as client:
        if not (await client.health()).ok:
            note(f"{url} answers, but its journal does not. What you say is stored when it does.")
        if session:
            await client.session(session).show()
        elif remember is not None and remember.exists():
            session = await _if_there(client, remember.read_text().strip())
        room = Room(client, session, agent, remember)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return await _from_a_pipe(room)
        from orchestrator.cli.prompt import on_a_terminal

        return await on_a_terminal(room)


async def _if_there(client: AsyncClient, session: str) -> str:
    """A session of before, or nothing if it is gone."""
    try:
        await client.session(session).show()
    except SessionNotFound:
        return ""
    return session


class Room:
    """Which session is talked to, and what typed words do."""

    def __init__(self, client: AsyncClient, session: str, agent: str, remember: Path | None) -> None:
        self.client = client
        self.talk = Talk()
        self.session = client.session(session) if session else None
        self._agent = agent
        self._remember = remember

    def leave_it(self) -> None:
        """What is said next begins another session."""
        self.session, self.talk = None, Talk(ended=self.talk.ended)
        if self._remember is not None:
            self._remember.unlink(missing_ok=True)

    async def say(self, words: str) -> AsyncTurn:
        """A message, which begins a session where there is none (any more)."""
        if self.session is not None and not self.talk.ended:
            with suppress(SessionNotActive):
                return self._said(await self.session.send(words))
        turn = await self.client.start(words, agent=self._agent)
        self.session, self.talk = turn.session, Talk()
        if self._remember is not None:
            self._remember.write_text(turn.session.id)
        return self._said(turn)

    def _said(self, turn: AsyncTurn) -> AsyncTurn:
        self.talk.said(turn.delivery_id)
        return turn

    async def order(self, name: str, show: Show) -> None:
        """Carry out a command. Raises `Leave` for goodbye."""
        session = self.session
        match name:
            case "/quit":
                raise Leave
            case "/help":
                show([Line(f"  {command:<10} {about}", "quiet") for command, about in COMMANDS.items()])
            case "/new":
                self.leave_it()
                show([Line("What you say next begins another session.", "quiet")])
            case _ if session is None:
                show([Line("There is no session yet: say something.", "quiet")])
            case "/session":
                show([Line(session.id, "quiet")])
            case "/cancel":
                await self.stop(show)
            case "/clear":
                await session.clear()
            case "/compact":
                await session.compact()

    async def stop(self, show: Show) -> None:
        """Stop the open turn."""
        if self.session is None or await self.session.cancel(self.talk.turn) == "nothing_runs":
            show([Line("Nothing runs.", "quiet")])

    async def typed(self, text: str, show: Show) -> None:
        """Do what was typed. Raises `ClientError` when that could not be done."""
        match self.talk.meaning(text):
            case None:
                return
            case Unknown(text=name):
                show([Line(f"There is no command {name}; /help lists them.", "wrong")])
            case Order(name=name):
                await self.order(name, show)
            case Answer() as answer:
                assert self.session is not None
                await self.session.answer(answer)
            case Say(text=words):
                await self.say(words)


class Listener:
    """Shows what a session says, whichever the room has; `changed` is called behind each event."""

    def __init__(self, room: Room, show: Show, changed: Callable[[], None]) -> None:
        self._room = room
        self._show = show
        self._changed = changed
        self._session: AsyncSession | None = None
        self._task: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Listen to the session that the room has now."""
        if self._room.session is self._session:
            return
        await self.close()
        self._session = self._room.session
        if self._session is not None:
            self._task = asyncio.create_task(self._hear(self._session))

    async def _hear(self, session: AsyncSession) -> None:
        start = 0 if self._room.talk.begins_here else -REPLAYED
        while True:
            try:
                async for event in session.events(start):
                    start = event.index + 1
                    self._show(self._room.talk.take(event))
                    self._changed()
                return
            except SessionNotFound:
                self._show([Line(f"There is no session {session.id}. What you say next begins another.", "quiet")])
                self._room.leave_it()
                return
            except ClientError as broken:
                self._show([Line(str(broken), "wrong")])
                await asyncio.sleep(AGAIN_SECONDS)

    async def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None


# From a pipe --------------------------------------------------------------------------------------------------------------


async def _from_a_pipe(room: Room) -> int:
    """Each line is said when what came before it is answered, and is an answer where something was asked."""
    failed = False
    turn: AsyncTurn | None = None

    def show(lines: Iterable[Line]) -> None:
        nonlocal failed
        for line in lines:
            failed = failed or line.style == "wrong"
            print(line.text, flush=True)

    async for text in _lines_typed():
        match room.talk.meaning(text):
            case Say(text=words):
                turn = await room.say(words)
            case Answer() as answer if turn is not None:
                await turn.answer(answer)
            case _:
                try:
                    await room.typed(text, show)
                except Leave:
                    break
                continue
        async for event in turn.events():
            show(room.talk.take(event))
    return 1 if failed else 0


async def _lines_typed() -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    while text := await loop.run_in_executor(None, sys.stdin.readline):
        yield text.rstrip("\n")
