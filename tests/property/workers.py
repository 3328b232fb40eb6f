"""Workers as a story has them: the real driver and the real poster, on a journal, a clock and loops that the world steers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import redis

from orchestrator.channels import entries
from orchestrator.channels.outbox import post_outbox
from orchestrator.config import Settings
from orchestrator.core.names import Millis, SessionId
from orchestrator.errors import JournalAway
from orchestrator.journal import Journal, Reads
from orchestrator.journal.scripts import Script, Value, script
from orchestrator.models import Layer
from orchestrator.process.owned import Owned
from orchestrator.process.pump import Pump
from orchestrator.process.shared import Process, owner_prefix
from orchestrator.turn import carry_on
from orchestrator.wake import AtomicWake
from tests.property.schedule import Block, Crash, Doing, Fiber

if TYPE_CHECKING:
    from tests.property.world import World

LEASE_SECONDS = 10.0
LIMIT = 6
LAYER = Layer()
Command = tuple[Value, ...]


class Steered(Journal):
    """A journal whose calls wait for their turn, and may be lost."""

    def __init__(self, world: World, client: redis.Redis, prefix: str) -> None:
        wake = AtomicWake(prefix=prefix, key_prefix=f"{prefix}:")
        super().__init__(
            client, wake, prefix=prefix, lease_ms=int(LEASE_SECONDS * 1000), waiting_limit=LIMIT, now=lambda: world.now
        )
        self.world = world
        self.dead = False

    def call(self, verb: Script, command: Command) -> Any:
        if Fiber.current is not None:
            Fiber.current.pause()
        if self.dead:
            raise Crash
        return self.world.say(self, verb, command)

    def really(self, verb: Script, command: Command) -> Any:
        """What reaches the server."""
        return super().call(verb, command)

    def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        return [self.call(script("append"), command) for command in commands]

    def time(self) -> Millis:
        return Millis(self.world.now)


class Clock:
    """The world's time."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> Millis:
        return Millis(self._world.now)

    def steady(self) -> float:
        return self._world.now / 1000

    def heard(self, at: Millis, asked_at: float) -> None:
        """There is only one clock."""

    def look(self) -> None:
        """Nor is there anything to ask."""


class Out:
    """Loops and threads of one process: what is begun waits until the die says so."""

    def __init__(self, world: World, owner: Worker) -> None:
        self._world, self._owner = world, owner

    def run(self, work: Any) -> Any:
        going: Doing | Block = Block(self._owner, work) if callable(work) else Doing(self._owner, work)
        self._world.doings.append(going)
        return going


class QuietPump(Pump):
    """A pump without a thread."""

    def hint(self, owned: Owned) -> None:
        self._talking[owned.token] = owned

    def pump(self) -> None:
        """Send what waits."""
        talking, self._talking = list(self._talking.values()), {}
        try:
            self._send(talking)
        except JournalAway:
            for owned in talking:
                self.hint(owned)


class Worker:
    """A process that carries sessions on, until it dies or leaves."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.journal = Steered(world, world.client, world.prefix)
        self.journal._lines = cast(Any, world.line)
        settings = Settings(lease_seconds=LEASE_SECONDS, prefix=world.prefix, steps_per_task=world.steps_per_task)
        clock = cast(Any, Clock(world))
        self.process = Process(
            world.app,
            settings,
            self.journal,
            Reads(self.journal),
            clock,
            layer=LAYER,
            dice=world.dice.random,
            tool_threads=1,
            entries=entries if world.app.channels else None,
        )
        process = cast(Any, self.process)
        process.prefix = owner_prefix(name, 1)
        process.loops = process.threads = Out(world, self)
        process.pump = QuietPump(self.journal)
        process.pulse.start = lambda: None
        process._news = world  # anything but None: the world tells the news itself
        self.fibers: list[Fiber] = []

    def begin(self, session: SessionId) -> None:
        """Carry a session on, as after a wake, and post what it has left."""

        def work() -> None:
            carried = carry_on(self.process, session)
            self.world.sessions[session].ended(carried)
            if carried.out:
                post_outbox(self.process, session)

        self.fibers.append(Fiber(work))

    def live(self) -> list[Fiber]:
        """Those that are not done."""
        self.fibers = [fiber for fiber in self.fibers if not fiber.done]
        return self.fibers

    def die(self) -> None:
        """All of it, now."""
        self.journal.dead = True
        for fiber in self.live():
            fiber.kill()
