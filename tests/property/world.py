"""Sessions, the workers that carry them on, and everything that can go wrong between them, drawn from one seed."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

import orchestrator.ids as ids
from orchestrator.channels import Event, ReplyTo
from orchestrator.channels import outbox as outbox_module
from orchestrator.core.names import SessionId
from orchestrator.errors import JournalAway
from orchestrator.journal.scripts import Script
from orchestrator.perform import ask_model, run_tool
from orchestrator.ports import ModelCall
from orchestrator.process import owned as owned_module
from orchestrator.process import pulse as pulse_module
from orchestrator.process import shared
from orchestrator.process.owned import DRAIN
from orchestrator.process.shared import ERASED
from orchestrator.tool import ToolContext
from orchestrator.turn import asking, calling, carry, driver, hands
from tests.property.agent import an_app
from tests.property.book import Said
from tests.property.doors import DAY_MS, HOME, Doors
from tests.property.ledger import Ledger
from tests.property.line import line_of
from tests.property.past import Past
from tests.property.people import LABEL, Move, People
from tests.property.schedule import Block, Box, Crash, Doing, Fiber
from tests.property.workers import Command, QuietPump, Steered, Worker

START = 1_800_000_000_000
REPEATED = ("create", "deliver", "own", "commit", "append", "renew", "release", "disown", "settle_out")
LONG_MS = 31 * DAY_MS


class World:
    """One story."""

    def __init__(self, client: redis.Redis, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.client = client
        self.prefix = f"p{seed}"
        self.queue = f"{self.prefix}:orc.{LABEL}"
        self.line = line_of(client)
        self.now = START
        self.calm = False
        self.rewinds = seed % 4 == 3
        self._patch(patch)
        self.steps_per_task = self.dice.choice([1, 1, 2, 50])
        posts = self._post if self.dice.random() < 0.4 else None
        self.app = an_app(self.dice, posts, self.dice.choice([None, None, 150, 400]))
        self.desk = Steered(self, client, self.prefix)
        self.desk._lines = cast(Any, self.line)
        self.sessions: dict[str, Ledger] = {}
        self.doors = Doors(self.desk, self.sessions)
        self.past = Past(client, self.prefix)
        self.people = People(self)
        self.callers: list[Fiber] = []
        self.workers: list[Worker] = []
        self.doings: list[Doing | Block] = []
        self.late: list[tuple[Steered, Script, Command]] = []
        self.said: list[Said] = []
        self.steps = 0
        self.moves = 0

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
            token, ours = world._token(), rest[-1]

            def begins() -> bool:
                if not ours():
                    return False
                world.sessions[call.session].model_begins(token, call)
                return True

            return ask_model(model, call, *rest[:-1], begins)  # type: ignore[call-arg]

        def watched_tool(call: Any, tool: Any, arguments: Any, context: ToolContext, *rest: Any) -> Any:
            token, ours = world._token(), rest[-1]

            def begins() -> bool:
                if not ours():
                    return False
                world.sessions[context.session.id].tool_begins(token, call, arguments, context)
                return True

            return run_tool(call, tool, arguments, context, *rest[:-1], begins)  # type: ignore[call-arg]

        Box.steady = staticmethod(steady)
        for module in (asking, calling, carry, driver, hands, shared, outbox_module):
            patch.setattr(module, "steady", steady)
        patch.setattr(shared, "time", Sleepy)
        patch.setattr(asking, "ask_model", watched_model)
        patch.setattr(calling, "run_tool", watched_tool)
        patch.setattr(pulse_module, "steady", steady)
        patch.setattr(owned_module, "steady", steady)
        patch.setattr(owned_module, "SimpleQueue", Box)
        # Ids are drawn as well, so that the shards of a seed's sessions are always the same.
        patch.setattr(ids, "os", SimpleNamespace(urandom=random.Random(f"ids of {self.seed}").randbytes))

    def _token(self) -> str:
        return str(getattr(Fiber.current, "token", ""))

    def ledgers(self) -> list[Ledger]:
        """All sessions there ever were, oldest first."""
        return list(self.sessions.values())

    # What is said to the journal --------------------------------------------------------------------------------------

    def say(self, journal: Steered, verb: Script, command: Command) -> Any:
        """A call arrives, or not."""
        how = self.dice.random() if not self.calm else 1.0
        if how < 0.02:
            self.late.append((journal, verb, command))
            raise JournalAway(reason="the test lost the call")
        if how < 0.03:
            self._die_here(journal)
        said = self._execute(journal, verb, command)
        if how < 0.05:
            raise JournalAway(reason="the test lost the reply")
        if how < 0.06:
            self._die_here(journal)
        if verb.name == "own" and said.answer[0] == b"granted" and Fiber.current is not None:
            cast(Any, Fiber.current).token = said.argument("token")
        for ledger in self._concerned(said):
            ledger.heard(said)
        return said.answer

    def _die_here(self, journal: Steered) -> None:
        """A worker dies with all it does; of those who ask, only who is asking."""
        journal.dead = journal is not self.desk
        raise Crash

    def _execute(self, journal: Steered, verb: Script, command: Command) -> Said:
        if self.rewinds:
            self.past.photograph(self.sessions)
        said = self._say_now(journal, verb, command)
        if verb.name in REPEATED:
            self.said.append(said)
        return said

    def _say_now(self, journal: Steered, verb: Script, command: Command) -> Said:
        command = self._at_now(verb, command)
        said = Said(verb, command, journal.really(verb, command), self.now)
        self.steps += 1
        for ledger in self._concerned(said):
            erased = ledger.book.erased
            ledger.observe(said)
            if ledger.book.erased and not erased:
                self._tell(f"{ledger.session} {int(ledger.fields.get('n', 0)) + 1} {ERASED}")
            elif verb.name in ("deliver", "arrive") and said.answer[0] == b"accepted":
                self._tell(f"{ledger.session} {ledger.fields['n']} {said.argument('kind')}")
        self.doors.observe(said)
        return said

    def _concerned(self, said: Said) -> Iterator[Ledger]:
        """The sessions that a call speaks of. Those that begin with it are known from now on."""
        name, answer = said.verb.name, said.answer
        names: list[str] = []
        match name:
            case "due":
                names = list(self.sessions)
            case "renew":
                pairs = said.command[3 + int(said.command[2]) + len(said.verb.args) :]
                names = [str(session) for session in pairs[::2]]
            case "create" if answer[0] in (b"created", b"again"):
                names = [answer[3].decode()]
            case "arrive" if answer[0] in (b"started", b"accepted", b"again"):
                names = [answer[3].decode()]
            case "arrive" if answer[0] in (b"full", b"elsewhere"):
                names = [answer[2].decode()]
            case _ if "own" in said.verb.keys and name not in ("create", "arrive"):
                names = [said.key("own").rpartition(":")[2]]
        if answer[0] in (b"created", b"started") and names[0] not in self.sessions:
            self._begins(names[0])
        for session in names:
            if session in self.sessions:
                yield self.sessions[session]

    def _begins(self, session: str) -> None:
        tries = self.app.channels[0].tries if self.app.channels else 1
        self.sessions[session] = Ledger(
            self.desk,
            SessionId(session),
            self.rewinds,
            let_in=lambda delivery: self.doors.accepted(delivery, session, self.now),
            tries=tries,
            budgets=self.app.agents[0].limits.budgets,
        )

    def _tell(self, news: str) -> None:
        if self.dice.random() < 0.7:
            for worker in self.workers:
                worker.process._heard(news)

    def _at_now(self, verb: Script, command: Command) -> Command:
        """A call runs when it arrives, whenever it was made."""
        if "now" not in verb.args:
            return command
        place = 3 + int(command[2]) + verb.args.index("now")
        return (*command[:place], self.now, *command[place + 1 :])

    def _post(self, event: Event, to: ReplyTo) -> None:
        """A channel is told something, and hears it, or not."""
        ledger = self.sessions[to.session]
        ledger.posts.begins(to, ledger.book.out, all_known=not ledger.rewound and not ledger.book.erased)
        if not self.calm and self.dice.random() < 0.15:
            raise ValueError("the test's channel does not hear")
        ledger.posts.done(to.key)

    # Moves ------------------------------------------------------------------------------------------------------------

    def run(self, most: int) -> None:
        """A story of so many moves, then peace."""
        self.people.begin()
        moves: list[Move] = [
            (18, self.resume),
            (10, self.perform),
            (3, self.pump),
            (5, self.wake),
            (0.7, self.look),
            (1.5, self.repeat),
            (1.0, self.run_late),
            (1.2, lambda: self.pass_time(self.dice.randint(50, 1500))),
            (0.25, lambda: self.pass_time(self.dice.choice([5_000, 10_100, 30_000]))),
            (0.03, lambda: self.pass_time(self.dice.choice([700_000, LONG_MS]))),
            (1.0, self.tick),
            (0.2, self.people.tidy),
            (0.2, self.lose_queue),
            (0.3, self.crash),
            (0.15, self.rob),
            (1.2, self.beat),
            (0.15, self.drain),
            (0.6 if self.rewinds else 0.0, self.rewind),
            (0.6 if self.rewinds else 0.1, self.report_tail),
            *self.people.moves(),
        ]
        weights = [weight for weight, _ in moves]
        acts = [act for _, act in moves]
        for act in self.dice.choices(acts, weights, k=most):
            act()
            self.moves += 1
            self.complain()
        self.settle()
        if self.dice.random() < 0.3:
            self.long_after()

    def complain(self) -> None:
        """Fails if something was not true."""
        self.doors.complain()
        for ledger in self.sessions.values():
            ledger.complain()

    def ask(self, wish: Callable[[], None]) -> Fiber:
        """Let somebody ask for something."""
        self.callers.append(Fiber(wish))
        return self.callers[-1]

    def report_tail(self) -> None:
        """A reader speaks up."""
        if self.sessions:
            self.people.report_tail()

    def fibers(self) -> list[Fiber]:
        """Everybody who could go on."""
        self.callers = [fiber for fiber in self.callers if not fiber.done]
        found = [*self.callers, *(fiber for worker in self.workers for fiber in worker.live())]
        return [fiber for fiber in found if fiber.ready()]

    def resume(self) -> None:
        """Somebody goes on to their next call."""
        if ready := self.fibers():
            self.dice.choice(ready).resume()
            self._bury()

    def _bury(self) -> None:
        for worker in [worker for worker in self.workers if worker.journal.dead]:
            self.workers.remove(worker)
            worker.die()
            self.doings = [doing for doing in self.doings if doing.owner is not worker]
            for ledger in self.sessions.values():
                ledger.died(worker.process.prefix)

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
        text = cast("bytes | None", self.client.rpop(self.queue))
        if text is not None:
            self.worker().begin(SessionId(json.loads(text)["headers"]["id"].partition("/")[0]))

    def look(self) -> None:
        """A wake too many."""
        if self.sessions:
            self.worker().begin(self.dice.choice(self.ledgers()).session)

    def repeat(self) -> None:
        """Something that was said is said again."""
        if self.said:
            old = self.dice.choice(self.said[-25:])
            for ledger in self._concerned(old):
                if old.answer[0] == b"behind" or (ledger.book.erased and old.verb.name == "create"):
                    return  # nothing was promised, or not any more
                ledger.repeat(old, lambda: self.desk.really(old.verb, self._at_now(old.verb, old.command)))
                return

    def run_late(self) -> None:
        """A call that nobody waits for any more reaches the server."""
        if self.late:
            self._execute(*self.late.pop(self.dice.randrange(len(self.late))))

    def pass_time(self, ms: int) -> None:
        """Time passes. What was said a day ago does not arrive any more, and nobody says it again."""
        self.now += ms
        if ms >= DAY_MS:
            for fiber in self.callers:
                fiber.kill()
            self.callers.clear()
            self.late.clear()
            self.said.clear()
            self.doors.forget()
            self.people.forget()

    def tick(self) -> None:
        """A keeper looks."""
        with contextlib.suppress(JournalAway, Crash):
            self.desk.due(pause=self.dice.random() < 0.1 and not self.calm)

    def lose_queue(self) -> None:
        """The broker loses its queue."""
        self.client.delete(self.queue)

    def crash(self) -> None:
        """A worker dies, wherever it is."""
        if self.workers:
            self.dice.choice(self.workers).journal.dead = True
            self._bury()

    def rob(self) -> None:
        """An owner is taken for dead."""
        owned = [ledger for ledger in self.sessions.values() if ledger.fields.get("token")]
        if not owned:
            return
        ledger = self.dice.choice(owned)
        token = ledger.fields["token"]
        ledger.robbed.add(token)
        with contextlib.suppress(JournalAway, Crash):
            self.desk.disown(ledger.session, token, fault=self.dice.random() < 0.3)

    def beat(self) -> None:
        """A pulse."""
        for worker in self.workers:
            if not worker.journal.dead:
                with contextlib.suppress(JournalAway, Crash):
                    worker.process.pulse.beat()
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
        owners: dict[str, dict[str, int]] = {}
        for worker in self.workers:
            for owned in worker.process.owned():
                owners.setdefault(owned.session, {})[owned.token] = owned.position.events
        self.late.clear()
        self.said.clear()
        self.pass_time(1000)
        if self.past.rewind(self.dice.randint(1, 5), self.sessions, owners):
            self.doors.rewound = True

    # Peace ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults: everything comes to rest."""
        self.calm = True
        while self.late:
            self.run_late()
        self.complain()
        began = self.now
        for _ in range(20_000):
            self._peaceful_move()
            self.complain()
            if self._rests():
                break
            assert self.now - began < 600_000, f"no rest after ten minutes: {[one.fields for one in self.ledgers()]}"
        else:
            raise AssertionError("no rest")
        self._finish()

    def _rests(self) -> bool:
        busy = self.callers or any(worker.live() for worker in self.workers)
        return not busy and all(ledger.at_rest and not ledger.open_turn for ledger in self.sessions.values())

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
        elif self.line.say(("LLEN", self.queue)):
            self.wake()
        elif parked := [ledger for ledger in self.sessions.values() if ledger.open_turn and ledger.at_rest]:
            self.people.decide(self.dice.choice(parked))
        else:
            self.pass_time(self._next_moment())
            self.tick()
            if any(ledger.book.erased and ledger.fields for ledger in self.sessions.values()):
                self.people.tidy()

    def _next_moment(self) -> int:
        """How long nothing happens."""
        if self.callers or any(worker.live() for worker in self.workers):
            return 500
        dues = [ledger.due - self.now for ledger in self.sessions.values() if ledger.due and not ledger.at_rest]
        return min(max([500, *dues]), 30_000)

    def _finish(self) -> None:
        for session, ledger in self.sessions.items():
            ledger.finish()
            if self.app.channels and self.doors.began.get(session) == HOME and not ledger.rewound and ledger.fields:
                ledger.posts.whole(ledger.book.out, ledger.book.events, HOME)
            if not ledger.fields and not self.doors.rewound:
                assert not (found := self._traces(session)), f"{session} was erased, and is in {found}"
        self.doors.at_rest()
        self.complain()

    def long_after(self) -> None:
        """A month later all is over whose time is; another month later nothing is left of what has ended."""
        for _ in range(2):
            self.pass_time(LONG_MS)
            self.settle()
            self.people.tidy()
            self.settle()
        for ledger in self.sessions.values():
            forever = ledger.fields.get("deadline") == "0" and ledger.life == "live"
            assert forever or ledger.life == "gone", f"{ledger.session} is {ledger.life} after two months"

    def told_erased(self, session: SessionId) -> None:
        """Somebody was told that nothing is left of a session."""
        ledger = self.sessions[session]
        if not self.doors.rewound:
            ledger.must(not (found := self._traces(session)), f"erased, and it is in {found}")

    def _traces(self, session: str) -> list[str]:
        """The keys that name a session or hold its id, the broker's queue and what goes by itself aside."""
        name = session.encode()
        keys = [key for key in self.client.scan_iter(match=f"{self.prefix}:*", count=1000) if b":orc." not in key]
        keys = [key for key in keys if b":blob:" not in key or self.client.ttl(key) == -1]
        pipe = self.client.pipeline(transaction=False)
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute()
        for key, kind in zip(keys, kinds, strict=True):
            match kind:
                case b"hash":
                    pipe.hgetall(key)
                case b"zset":
                    pipe.zrange(key, 0, -1)
                case b"list":
                    pipe.lrange(key, 0, -1)
                case b"set":
                    pipe.smembers(key)
                case _:
                    pipe.get(key)
        held = pipe.execute() if keys else []
        return [key.decode() for key, what in zip(keys, held, strict=True) if name in key or session in repr(what)]

    def close(self) -> None:
        """Nobody is left, and nothing in the store."""
        for fiber in self.callers:
            fiber.kill()
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
