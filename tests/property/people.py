"""What people and their channels ask for: messages and controls, by id and by address, once or again; and who drops what.

Each of them asks on a fiber of its own, so that anything may come between two calls of one wish; some die in the middle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import orchestrator.ids as ids
from orchestrator import deliveries
from orchestrator.core.delivery import Body, Delivery, Envelope, File, Part, Response
from orchestrator.core.names import DeliveryId, Millis, SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import AddressTaken, InboxFull, JournalAway, SessionNotActive
from orchestrator.journal import AdmissionKey, Journal, Operation
from orchestrator.journal.tidying import tidy
from tests.property.agent import CHANNEL
from tests.property.doors import ALIAS, DAY_MS, HOME, Doors
from tests.property.ledger import Ledger
from tests.property.schedule import Fiber

LABEL = "default"
ANNA, BOB = Principal("test", "user", "anna"), Principal("test", "user", "bob", extra={"name": "Bob"})
PEOPLE = (None, ANNA, ANNA, BOB)
MOST_SESSIONS = 5
LIFE_MS = 30 * DAY_MS
Move = tuple[float, Callable[[], None]]


class Town(Protocol):
    """Where they live."""

    now: int
    seed: int
    dice: random.Random
    doors: Doors

    @property
    def desk(self) -> Journal:
        """Where they ask."""
        ...

    def ledgers(self) -> list[Ledger]:
        """All sessions there ever were, oldest first."""
        ...

    def ask(self, wish: Callable[[], None]) -> Fiber:
        """Let somebody ask for something."""
        ...

    def told_erased(self, session: SessionId) -> None:
        """Somebody was told that nothing is left of a session."""
        ...


class People:
    """Those who ask."""

    def __init__(self, town: Town) -> None:
        dice = town.dice
        self._town = town
        self._dice = dice
        self._file_dice = random.Random(f"files of {town.seed}")
        self._by_address = dice.random() < 0.5
        self._life_ms = LIFE_MS if dice.random() < 0.5 else 0
        self._erases = dice.random() < 0.1
        self._ends = dice.random() < 0.4
        self._operation = Operation("do it", ANNA) if dice.random() < 0.2 else None
        self._keyed: list[Callable[[], None]] = []
        """What was said under a key, and may be said again."""
        self._day = 0

    def moves(self) -> list[Move]:
        """What they may do, and how often."""
        address = 1.0 if self._by_address else 0.0
        return [
            (1.4, lambda: self._to_session(self._deliver)),
            (0.7, lambda: self._to_session(self._cancel)),
            (1.2, lambda: self._to_session(self._answer)),
            (0.2, lambda: self._to_session(lambda session: self._control(session, "clear"))),
            (0.35, lambda: self._to_session(lambda session: self._control(session, "compact"))),
            (0.25 if self._ends else 0.0, lambda: self._to_session(lambda session: self._control(session, "reset"))),
            (0.3, lambda: self._to_session(self._deliver_keyed)),
            (0.8 * address, lambda: self._arrive(HOME, keyed=False)),
            (0.3 * address, lambda: self._arrive(HOME, keyed=True)),
            (0.5 * address, lambda: self._arrive(ALIAS, keyed=self._dice.random() < 0.7)),
            (0.2 * address, lambda: self._control_at(self._dice.choice([HOME, ALIAS]))),
            (0.25, lambda: self._to_session(self._take)),
            (0.15, lambda: self._to_session(self._drop)),
            (0.8, self._again),
            (0.1, self.begin),
            (0.15 if self._erases else 0.0, lambda: self._to_session(self._erase)),
        ]

    def begin(self) -> None:
        """A session begins, or the first message comes to its address."""
        if len(self._town.ledgers()) >= MOST_SESSIONS:
            return
        if self._by_address:
            self._arrive(HOME, keyed=self._dice.random() < 0.3)
            return
        operation = self._operation
        session = ids.new_session(self._town.now, operation.shard if operation else None)
        principal = operation.principal if operation else self._dice.choice(PEOPLE)
        first = self._message(principal) if self._dice.random() < 0.8 else None

        def create() -> None:
            who = ids.principal_key(principal) if principal else ""
            self._town.desk.create(
                session,
                agent="helper",
                deployment=LABEL,
                first=first,
                who=who,
                operation=operation,
                life_ms=self._life_ms,
            )

        self.insist(create)

    def insist(self, call: Callable[[], object]) -> Fiber:
        """Somebody asks for something; without an answer, they ask again, perhaps."""

        def ask() -> None:
            while True:
                try:
                    call()
                    return
                except JournalAway:
                    if self._dice.random() < 0.3:
                        return
                except (InboxFull, SessionNotActive, AddressTaken):
                    return

        return self._town.ask(ask)

    def forget(self) -> None:
        """So much time has passed that nobody says anything again."""
        self._keyed = []
        self._day += 1

    # To a session -----------------------------------------------------------------------------------------------------

    def _to_session(self, act: Callable[[SessionId], None]) -> None:
        ledgers = self._town.ledgers()
        if ledgers:
            act(ledgers[-1].session if self._dice.random() < 0.6 else self._dice.choice(ledgers).session)

    def _message(self, principal: Principal | None, name: str = "", text: str = "") -> Delivery:
        text = text or (f"message {self._dice.randrange(1000)}" if self._dice.random() < 0.9 else self._words())
        policy = self._dice.choice(["steer", "steer", "queue"])
        body = Body((Part("text", text), *self._files()))
        delivery = DeliveryId(name) if name else ids.new_delivery(self._town.now)
        return deliveries.message(Millis(self._town.now), body, principal, policy, delivery)

    def _words(self) -> str:
        return self._dice.choice(["approve", "Cancel", "1", "2", "continue", "blue"])

    def _files(self) -> list[Part]:
        """Some of them bring a file, which holds its name. With dice of their own, so that the rest of a story is as it was without."""
        if self._file_dice.random() > 0.3:
            return []
        file = File("image/png", f"{self._file_dice.random()}.png")
        return [Part("file", file.shown, replace(file, data=file.name.encode()))]

    def _order(self, kind: str, guard: str = "") -> Delivery:
        at = Millis(self._town.now)
        return Delivery(ids.new_delivery(at), Envelope(kind, self._dice.choice(PEOPLE), guard=guard, at=at))

    def _send(self, session: SessionId, delivery: Delivery, digest: str = "") -> None:
        self._town.desk.deliver(session, delivery, digest=digest, who=who_of(delivery))

    def _deliver(self, session: SessionId) -> None:
        delivery = self._message(self._dice.choice(PEOPLE))
        self.insist(lambda: self._send(session, delivery))

    def _deliver_keyed(self, session: SessionId) -> None:
        """The same key again is the same message: it gets the first answer, whatever has become of the session."""
        key, principal = f"{session}/{self._day}.{self._dice.randrange(4)}", self._dice.choice(PEOPLE)
        key = f"{key} of {principal.id if principal else 'somebody'}"
        delivery = self._message(principal, ids.keyed_delivery(session, principal, key), f"of {key}")
        self._town.doors.named(key, delivery.id)

        def deliver() -> None:
            admitted = self._town.desk.deliver(session, delivery, digest=ids.digest(key.encode()), who=who_of(delivery))
            self._town.doors.answered(key, session, admitted.delivery, self._town.now)

        self._keyed.append(deliver)
        self.insist(deliver)

    def _cancel(self, session: SessionId) -> None:
        turn = next(ledger.open_turn for ledger in self._town.ledgers() if ledger.session == session)
        delivery = self._order("cancel", self._dice.choice(["", "", turn, "turn_0", "turn_9"]))
        self.insist(lambda: self._send(session, delivery))

    def _answer(self, session: SessionId) -> None:
        """Somebody answers some of what was ever asked, sensibly or not."""
        ledger = next(one for one in self._town.ledgers() if one.session == session)
        if not (asked := ledger.asked.all):
            return
        dice, turn = self._dice, ledger.book.snapshot.turn
        chosen = dice.sample(asked[-4:], dice.randint(1, min(3, len(asked))) if len(asked[-4:]) >= 3 else 1)
        by = turn.principal if turn and dice.random() < 0.6 else dice.choice(PEOPLE)
        options = ("approve", "approve", "approve", "cancel", "cancel", "what", "continue", "stop", "1")
        said = [Response(one, dice.choice(options), dice.choice(["", "", "because"])) for one in chosen]
        self._answers(session, said, by)

    def _answers(self, session: SessionId, answers: list[Response], by: Principal | None) -> None:
        delivery = deliveries.answers(Millis(self._town.now), answers, by, None)
        self.insist(lambda: self._send(session, delivery))

    def decide(self, ledger: Ledger) -> None:
        """Whoever caused the turn makes up their mind at last."""
        turn = ledger.book.snapshot.turn
        assert turn is not None
        option = self._dice.choice(["approve", "cancel"])
        decided = {
            "tool-approval": (option, ""),
            "question": ("", "whatever"),
            "session-limit": ("continue" if option == "approve" else "stop", ""),
        }
        waiting = [request for request in turn.requests if request.is_open]
        self._answers(ledger.session, [Response(one.id, *decided[one.kind]) for one in waiting], turn.principal)

    def _control(self, session: SessionId, kind: str) -> None:
        delivery = self._order(kind)
        self.insist(lambda: self._send(session, delivery))

    def report_tail(self) -> None:
        """A reader says how much it has seen: as much as there ever was."""
        ledger = self._dice.choice(self._town.ledgers())
        delivery = self._order("tail_seen", str(ledger.most_events))
        self.insist(lambda: self._town.desk.deliver(ledger.session, delivery))

    # To an address ----------------------------------------------------------------------------------------------------

    def _arrive(self, text: str, keyed: bool) -> None:
        principal = self._dice.choice(PEOPLE)
        if not keyed:
            delivery = self._message(principal)
            self.insist(lambda: self._come(text, delivery, ()))
            return
        # A message is known by its sender's key, which makes its id, or by what it is, whatever its id.
        by_key = self._dice.random() < 0.5
        key = f"{text}/{'key' if by_key else 'identity'}/{self._day}.{self._dice.randrange(4)}"
        key = f"{key} of {principal.id if principal else 'somebody'}"
        name = ids.keyed_delivery(f"{CHANNEL}/{text}", principal, key) if by_key else ""
        delivery = self._message(principal, name, f"of {key}")
        self._town.doors.named(key, delivery.id)
        keys = (AdmissionKey(delivery.id, ids.digest(key.encode())),) if by_key else (AdmissionKey(f"message/{key}"),)
        self._keyed.append(lambda: self._come(text, delivery, keys, key))
        self.insist(self._keyed[-1])

    def _control_at(self, text: str) -> None:
        kinds = ("cancel", "clear", "compact", *(("reset",) if self._ends else ()))
        delivery = self._order(self._dice.choice(kinds))
        self.insist(lambda: self._come(text, delivery, ()))

    def _come(self, text: str, delivery: Delivery, keys: tuple[AdmissionKey, ...], key: str = "") -> None:
        town = self._town
        shard = ids.address_shard(ids.address_key(CHANNEL, text))
        arrived = town.desk.arrive(
            CHANNEL,
            text,
            delivery,
            candidate=ids.new_session(town.now, shard),
            agent="helper",
            deployment=LABEL,
            keys=keys,
            who=who_of(delivery),
            life_ms=self._life_ms,
        )
        if key:
            town.doors.answered(key, arrived.session, arrived.delivery, town.now)

    def _again(self) -> None:
        if self._keyed:
            self.insist(self._dice.choice(self._keyed[-8:]))

    def _take(self, session: SessionId) -> None:
        text = ALIAS if self._dice.random() < 0.8 else HOME
        self.insist(lambda: self._town.desk.take_address(session, CHANNEL, text))

    def _drop(self, session: SessionId) -> None:
        self.insist(lambda: self._town.desk.drop_address(session, CHANNEL, ALIAS))

    # Nothing is left --------------------------------------------------------------------------------------------------

    def _erase(self, session: SessionId) -> None:
        def erase() -> None:
            while not self._town.desk.erase(session):
                pass
            self._town.told_erased(session)

        self.insist(erase)

    def erase_all(self) -> None:
        """Nobody wants to hear of this any more."""
        for ledger in self._town.ledgers():
            self._erase(ledger.session)

    def tidy(self) -> None:
        """A keeper puts in order what is to be put in order."""

        def put() -> None:
            for session in self._town.desk.tidy(self._town.now):
                tidy(self._town.desk, session, self._town.now)

        self.insist(put)


def who_of(delivery: Delivery) -> str:
    """Who takes part with it."""
    principal = delivery.envelope.principal
    return ids.principal_key(principal) if principal else ""
