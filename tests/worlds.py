"""A world for tests of the engine: a real Valkey, real threads, workers that may be killed at any write.

    world.app([asks("charge", cents=5), answers("done")], [charge])
    session = world.create("hello")
    world.run(session)                    # until nothing is left to do; a worker that dies has a successor
    assert world.history(session) == [said("hello"), answered("done")]
    world.check(session)                  # everything that must always be true

`world.traffic` sees every script call of the workers, in order: `before` and `after` may poke at the world there, `fault` breaks
one of the calls. `world.effects` is what models and tools really did, written down apart from the journal.
"""

import functools
import inspect
import json
import math
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import redis

import orchestrator.ids as ids
from orchestrator.agent import Agent, App
from orchestrator.config import Settings
from orchestrator.core import codec
from orchestrator.core.advance import advance
from orchestrator.core.delivery import Control, Delivery
from orchestrator.core.fact import (
    AnswersTaken,
    CancelAccepted,
    CompactionDue,
    ContextCleared,
    ControlKept,
    DeliveryDropped,
    MessagesJoined,
    SessionEnding,
    TailLost,
    TurnStarted,
)
from orchestrator.core.names import DeliveryId, Millis, SessionId, Token, result_key
from orchestrator.core.snapshot import EMPTY, Principal, Snapshot
from orchestrator.engine import CancelOutcome, Engine
from orchestrator.errors import JournalAway
from orchestrator.journal import (
    Admitted,
    Appended,
    Arrived,
    Behind,
    Gone,
    Granted,
    Journal,
    Reads,
    Refused,
    Superseded,
    connect,
)
from orchestrator.journal.scripts import Script, Value
from orchestrator.journal.tails import news_channels
from orchestrator.models import Layer
from orchestrator.models.scripted import Reply, ScriptedModel
from orchestrator.models.scripted import Script as Replies
from orchestrator.parts import Message, body_of
from orchestrator.ports import Model, ModelCall, ModelOutput
from orchestrator.process.history import message_of
from orchestrator.process.shared import Process, owner_prefix
from orchestrator.tool import Tool, ToolContext
from orchestrator.wake import AtomicWake

Event = dict[str, Any]
How = Literal["crash before", "crash after", "reply lost", "executed late", "crash, executed late"]
HOWS: tuple[How, ...] = ("crash before", "crash after", "reply lost", "executed late", "crash, executed late")


class Crash(BaseException):
    """The process died here. Its other threads end, without a word, when they next want to write."""


class _Mourner:
    """What happens when a thread ends by an exception: a crash of ours was meant, all others are reported as ever."""

    def __init__(self, report: Callable[[Any], object]) -> None:
        self._report = report

    def __call__(self, args: Any) -> None:
        if args.exc_type is not Crash:
            self._report(args)

    @classmethod
    def come(cls) -> None:
        """Be there from now on. Not at import: pytest may set its own hook later."""
        if not isinstance(threading.excepthook, cls):
            threading.excepthook = cls(threading.excepthook)


# What is done to calls --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """The `at`-th script call (from 0) breaks. What is executed late is executed after so many later calls (None: at the end)."""

    at: int
    how: How
    late_by: int | None = 1


@dataclass
class Traffic:
    """The script calls of all workers of a world, in order. Leases are renewed by the clock, so `renew` is not counted."""

    fault: Fault | None = None
    before: Callable[[int, str], None] = lambda _place, _verb: None
    after: Callable[[int, str], None] = lambda _place, _verb: None
    verbs: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    """How large each call was."""
    broken: int = 0
    """How many calls the fault has hit."""
    _late: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _hook: threading.local = field(default_factory=threading.local)

    @property
    def is_hook(self) -> bool:
        """Whether this thread is in `before` or `after`: what is called from there is not counted."""
        return bool(getattr(self._hook, "here", False))

    def enter(self, verb: str, size: int) -> int:
        """A call is about to be made."""
        with self._lock:
            self.verbs.append(verb)
            self.bytes.append(size)
            place = len(self.verbs) - 1
        self._call(self.before, place, verb)
        return place

    def left(self, place: int, verb: str) -> None:
        """A call was made; what is overdue is executed now."""
        self._call(self.after, place, verb)
        with self._lock:
            ready = [run for due, run in self._late if due <= place]
            self._late = [late for late in self._late if late[0] > place]
        for run in ready:
            run()

    def later(self, place: int, run: Callable[[], object]) -> None:
        """Execute this call later."""
        assert self.fault is not None
        with self._lock:
            self._late.append((float("inf") if self.fault.late_by is None else place + self.fault.late_by, run))

    def settle(self) -> None:
        """Execute what is still under way."""
        with self._lock:
            ready, self._late = [run for _, run in self._late], []
        for run in ready:
            run()

    def _call(self, hook: Callable[[int, str], None], place: int, verb: str) -> None:
        self._hook.here = True
        try:
            hook(place, verb)
        finally:
            self._hook.here = False


class WatchedJournal(Journal):
    """A journal whose calls pass through a world's traffic, until its process dies."""

    def __init__(self, world: "World", client: redis.Redis, *, watched: bool = True) -> None:
        super().__init__(client, AtomicWake(), lease_ms=world.settings.lease_ms, now=world.redis_now)
        self.world = world
        self.watched = watched
        self.dead = False

    def call(self, verb: Script, command: tuple[Value, ...]) -> Any:
        size = sum(len(part) if isinstance(part, bytes) else len(str(part).encode()) for part in command)
        return self._through(verb.name, size, lambda: Journal.call(self, verb, command))

    def append_many(self, commands: Sequence[tuple[Value, ...]]) -> list[Appended | Behind | Superseded | Gone | None]:
        size = sum(len(str(part)) for command in commands for part in command)
        answers = self._through("append", size, lambda: Journal.append_many(self, commands))
        return cast("list[Appended | Behind | Superseded | Gone | None]", answers)

    def time(self) -> Millis:
        given = self._now()
        return Millis(given) if isinstance(given, int) else super().time()

    def _through(self, verb: str, size: int, run: Callable[[], object]) -> object:
        if self.dead:
            raise Crash
        traffic = self.world.traffic
        if not self.watched or verb == "renew" or traffic.is_hook:
            return run()
        place = traffic.enter(verb, size)
        if self.dead:
            raise Crash
        fault = traffic.fault
        how = fault.how if fault is not None and fault.at == place else None
        traffic.broken += how is not None
        match how:
            case "crash before":
                self._die()
            case "crash after":
                run()
                self._die()
            case "crash, executed late":
                traffic.later(place, run)
                self._die()
            case "executed late":
                traffic.later(place, run)
                raise JournalAway(reason="the test lost the call")
            case "reply lost":
                run()
                raise JournalAway(reason="the test lost the reply")
            case None:
                pass
        answer = run()
        traffic.left(place, verb)
        return answer

    def _die(self) -> None:
        self.dead = True
        raise Crash

    # What was promised is written down here, apart from the store -----------------------------------------------------

    def create(self, session: SessionId, **given: Any) -> Admitted:
        admitted = super().create(session, **given)
        first = cast("Delivery | None", given.get("first"))
        if first is not None and admitted.session == session:
            self.world.accepted.setdefault(session, []).append(first.id)
        return admitted

    def deliver(self, session: SessionId, delivery: Delivery, **given: Any) -> Admitted:
        admitted = super().deliver(session, delivery, **given)
        if admitted.n or delivery.envelope.kind == "message":
            self.world.accepted.setdefault(session, []).append(delivery.id)
        return admitted

    def arrive(self, channel: str, address: str, delivery: Delivery, **given: Any) -> Arrived:
        arrived = super().arrive(channel, address, delivery, **given)
        known = self.world.accepted.setdefault(arrived.session, [])
        if delivery.envelope.kind == "message" and arrived.delivery not in known:
            known.append(arrived.delivery)
        return arrived

    def own(self, session: SessionId, token: Token, made_ms: Millis, **given: Any) -> Granted | Refused:
        answer = super().own(session, token, made_ms, **given)
        if isinstance(answer, Granted):
            self.world.epochs.setdefault(session, []).append((answer.epoch, token))
        return answer


# What models and tools did ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that was begun out there. `again`: its result was committed already."""

    kind: Literal["model", "tool"]
    key: str
    what: str
    arguments: str
    owner: str
    attempt: int
    again: bool


def _is_past(world: "World", session: SessionId, turn: str, step: int) -> bool:
    """Whether the store is beyond this step. A store that has lost it knows nothing of it, and does not count."""
    snapshot, number = world.snapshot(session), int(turn.removeprefix("turn_"))
    if snapshot.turn is None:
        return snapshot.next_turn > number
    return (snapshot.turn.number, snapshot.turn.step) > (number, step)


class LoggedModel:
    """A model whose calls are written down."""

    def __init__(self, world: "World", owner: str, model: Model) -> None:
        self._world, self._owner, self._model = world, owner, model

    @property
    def name(self) -> str:
        return self._model.name

    async def answer(self, call: ModelCall) -> AsyncIterator[ModelOutput]:
        turn = self._world.snapshot(call.session).turn
        here = turn is not None and (turn.id, turn.step) == (call.turn, call.step)
        again = _is_past(self._world, call.session, call.turn, call.step) or (
            here and turn is not None and turn.phase == "tools"
        )
        key = f"{call.session}/{call.turn}/{call.step}"
        self._world.effects.append(Effect("model", key, self.name, "", self._owner, call.tries, again))
        # The history is the driver's own list, which grows: what is kept here is what it was.
        self._world.requests.append(replace(call, history=list(call.history)))
        async for out in self._model.answer(call):
            yield out


def logged_tool(world: "World", owner: str, tool: Tool) -> Tool:
    """The same tool, whose calls are written down."""
    fn = tool.fn

    def log(given: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
        ctx = given[0] if given and isinstance(given[0], ToolContext) else None
        key, again = f"?/{tool.name}", False
        if ctx is not None:
            key = ctx.idempotency_key
            turn, step = world.snapshot(ctx.session.id).turn, int(ctx.call_id.split("_")[2])
            settled = {call.id for call in turn.calls if call.state == "settled"} if turn is not None else set()
            # A call that had to wait for a person runs in a later step than the one that asked for it.
            waits = turn is not None and any(call.id == ctx.call_id for call in turn.calls)
            again = ctx.call_id in settled or (not waits and _is_past(world, ctx.session.id, ctx.session.turn, step))
        entry = Effect("tool", key, tool.name, repr(dict(arguments)), owner, ctx.attempt if ctx else 0, again)
        world.effects.append(entry)

    made: Callable[..., Any]
    if inspect.isasyncgenfunction(fn):

        async def made_asyncgen(*given: Any, **arguments: Any) -> AsyncIterator[Any]:
            log(given, arguments)
            async for value in fn(*given, **arguments):
                yield value

        made = made_asyncgen
    elif inspect.iscoroutinefunction(fn):

        async def made_async(*given: Any, **arguments: Any) -> Any:
            log(given, arguments)
            return await fn(*given, **arguments)

        made = made_async
    else:

        def made_sync(*given: Any, **arguments: Any) -> Any:
            log(given, arguments)
            return fn(*given, **arguments)

        made = made_sync
    return replace(tool, fn=functools.wraps(fn)(made))


# History as simple values -----------------------------------------------------------------------------------------------


def said(*texts: str) -> tuple[Any, ...]:
    """A row of what people said."""
    return ("said", texts)


def answered(text: str = "", *calls: tuple[str, Mapping[str, Any]]) -> tuple[Any, ...]:
    """A row of what the model answered: its text and its calls as (tool, arguments)."""
    return ("answered", text, calls)


def results(*found: tuple[str, Any]) -> tuple[Any, ...]:
    """A row of results, as (tool, output)."""
    return ("results", found)


def _simple(row: Event) -> tuple[Any, ...]:
    parts = row["m"]["parts"]
    if row["m"]["kind"] == "response":
        texts = [part["content"] for part in parts if part["part_kind"] == "text"]
        asked = [(part["tool_name"], part["args"]) for part in parts if part["part_kind"] == "tool-call"]
        return answered("".join(texts), *asked)
    if parts[0]["part_kind"] == "tool-return":
        return results(*[(part["tool_name"], part["content"]) for part in parts])
    return said(*[part["content"] for part in parts])


# The order of a stream (the wire contract has it as a grammar) -----------------------------------------------------------

_SHORTER = r"(?:compaction\.requested (?:compaction\.completed )?)"
_STEP = (
    rf"step\.started (?:action\.(?:partial|result) )*{_SHORTER}?(?:(?:message\.appended|reasoning\.appended) )*"
    r"(?:reasoning\.completed )?(?:message\.completed )?"
    r"(?:actions\.requested )?(?:action\.(?:partial|result) )*"
)
_WHOLE = rf"(?:{_STEP}step\.completed )"
_BEFORE = rf"(?:message\.received )*(?:{_SHORTER}(?:message\.received )*)?"
_ASKED = r"(?:input\.requested turn\.waiting (?:(?:message\.received |approval\.(?:settled|candidate) )*(?:turn\.waiting )?)*)"
_HELD = rf"(?:{_ASKED}input\.resolved (?:action\.result )*)"
_OPEN = rf"turn\.started message\.received (?:{_BEFORE}(?:{_WHOLE}|{_HELD}))*{_BEFORE}"
_TURN = (
    rf"{_OPEN}(?:(?:result\.completed )?turn\.completed |(?:{_STEP})?turn\.cancelled |"
    rf"{_STEP}(?:step\.completed )?step\.failed turn\.failed )"
    r"session\.waiting "
)
_CONTROL = rf"(?:context\.cleared session\.waiting |{_SHORTER}?session\.waiting )"
_SESSION = re.compile(
    rf"(?:session\.started (?:{_TURN}|{_CONTROL})*(?:{_OPEN}(?:{_STEP}|{_ASKED})?|compaction\.requested )?)?(?:session\.completed )?"
)
OURS = (
    *("step.superseded", "stream.lost", "session.rewound"),
    *("message.deferred", "message.discarded", "session.ending"),
)
BETWEEN_TURNS = ("context.cleared", "compaction.requested", "compaction.completed")
APPENDED = ("message.appended", "reasoning.appended", "action.partial")


def counted(events: Sequence[Event]) -> list[Event]:
    """The events that count: without those of dead attempts, and without what we add to the contract."""
    dropped: set[int] = set()
    for event in events:
        if event["type"] == "step.superseded":
            places = range(event["data"]["from"], event["data"]["to"] + 1)
            kinds = {events[place]["type"] for place in places}
            assert kinds <= set(APPENDED), f"committed events were superseded: {kinds}"
            dropped.update(places)
    return [event for place, event in enumerate(events) if place not in dropped and event["type"] not in OURS]


def grammar(events: Sequence[Event]) -> None:
    """Fails if the stream is not in the order of the wire contract. The last turn may be open."""
    good = counted(events)
    # That an answer came too late may be said at any moment of its turn.
    names = "".join(f"{event['type']} " for event in good if event["data"].get("outcome") != "stale")
    assert _SESSION.fullmatch(names), f"not in order: {names}"
    turns: list[str] = []
    steps: dict[str, list[int]] = {}
    deltas: dict[tuple[str, int], str] = {}
    for event in good:
        data = event["data"]
        match event["type"]:
            case "turn.started":
                turns.append(data["turnId"])
                assert data["turnId"] == f"turn_{len(turns) - 1}", turns
            case "step.started":
                steps.setdefault(data["turnId"], []).append(data["stepIndex"])
            case "message.appended":
                place = (data["turnId"], data["stepIndex"])
                deltas[place] = deltas.get(place, "") + data["messageDelta"]
            case "message.completed":
                assert deltas.get((data["turnId"], data["stepIndex"])) == data["message"], f"deltas differ: {data}"
        if "turnId" in data and event["type"] not in BETWEEN_TURNS:
            assert data["turnId"] == turns[-1], f"{event['type']} of {data['turnId']} in {turns[-1]}"
        if "stepIndex" in data and event["type"] not in BETWEEN_TURNS:
            # What is asked before the first step has its place.
            assert data["stepIndex"] == steps.get(turns[-1], [0])[-1], event
    for turn, found in steps.items():
        assert found == list(range(len(found))), f"steps of {turn}: {found}"
    asked = [action["callId"] for e in good if e["type"] == "actions.requested" for action in e["data"]["actions"]]
    settled = [e["data"]["result"]["callId"] for e in good if e["type"] == "action.result"]
    assert len(set(asked)) == len(asked), f"a call was shown twice: {asked}"
    assert len(set(settled)) == len(settled), f"a result was shown twice: {settled}"
    assert set(settled) <= set(asked), "a result without a call"


# The world --------------------------------------------------------------------------------------------------------------


class World:
    """One store, one app, and the workers that come and go."""

    def __init__(self, url: str, *, lease_seconds: float = 10.0, steps_per_task: int = 1) -> None:
        _Mourner.come()
        self.url = url
        self.settings = Settings(url=url, lease_seconds=lease_seconds, steps_per_task=steps_per_task)
        self.traffic = Traffic()
        self.effects: list[Effect] = []
        self.requests: list[ModelCall] = []
        self.accepted: dict[SessionId, list[DeliveryId]] = {}
        self.epochs: dict[SessionId, list[tuple[int, str]]] = {}
        self.the_end = threading.Event()
        """Set when the test is over: what hangs on purpose hangs on this."""
        self.layer = Layer()
        self.rewinds = 0
        self._looking = threading.Lock()
        self.sessions: list[SessionId] = []
        self._ahead_ms = 0
        self._app: App | None = None
        self._engines: list[Engine] = []
        self._seen_rows: dict[tuple[SessionId, int], list[bytes]] = {}
        self._seen_events: dict[SessionId, list[bytes]] = {}
        self.client = connect(url)
        self.journal = WatchedJournal(self, self.client, watched=False)
        self.reads = Reads(self.journal)
        self._worker: Engine | None = None

    def change(self, **settings: Any) -> None:
        """Other settings for the workers from now on."""
        self.settings = replace(self.settings, **settings)
        self._worker = None

    # Who works --------------------------------------------------------------------------------------------------------

    def app(self, model: Replies | Model, tools: Iterable[Tool] = (), **agent: Any) -> App:
        """What the workers from now on serve: one agent with this model (or script) and these tools. A redeploy if called again."""
        made: Model = ScriptedModel(model) if isinstance(model, Sequence) or callable(model) else model
        policy = agent.pop("turn_policy", "steer")
        self._app = App(
            [Agent(agent.pop("name", "helper"), model=made, tools=tuple(tools), **agent)], turn_policy=policy
        )
        self._worker = None
        return self._app

    def engine(self, app: App | None = None, **settings: Any) -> Engine:
        """Another worker: its own id, connection, threads and memory."""
        app = app or self._app
        assert app is not None, "call world.app(...) first"
        owner = owner_prefix(f"worker{len(self._engines):02d}", 1)
        agents = [
            replace(
                agent,
                model=LoggedModel(self, owner, agent.model)
                if agent.model and not isinstance(agent.model, str)
                else None,
                tools=[logged_tool(self, owner, tool) for tool in agent.tools],
            )
            for agent in app.agents
        ]
        journal = WatchedJournal(self, connect(self.url))
        engine = Engine(replace(app, agents=agents), replace(self.settings, **settings), journal=journal)
        process = Process(
            engine.app,
            engine.settings,
            journal,
            engine.reads,
            engine.clock,
            layer=self.layer,
            dice=lambda: 0.0,
            watch=engine.watch,
        )
        process.prefix = owner
        engine.process = process
        self._engines.append(engine)
        return engine

    @property
    def worker(self) -> Engine:
        """The worker at hand; another one if the last has died."""
        if self._worker is None or self.is_dead(self._worker):
            self._worker = self.engine()
        return self._worker

    def is_dead(self, engine: Engine) -> bool:
        """Whether a worker has died."""
        return cast(WatchedJournal, engine.journal).dead

    def kill(self, engine: Engine) -> None:
        """No write of this worker happens any more."""
        cast(WatchedJournal, engine.journal).dead = True

    def bury(self, session: SessionId, *, fault: bool = False) -> None:
        """The lease of whoever owns the session is over, as if its time had passed. `fault`: the session killed its process."""
        token = self.fields(session).get("token", "")
        if token:
            self.journal.disown(session, token, fault=fault)

    # What people do ---------------------------------------------------------------------------------------------------

    def create(self, text: Message | None = "hello", *, who: Principal | None = None, **beside: Any) -> SessionId:
        """A new session, perhaps with `context` and `output`. A caller that hears nothing repeats the same call."""
        session = ids.new_session(self.journal.time())
        delivery = ids.new_delivery(self.journal.time())
        self.sessions.append(session)
        body = None if text is None else body_of(text)
        self._insist(lambda: self.worker.create(body, session=session, delivery=delivery, principal=who, **beside))
        return session

    def say(
        self, session: SessionId, text: Message, *, policy: str = "", who: Principal | None = None, **beside: Any
    ) -> DeliveryId:
        """A message, perhaps with `context` and `output`. A caller that hears nothing repeats the same call."""
        delivery = ids.new_delivery(self.journal.time())
        body = body_of(text)
        given = {"delivery": delivery, "policy": policy, "principal": who, **beside}
        self._insist(lambda: self.worker.deliver(session, body, **given))
        return delivery

    def arrive(self, address: str, text: Message, *, key: str = "", who: Principal | None = None) -> Arrived:
        """A message to an address of the channel "desk". A caller that hears nothing repeats the same call."""
        delivery = ids.new_delivery(self.journal.time())
        body = body_of(text)
        arrived = self._insist(
            lambda: self.worker.arrive("desk", address, body, delivery=delivery, key=key, principal=who)
        )
        return cast(Arrived, arrived)

    def control(self, session: SessionId, kind: Control) -> DeliveryId:
        """A clear, compact or reset."""
        delivery = ids.new_delivery(self.journal.time())
        self._insist(lambda: self.worker.control(session, kind, delivery=delivery))
        return delivery

    def cancel(self, session: SessionId, *, turn: str = "") -> CancelOutcome:
        """Cancel the open turn."""
        delivery = ids.new_delivery(self.journal.time())
        return cast(CancelOutcome, self._insist(lambda: self.worker.cancel(session, turn=turn, delivery=delivery)))

    def _insist(self, call: Callable[[], object]) -> object:
        while True:
            try:
                return call()
            except (Crash, JournalAway):
                continue

    # What workers do --------------------------------------------------------------------------------------------------

    def run(self, session: SessionId, *, most: int = 200) -> list[str]:
        """Carry the session on, task after task and worker after worker, until nobody has anything to do. Returns what became of each."""
        found: list[str] = []
        while len(found) < most:
            try:
                how: str = self.worker.carry_on(session).how
            except Crash:
                how = "crashed"
            found.append(how)
            if how in ("parked", "idle", "gone", "ended", "too_new", "unreadable"):
                self.traffic.settle()
                view = self.reads.view(session)
                if (
                    view is None
                    or how in ("too_new", "unreadable")
                    or not self._has_more(session, view.fields, view.head_above_judged)
                ):
                    return found
            if how in ("crashed", "leased", "superseded", "away"):
                self.bury(session)
            if how == "later":
                self.skip(30_000)
        raise AssertionError(f"{session} comes to no rest: {found[-20:]}")

    def _has_more(self, session: SessionId, fields: Mapping[str, str], head: bool) -> bool:
        posts = bool(self.client.llen(self.journal.keys(session).out))
        return bool(fields["token"]) or fields["work"] == "1" or head or posts

    def skip(self, ms: int) -> None:
        """So much time passes for the store; what hears its answers goes along."""
        self._ahead_ms += ms

    def redis_now(self) -> int | str:
        """What the scripts are told of the time."""
        return int(time.time() * 1000) + self._ahead_ms if self._ahead_ms else ""

    # What can be seen -------------------------------------------------------------------------------------------------

    def fields(self, session: SessionId) -> dict[str, str]:
        """The session's hash."""
        found = cast("dict[bytes, bytes]", self.client.hgetall(self.journal.keys(session).own))
        return {name.decode(): value.decode() for name, value in found.items()}

    def snapshot(self, session: SessionId) -> Snapshot:
        """The stored snapshot. One at a time: a hundred tools that look at once shall not open a hundred connections."""
        with self._looking:
            return self.reads.snapshot(session)

    def rows(self, session: SessionId) -> list[Event]:
        """The history rows in use, as JSON."""
        gen = int(self.fields(session)["gen"])
        return [json.loads(row) for row in self.reads.rows(session, gen, 0)]

    def history(self, session: SessionId) -> list[tuple[Any, ...]]:
        """The history as `said`, `answered` and `results`."""
        return [_simple(row) for row in self.rows(session)]

    def events(self, session: SessionId) -> list[Event]:
        """The stream as a reader gets it."""
        return [json.loads(line) for line in self.reads.events(session, 0, 1_000_000)]

    def shown(self, session: SessionId) -> list[tuple[str, Any]]:
        """What counts of the stream, without ids and times: deltas joined, results of one step in the order of their calls."""
        found: list[tuple[str, Any]] = []
        for event in counted(self.events(session)):
            if event["type"] in APPENDED:
                continue
            data = {key: value for key, value in event["data"].items() if key != "continuationToken"}
            found.append((event["type"], data))
        return found

    def types(self, session: SessionId) -> list[str]:
        """The types of the events that count, without deltas."""
        return [name for name, _ in self.shown(session)]

    def state(self, session: SessionId) -> dict[str, object]:
        """The authored state."""
        return {name: codec.unpack_value(packed) for name, packed in self.reads.state(session).items()}

    def starts(self, what: str) -> list[Effect]:
        """How often a tool (or a model, by name) was begun."""
        return [effect for effect in self.effects if effect.what == what]

    # Another past -----------------------------------------------------------------------------------------------------

    def freeze(self, session: SessionId) -> "Frozen":
        """The store as it is now, for `rewind`."""
        found = list(self.client.scan_iter(match=f"orc:{{{ids.shard_of(session)}}}:*", count=1000))
        dumps = {key: cast(bytes, self.client.dump(key)) for key in found}
        return Frozen(session, dumps, {name: list(found) for name, found in self.accepted.items()})

    def rewind(self, frozen: "Frozen") -> None:
        """The store loses everything since `freeze`, as after a failover."""
        pipe = self.client.pipeline(transaction=True)
        for key in self.client.scan_iter(match=f"orc:{{{ids.shard_of(frozen.session)}}}:*", count=1000):
            if key not in frozen.dumps:
                pipe.delete(key)
        for key, dump in frozen.dumps.items():
            pipe.restore(key, 0, dump, replace=True)
        pipe.execute()
        self.rewinds += 1
        self.accepted = {name: list(found) for name, found in frozen.accepted.items()}
        self.epochs.clear()
        self._seen_rows.clear()
        self._seen_events.clear()

    # What must always be true -----------------------------------------------------------------------------------------

    def check(self, session: SessionId) -> None:
        """All that can be told from what is stored and what was done."""
        fields, snapshot = self.fields(session), self.snapshot(session)
        self._check_positions(session, fields, snapshot)
        self._check_deliveries(session, fields, snapshot)
        self._check_effects(session)
        self._check_history(session, snapshot)
        self._check_files(session, fields)
        self._check_stream(session, snapshot)
        self._check_rest(session, fields, snapshot)

    def _check_positions(self, session: SessionId, fields: Mapping[str, str], snapshot: Snapshot) -> None:
        keys, client = self.journal.keys(session), self.client
        seq, events, rows, base = (int(fields[name]) for name in ("seq", "events", "rows", "fact_base"))
        assert seq == base + client.llen(keys.fact), "seq is the number of facts"
        assert events == client.llen(keys.evt), "events is the length of the stream"
        assert rows == client.llen(keys.hist(int(fields["gen"]))), "rows is the length of the history"
        at = snapshot.at
        assert (at.seq, at.gen, at.rows) == (seq, int(fields["gen"]), rows), (
            "the snapshot stands where the journal does"
        )
        assert at.events <= events
        if base == 0:
            folded = EMPTY
            for fact in self.reads.facts(session):
                folded = advance(folded, fact)
            assert replace(folded, at=at) == snapshot, "the facts make the snapshot"
        granted = self.epochs.get(session, [])
        tokens: dict[int, set[str]] = {}
        for epoch, token in granted:
            tokens.setdefault(epoch, set()).add(token)
        assert all(len(found) == 1 for found in tokens.values()), "an epoch has one owner"
        assert len({token for _, token in granted}) == len(tokens), "a token owns once"
        assert client.object("ENCODING", keys.own) == b"listpack", "no value of the hash is long"

    def _check_files(self, session: SessionId, fields: Mapping[str, str]) -> None:
        keys, client, gen = self.journal.keys(session), self.client, int(fields["gen"])
        found = cast("list[tuple[bytes, float]]", client.zrange(keys.blobs, 0, -1, withscores=True))
        listed = {name.decode(): at for name, at in found}
        there = {
            key.decode().rpartition(":")[2]: key for key in client.scan_iter(match=f"{keys.blob('*')}", count=1000)
        }
        kept = {name for name, key in there.items() if client.ttl(key) == -1}
        assert kept <= set(listed), "bytes that nothing speaks of stay for ever"
        history = [self.layer.read(message_of(row)) for row in self.reads.rows(session, gen, 0)]
        for file in self.layer.files(history):
            assert file.blob in listed, "the history speaks of a file that nothing keeps"
            assert file.blob in kept or (file.url and file.blob not in there), "the history speaks of a file that goes"
        assert all(at in (gen, math.inf) for at in listed.values()), "files of a history that is gone"

    def _check_deliveries(self, session: SessionId, fields: Mapping[str, str], snapshot: Snapshot) -> None:
        keys, client = self.journal.keys(session), self.client
        waiting = [name.decode() for name in cast("list[bytes]", client.zrange(keys.inbox, 0, -1))]
        consumed: Counter[str] = Counter()
        turns: Counter[str] = Counter()
        if fields["fact_base"] == "0":
            for fact in self.reads.facts(session):
                match fact:
                    case TurnStarted():
                        consumed.update(fact.deliveries)
                        turns.update(fact.deliveries)
                    case MessagesJoined():
                        consumed.update(fact.deliveries)
                        turns.update(fact.deliveries)
                    case DeliveryDropped() | CancelAccepted() | ControlKept() | AnswersTaken():
                        consumed[fact.delivery] += 1
                    case TailLost() | ContextCleared() | CompactionDue() | SessionEnding() if fact.delivery:
                        consumed[fact.delivery] += 1
            assert all(number == 1 for number in consumed.values()), f"used twice: {consumed}"
            assert not set(consumed) & set(waiting), "used and still waiting"
            lost = set(self.accepted.get(session, [])) - set(consumed) - set(waiting)
            assert not lost, f"accepted and lost: {lost}"
        heads = {head.id: head for head in self.reads.heads(session, 0)}
        boxed = {name.decode() for name in cast("list[bytes]", client.hkeys(keys.box))}
        assert {name.removeprefix("b:") for name in boxed} == set(waiting), "the box holds what waits and nothing else"
        if len(waiting) <= 64:
            messages = sum(head.envelope.kind == "message" for head in heads.values())
            assert int(fields["waiting"]) == messages, "waiting counts the messages that wait"

    def _check_effects(self, session: SessionId) -> None:
        arguments: dict[str, set[str]] = {}
        assert self._app is not None
        for effect in self.effects:
            if not effect.key.startswith(f"{session}/"):
                continue
            assert not effect.again, f"a committed result happened again: {effect}"
            arguments.setdefault(effect.key, set()).add(f"{effect.what} {effect.arguments}")
        assert all(len(found) == 1 for found in arguments.values()), f"one key, two calls: {arguments}"
        careful = {tool.name for agent in self._app.agents for tool in agent.tools if tool.on_interrupt == "report"}
        starts = Counter(effect.key for effect in self.effects if effect.what in careful)
        assert all(number == 1 for number in starts.values()), f"a call that must not start twice did: {starts}"

    def _check_history(self, session: SessionId, snapshot: Snapshot) -> None:
        rows = [row["m"] for row in self.rows(session)]
        for place, row in enumerate(rows):
            calls = [part["tool_call_id"] for part in row["parts"] if part["part_kind"] == "tool-call"]
            answers = [part["tool_call_id"] for part in row["parts"] if part["part_kind"] == "tool-return"]
            if answers:
                before = [part["tool_call_id"] for part in rows[place - 1]["parts"] if part["part_kind"] == "tool-call"]
                assert answers == before, f"row {place}: results {answers} for calls {before}"
            if not calls:
                continue
            if place + 1 < len(rows):
                assert rows[place + 1]["parts"][0]["part_kind"] == "tool-return", f"row {place}: calls without results"
            else:
                assert snapshot.turn is not None, "the last row has calls without results, and no turn is open"
                assert len(snapshot.turn.calls) == len(calls)
        names = [row["id"] for row in self.rows(session)]
        assert len(set(names)) == len(names), "two rows have one id"
        gen = int(self.fields(session)["gen"])
        stored = self.reads.rows(session, gen, 0)
        seen = self._seen_rows.get((session, gen), [])
        assert stored[: len(seen)] == seen, "a row has changed"
        self._seen_rows[(session, gen)] = stored
        old = [g for g in range(gen) if self.client.exists(self.journal.keys(session).hist(g))]
        assert not old, f"generations that are not used any more are there: {old}"
        open_calls = {call.id for call in snapshot.turn.calls if call.state == "settled"} if snapshot.turn else set()
        records = {name.decode() for name in cast("list[bytes]", self.client.hkeys(self.journal.keys(session).rec))}
        turn = snapshot.turn
        kept: set[str] = {turn.id} if turn is not None and turn.aside else set()
        kept |= {result_key(turn.id)} if turn is not None and turn.delivered else set()
        assert records == open_calls | kept, "records are those of the open step and turn"

    def _check_stream(self, session: SessionId, snapshot: Snapshot) -> None:
        lines = self.reads.events(session, 0, 1_000_000)
        events = [json.loads(line) for line in lines]
        names = [event["meta"]["id"] for event in events]
        assert len(set(names)) == len(names), "two events have one id"
        seen = self._seen_events.get(session, [])
        assert lines[: len(seen)] == seen, "an event has changed"
        self._seen_events[session] = lines
        grammar(events)
        good = counted(events)
        self._check_delivery_ids(session, good)
        opened = [event["type"] for event in good].count("turn.started")
        assert opened == snapshot.next_turn, "every turn is in the stream"
        ended = sum(event["type"] in ("turn.completed", "turn.failed", "turn.cancelled") for event in good)
        assert ended == opened - (1 if snapshot.turn else 0), "a turn ends once"

    def _check_delivery_ids(self, session: SessionId, good: Sequence[Event]) -> None:
        """Every event of a turn names the messages that had joined it by then, the closing boundary too."""
        answers: list[str] = []
        first: dict[str, list[str]] = {}
        later: dict[str, list[tuple[str, ...]]] = {}
        for fact in self.reads.facts(session):
            if isinstance(fact, TurnStarted):
                first[fact.turn] = list(fact.deliveries)
            elif isinstance(fact, MessagesJoined):
                later.setdefault(fact.turn, []).append(fact.deliveries)
            elif isinstance(fact, AnswersTaken) and fact.words:
                answers.append(fact.delivery)
        turn, told, received, open_ = "", list[str](), 0, False
        for event in good:
            kind, named = event["type"], event["meta"].get("deliveryIds")
            if kind == "turn.started":
                turn, open_ = event["data"]["turnId"], True
                told = first.get(turn, [])
                received = len(told)
            if turn not in first:
                continue  # its facts are not kept any more
            if not open_:
                assert named is None, f"{kind} between two turns: {event['meta']}"
                continue
            if kind == "message.received" and not (named and named[-1] in answers):
                received -= 1
                if received < 0:
                    more = later[turn].pop(0)
                    told, received = [*told, *more], len(more) - 1
            joined = [name for name in named or () if name not in answers]
            assert joined == told, f"{kind} of {turn}: {event['meta']}, {told} had joined"
            open_ = kind != "session.waiting"

    def _check_rest(self, session: SessionId, fields: Mapping[str, str], snapshot: Snapshot) -> None:
        keys, client = self.journal.keys(session), self.client
        now = self.journal.time()
        due = client.zscore(keys.due, session)
        if fields["status"] == "ended":
            assert not fields["token"], "an ended session has an owner"
            assert not client.exists(keys.inbox), "something waits for an ended session"
            return
        if not fields["token"]:
            assert fields["lease"] == "0", "nobody's lease"
        timer = int(fields["next_timer"])
        has_head = bool(self.reads.heads(session, snapshot.judged if snapshot.turn else 0))
        if fields["token"] or fields["work"] == "1" or has_head:
            assert due is not None, "there is work, and nobody will look"
            assert due <= now + max(self.journal.grace_ms, self.journal.lease_ms), "somebody looks soon"
        elif timer:
            assert due is not None, "there is a timer, and nobody will look"
            assert due <= timer, "somebody looks in time"

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all threads and connections of the workers."""
        self.the_end.set()
        for engine in self._engines:
            self.kill(engine)
            if engine.process._news is not None:
                engine.process._news.stop()
        # A message, so that listeners look up at once and see that they are to stop.
        self.client.publish(next(iter(news_channels("orc"))), "the end")
        for engine in self._engines:
            engine.close()
        self.journal.close()


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a store held."""

    session: SessionId
    dumps: Mapping[bytes, bytes]
    accepted: Mapping[SessionId, list[DeliveryId]]


def last_said(text: str) -> Reply:
    """A final answer, for scripts that are functions."""
    return Reply(text)
