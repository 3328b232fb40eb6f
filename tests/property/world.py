"""A session, the workers that carry it on, and everything that can go wrong between them, drawn from one seed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from typing import Any, cast

import pytest
import redis

import orchestrator.ids as ids
from orchestrator.agent import Agent, App
from orchestrator.config import Settings
from orchestrator.core.delivery import Body, Delivery, Envelope, Part
from orchestrator.core.names import Millis, SessionId
from orchestrator.errors import InboxFull, JournalAway, SessionNotActive
from orchestrator.journal import Journal, Reads
from orchestrator.journal.scripts import Script, Value, script
from orchestrator.models import Layer
from orchestrator.models.scripted import Reply, ScriptedModel, answers, asks, calls, fails
from orchestrator.perform import ask_model, run_tool
from orchestrator.ports import ModelCall, ModelOutput
from orchestrator.process import owned as owned_module
from orchestrator.process import pulse as pulse_module
from orchestrator.process import shared
from orchestrator.process.owned import DRAIN, Owned
from orchestrator.process.pump import Pump
from orchestrator.process.shared import Process, owner_prefix
from orchestrator.state import state
from orchestrator.tool import Fatal, ToolContext, tool
from orchestrator.turn import Carried, asking, calling, carry, carry_on, driver, hands
from orchestrator.wake import AtomicWake
from tests.property.ledger import Ledger, Said
from tests.property.schedule import Block, Box, Crash, Doing, Fiber, Pause

START = 1_800_000_000_000
LEASE_SECONDS = 10.0
LIMIT = 6
LABEL = "default"
REST = ("create", "deliver", "own", "commit", "append", "renew", "release", "disown")
LAYER = Layer()
Command = tuple[Value, ...]


class Line:
    """One connection for everybody: only one thread runs at a time."""

    def __init__(self, client: redis.Redis) -> None:
        self._connection: Any = client.connection_pool.make_connection()

    def say(self, command: tuple[object, ...]) -> Any:
        """Send a command and wait for its answer."""
        self._connection.send_command(*command)
        return self._connection.read_response()


line_of = cache(Line)
"""The connection of a client."""


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
        )
        process = cast(Any, self.process)
        process.prefix = owner_prefix(name, 1)
        process.loops = process.threads = Out(world, self)
        process.pump = QuietPump(self.journal)
        process.pulse.start = lambda: None
        process._news = world  # anything but None: the world tells the news itself
        self.fibers: list[Fiber] = []

    def begin(self, session: SessionId) -> None:
        """Carry a session on, as after a wake."""

        def work() -> None:
            self.world.ended(carry_on(self.process, session))

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


total = state("property.total", default=int)


def an_app(world: World) -> App:
    """An agent whose model and tools do what the die says."""

    @tool
    def note(ctx: ToolContext, text: str) -> str:
        """Note something."""
        total.update(ctx, lambda sum: sum + 1)
        return text

    @tool(timeout=20)
    def slow(ctx: ToolContext, text: str) -> str:
        """A sync tool that may be left behind."""
        ctx.progress(f"{text} so far")
        return text

    @tool(timeout=30)
    async def wait(ctx: ToolContext, text: str) -> str:
        """An async tool."""
        for number in range(world.dice.randrange(4)):
            await Pause()
            ctx.progress(number)
        return text

    @tool(on_interrupt="report")
    def careful(ctx: ToolContext, text: str) -> str:
        """A tool that must not start twice."""
        return text

    @tool(on_interrupt="report")
    async def careful_wait(text: str) -> str:
        """An async one."""
        await Pause()
        return text

    @tool
    def boom(text: str) -> str:
        """A tool that breaks."""
        raise ValueError(text)

    @tool
    def fatal(text: str) -> str:
        """A tool that ends the turn."""
        raise Fatal(text)

    return App([Agent("helper", model=Model(world), tools=[note, slow, wait, careful, careful_wait, boom, fatal])])


class Model:
    """A model that rolls dice."""

    name = "dice"

    def __init__(self, world: World) -> None:
        self._world = world

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        dice = self._world.dice
        reply = self._reply(call)
        pieces = dice.randint(1, 4)
        if reply.failure is not None and dice.random() < 0.5:
            # It breaks in the middle of what it says.
            async for out in ScriptedModel([answers("some words") for _ in range(9)], pieces=2).answer(call):
                await Pause()
                yield out
                break
        async for out in ScriptedModel([reply] * 9, pieces=pieces, name=self.name).answer(call):
            await Pause()
            yield out

    def _reply(self, call: ModelCall) -> Reply:
        dice = self._world.dice
        if dice.random() < 0.15:
            return fails("broken", retryable=dice.random() < 0.8, retry_after=dice.choice([None, 0.5, 30.0]))
        if call.step >= 3 or dice.random() < 0.45:
            return answers(f"words of {dice.randrange(100)}", reasoning="hm" if dice.random() < 0.2 else "")
        names = ["note", "slow", "wait", "careful", "careful_wait", "boom", "fatal", "unknown", "note"]
        asked = [asks(dice.choice(names), text=str(dice.randrange(100))) for _ in range(dice.randint(1, 3))]
        if dice.random() < 0.1:
            asked.append(asks("note", wrong=1))
        return calls(*asked, text="Let me see." if dice.random() < 0.3 else "")


class World:
    """One story."""

    def __init__(self, client: redis.Redis, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.client = client
        self.prefix = f"p{seed}"
        self.line = line_of(client)
        self.now = START
        self.rewinds = seed % 4 == 3
        self.steps_per_task = self.dice.choice([1, 1, 2, 50])
        self.app = an_app(self)
        self.desk = Steered(self, client, self.prefix)
        self.desk._lines = cast(Any, self.line)
        self.session = ids.new_session(self.now)
        self.ledger = Ledger(self.desk, self.session, self.rewinds)
        self.workers: list[Worker] = []
        self.doings: list[Doing | Block] = []
        self.late: list[tuple[Steered, Script, Command]] = []
        self.said: list[Said] = []
        self.calm = False
        self.faults = 0
        self.moves = 0
        self._patch(patch)

    @staticmethod
    def moves_of(seed: int) -> int:
        """How long the story of a seed is."""
        return 60 + seed % 7 * 40

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        def steady() -> float:
            return self.now / 1000

        world = self

        class Sleepy:
            """Where the driver sleeps."""

            @staticmethod
            def sleep(seconds: float) -> None:
                until = world.now + seconds * 1000
                assert Fiber.current is not None
                Fiber.current.pause(lambda: world.now >= until)

        def watched_model(model: Any, call: ModelCall, *rest: Any) -> Any:
            world.ledger.model_begins(self._token(), call)
            return ask_model(model, call, *rest)

        def watched_tool(call: Any, tool: Any, arguments: Any, context: ToolContext, *rest: Any) -> Any:
            world.ledger.tool_begins(self._token(), call, arguments, context)
            return run_tool(call, tool, arguments, context, *rest)

        Box.steady = staticmethod(steady)
        for module in (asking, calling, carry, driver, hands, shared):
            patch.setattr(module, "steady", steady)
        patch.setattr(shared, "time", Sleepy)
        patch.setattr(asking, "ask_model", watched_model)
        patch.setattr(calling, "run_tool", watched_tool)
        patch.setattr(pulse_module, "steady", steady)
        patch.setattr(owned_module, "SimpleQueue", Box)

    def _token(self) -> str:
        return str(getattr(Fiber.current, "token", ""))

    # What is said to the journal --------------------------------------------------------------------------------------

    def say(self, journal: Steered, verb: Script, command: Command) -> Any:
        """A call arrives, or not."""
        how = self.dice.random() if not self.calm else 1.0
        if how < 0.02:
            self.late.append((journal, verb, command))
            raise JournalAway(reason="the test lost the call")
        if how < 0.03 and journal is not self.desk:
            self._die_here(journal)
        answer = self._execute(journal, verb, command)
        if how < 0.05:
            raise JournalAway(reason="the test lost the reply")
        if how < 0.06 and journal is not self.desk:
            self._die_here(journal)
        if verb.name == "own" and answer[0] == b"granted" and Fiber.current is not None:
            cast(Any, Fiber.current).token = self.ledger.argument(verb, command, "token")
        return answer

    def _die_here(self, journal: Steered) -> None:
        journal.dead = True
        raise Crash

    def _execute(self, journal: Steered, verb: Script, command: Command) -> Any:
        if self.rewinds:
            self.ledger.photograph()
        answer = journal.really(verb, command)
        said = Said(verb, command, answer, self.now)
        self.ledger.observe(said)
        if verb.name in REST:
            self.said.append(said)
        if verb.name == "deliver" and answer[0] == b"accepted":
            self._tell_news(int(answer[4]))
        return answer

    def _tell_news(self, n: int) -> None:
        if n and self.dice.random() < 0.7:
            for worker in self.workers:
                worker.process._heard(f"{self.session} {n} news")

    def ended(self, carried: Carried) -> None:
        """A task is over."""
        self.ledger.ended(self._token(), carried)

    # Moves ------------------------------------------------------------------------------------------------------------

    def run(self, most: int) -> None:
        """A story of so many moves, then peace."""
        if self.dice.random() < 0.8:
            self.desk_says(lambda: self._create(self._message()))
        else:
            self.desk_says(lambda: self._create(None))
        moves: list[tuple[float, Callable[[], None]]] = [
            (14, self.resume),
            (10, self.perform),
            (3, self.pump),
            (5, self.wake),
            (0.7, self.look),
            (1.6, lambda: self.desk_says(self._deliver)),
            (0.8, lambda: self.desk_says(self._cancel)),
            (1.5, self.repeat),
            (1.0, self.run_late),
            (1.2, lambda: self.pass_time(self.dice.randint(50, 1500))),
            (0.25, lambda: self.pass_time(self.dice.choice([5_000, 10_100, 30_000]))),
            (1.0, self.tick),
            (0.2, self.lose_queue),
            (0.3, self.crash),
            (0.15, self.rob),
            (1.2, self.beat),
            (0.15, self.drain),
            (0.6 if self.rewinds else 0.0, self.rewind),
            (0.6 if self.rewinds else 0.1, lambda: self.desk_says(self._report_tail)),
        ]
        weights = [weight for weight, _ in moves]
        acts = [act for _, act in moves]
        for act in self.dice.choices(acts, weights, k=most):
            act()
            self.moves += 1
            self.ledger.complain()
        self.settle()

    def desk_says(self, call: Callable[[], object]) -> None:
        """Somebody asks for something; without an answer, they ask again, perhaps."""
        while True:
            try:
                call()
                return
            except JournalAway:
                if self.dice.random() < 0.3:
                    return
            except (InboxFull, SessionNotActive):
                return

    def _message(self) -> Delivery:
        policy = self.dice.choice(["steer", "queue"])
        body = Body((Part("text", f"message {self.dice.randrange(1000)}"),))
        return Delivery(ids.new_delivery(self.now), Envelope("message", policy=policy, at=Millis(self.now)), body)

    def _create(self, first: Delivery | None) -> None:
        self.desk.create(self.session, agent="helper", deployment=LABEL, first=first)

    def _deliver(self) -> None:
        self.desk.deliver(self.session, self._message())

    def _cancel(self) -> None:
        turn = self.ledger.open_turn
        guard = self.dice.choice(["", "", turn, "turn_0", "turn_9"])
        envelope = Envelope("cancel", guard=guard, at=Millis(self.now))
        self.desk.deliver(self.session, Delivery(ids.new_delivery(self.now), envelope))

    def _report_tail(self) -> None:
        """A reader says how much it has seen: as much as there ever was."""
        envelope = Envelope("tail_seen", guard=str(self.ledger.most_events), at=Millis(self.now))
        self.desk.deliver(self.session, Delivery(ids.new_delivery(self.now), envelope))

    def fibers(self) -> list[Fiber]:
        """Everybody who could go on."""
        return [fiber for worker in self.workers for fiber in worker.live() if fiber.ready()]

    def resume(self) -> None:
        """A worker goes on to its next call."""
        if ready := self.fibers():
            self.dice.choice(ready).resume()
            self._bury()

    def _bury(self) -> None:
        for worker in [worker for worker in self.workers if worker.journal.dead]:
            self.workers.remove(worker)
            worker.die()
            self.doings = [doing for doing in self.doings if doing.owner is not worker]
            self.ledger.died(worker.process.prefix)

    def perform(self) -> None:
        """Something out there goes on."""
        self.doings = [doing for doing in self.doings if not doing.ended.is_set()]
        if self.doings:
            self.dice.choice(self.doings).step()

    def pump(self) -> None:
        """Deltas are sent."""
        for worker in self.workers:
            if worker.journal.dead:
                continue
            with contextlib.suppress(Crash):
                cast(QuietPump, worker.process.pump).pump()
        self._bury()

    def worker(self) -> Worker:
        """One of at most three workers that take wakes."""
        taking = [worker for worker in self.workers if not worker.process.draining.is_set()]
        if len(taking) < 2 or (len(taking) < 3 and self.dice.random() < 0.2):
            self.workers.append(Worker(self, f"w{self.moves:07d}"))
            return self.workers[-1]
        return self.dice.choice(taking)

    def wake(self) -> None:
        """A worker takes a wake from the queue."""
        if self.client.rpop(f"{self.prefix}:orc.{LABEL}") is not None:
            self.worker().begin(self.session)

    def look(self) -> None:
        """A wake too many."""
        self.worker().begin(self.session)

    def repeat(self) -> None:
        """Something that was said is said again."""
        if self.said:
            old = self.dice.choice(self.said[-25:])
            self.ledger.repeat(old, lambda: self.desk.really(old.verb, self._at_now(old)))

    def _at_now(self, said: Said) -> Command:
        place = 3 + int(said.command[2]) + said.verb.args.index("now")
        return (*said.command[:place], self.now, *said.command[place + 1 :])

    def run_late(self) -> None:
        """A call that nobody waits for any more reaches the server."""
        if self.late:
            journal, verb, command = self.late.pop(self.dice.randrange(len(self.late)))
            said = Said(verb, command, None, self.now)
            self._execute(journal, verb, self._at_now(said))

    def pass_time(self, ms: int) -> None:
        """Time passes."""
        self.now += ms

    def tick(self) -> None:
        """A keeper looks."""
        with contextlib.suppress(JournalAway):
            self.desk.due(pause=self.dice.random() < 0.1 and not self.calm)

    def lose_queue(self) -> None:
        """The broker loses its queue."""
        self.client.delete(f"{self.prefix}:orc.{LABEL}")

    def crash(self) -> None:
        """A worker dies, wherever it is."""
        if self.workers:
            self.dice.choice(self.workers).journal.dead = True
            self._bury()

    def rob(self) -> None:
        """The owner is taken for dead."""
        token = self.ledger.fields.get("token", "")
        if token:
            fault = self.dice.random() < 0.3
            self.faults += fault
            self.ledger.robbed.add(token)
            with contextlib.suppress(JournalAway):
                self.desk.disown(self.session, token, fault=fault)

    def beat(self) -> None:
        """A pulse."""
        for worker in self.workers:
            if not worker.journal.dead:
                try:
                    worker.process.pulse.beat()
                except JournalAway:
                    pass
                except Crash:
                    pass
        self._bury()

    def drain(self) -> None:
        """A worker leaves."""
        if self.workers:
            process = self.dice.choice(self.workers).process
            process.draining.set()
            if self.dice.random() < 0.5:
                for owned in process.owned():
                    owned.mailbox.put(DRAIN)

    def rewind(self) -> None:
        """The store loses its last writes."""
        owners = {
            str(owned.token): owned.position.events for worker in self.workers for owned in worker.process.owned()
        }
        self.late.clear()
        self.said.clear()
        self.pass_time(1000)
        self.ledger.rewind(self.dice.randint(1, 5), owners)

    # Peace ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults: everything comes to rest."""
        self.calm = True
        while self.late:
            self.run_late()
        self.ledger.complain()
        began = self.now
        for _ in range(20_000):
            self._peaceful_move()
            self.ledger.complain()
            if self.ledger.at_rest and not any(worker.live() for worker in self.workers):
                break
            assert self.now - began < 600_000, f"no rest after ten minutes: {self.ledger.fields}"
        else:
            raise AssertionError("no rest")
        self.ledger.finish()

    def _peaceful_move(self) -> None:
        if self.dice.random() < 0.1:
            self.pump()
        for worker in self.workers:
            worker.process.pulse.beat()
        self.doings = [doing for doing in self.doings if not doing.ended.is_set()]
        ready = self.fibers()
        if ready and (not self.doings or self.dice.random() < 0.6):
            self.dice.choice(ready).resume()
        elif self.doings:
            self.dice.choice(self.doings).step()
        elif self.client.llen(f"{self.prefix}:orc.{LABEL}"):
            self.wake()
        else:
            self.pass_time(500)
            self.tick()

    def close(self) -> None:
        """Nobody is left, and nothing in the store."""
        for worker in self.workers:
            worker.die()
        found = list(self.client.scan_iter(match=f"{self.prefix}:*", count=1000))
        if found:
            self.client.delete(*found)


def story(client: redis.Redis, seed: int, moves: int | None = None) -> World:
    """The story of a seed; with `moves`, only so much of it. Raises what went wrong."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(client, seed, patch)
        try:
            world.run(World.moves_of(seed) if moves is None else moves)
        finally:
            world.close()
    return world
