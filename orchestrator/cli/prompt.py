"""The prompt of a chat on a terminal: what is typed stays at the bottom, what the session says scrolls by above it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from orchestrator.cli.chat import Leave, Listener, Room
from orchestrator.cli.printed import plain
from orchestrator.cli.talk import Line
from orchestrator.client import ClientError

STYLE = Style.from_dict(
    {
        "quiet": "ansibrightblack",
        "asks": "ansiyellow",
        "wrong": "ansired",
        "prompt": "bold",
        "bottom-toolbar": "noreverse ansibrightblack",
    }
)
ROOM_ROWS = 4
"""Rows that are left for the prompt and what is typed."""
GREETING = "Say something. /help lists the commands; Esc stops a turn, Ctrl-C or Ctrl-D leaves."


async def on_a_terminal(room: Room) -> int:
    """Talk until Ctrl-D."""
    return await _Terminal(room).run()


class _Terminal:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._prompt: PromptSession[str] = PromptSession()
        self._keys = KeyBindings()
        self._keys.add("escape")(self._escape)
        self._keys.add("c-c")(self._interrupt)
        self._listener = Listener(room, self._show, self._redraw)
        self._stopping: set[asyncio.Task[None]] = set()
        self._typed: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> int:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._leave)
        doing = asyncio.create_task(self._do())
        begin: Callable[[], None] | None = self._greet
        with patch_stdout(raw=True):
            while True:
                try:
                    typed = await self._prompt.prompt_async(
                        self._message,
                        key_bindings=self._keys,
                        bottom_toolbar=self._toolbar,
                        style=STYLE,
                        pre_run=begin,
                    )
                except (EOFError, KeyboardInterrupt):
                    break
                begin = None
                # The prompt is there again at once, whatever becomes of this.
                self._typed.put_nowait(typed)
            doing.cancel()
            await self._listener.close()
        if self._room.session is not None:
            print(f"The session goes on: {self._room.session.id}")
        return 0

    def _greet(self) -> None:
        self._show([Line(GREETING, "quiet")])
        if self._room.session is not None:
            self._show([Line(f"Going on with {self._room.session.id}; /new begins another.", "quiet")])

    async def _do(self) -> None:
        """Do what is typed, one after the other."""
        await self._listener.follow()
        while True:
            typed = await self._typed.get()
            try:
                await self._room.typed(typed, self._show)
            except Leave:
                self._leave()
            except ClientError as broken:
                self._show([Line(str(broken), "wrong"), Line(f"Not said: {typed}", "quiet")])
            await self._listener.follow()

    def _leave(self) -> None:
        if self._prompt.app.is_running:
            self._prompt.app.exit(exception=EOFError())

    # What is drawn ----------------------------------------------------------------------------------------------------

    def _message(self) -> FormattedText:
        """The words that are being said, which are no whole line yet, and the prompt."""
        size = self._prompt.app.output.get_size()
        # A prompt is not wrapped, so that is done here; of what does not fit the end is shown, and all of it when it is whole.
        rows = _wrapped(plain(self._room.talk.partial), size.columns)[-max(size.rows - ROOM_ROWS, 1) :]
        said = [("", f"{row}\n") for row in rows]
        return FormattedText([*said, ("class:prompt", "> ")])

    def _toolbar(self) -> FormattedText:
        session = self._room.session
        return FormattedText([("", f" {session.id if session else 'no session yet'}: {self._room.talk.state}")])

    def _show(self, lines: Iterable[Line]) -> None:
        for line in lines:
            print_formatted_text(FormattedText([(f"class:{line.style}", line.text)]), style=STYLE)

    def _redraw(self) -> None:
        self._prompt.app.invalidate()

    def _interrupt(self, event: KeyPressEvent) -> None:
        """Ctrl-C: forget what was typed; where nothing was, leave."""
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            self._leave()

    def _escape(self, event: KeyPressEvent) -> None:
        """Esc: stop the turn; where none is open, forget what was typed."""
        if not self._room.talk.turn:
            event.current_buffer.reset()
            return
        task = asyncio.ensure_future(self._stop())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self) -> None:
        try:
            await self._room.stop(self._show)
        except ClientError as broken:
            self._show([Line(str(broken), "wrong")])


def _wrapped(text: str, columns: int) -> list[str]:
    """A text in rows of a terminal."""
    rows, row, used = [], "", 0
    for letter in text:
        width = get_cwidth(letter)
        if used + width > columns:
            rows.append(row)
            row, used = "", 0
        row, used = row + letter, used + width
    return [*rows, row] if row else rows
