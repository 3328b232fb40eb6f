"""What is true of addresses and of keys, over all sessions: where an address leads, and that what has a key is taken in once a day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.ids import address_key, address_shard, shard_of
from orchestrator.journal import Journal
from orchestrator.journal.keys import door
from tests.property.agent import CHANNEL
from tests.property.book import Said
from tests.property.ledger import Ledger
from tests.property.line import line_of

DAY_MS = 24 * 3600 * 1000
HOME, ALIAS = "home", "alias-2"
"""The address where sessions begin, and one of another shard that they take and drop."""
CONCERNED = ("create", "arrive", "take_address", "drop_address", "list_address", "commit", "erase", "take_out")
assert address_shard(address_key(CHANNEL, HOME)) != address_shard(address_key(CHANNEL, ALIAS))


@dataclass(frozen=True, slots=True)
class Promise:
    """What was taken in under a key, and when."""

    session: str
    delivery: str
    at: int


class Doors:
    """All addresses of a story, and all keys."""

    def __init__(self, journal: Journal, ledgers: Mapping[str, Ledger]) -> None:
        self.problems: list[str] = []
        self.rewound = False
        self._line, self._ledgers = line_of(journal.client), ledgers
        self._prefix = journal.prefix
        self._keys = {address_key(CHANNEL, text): text for text in (HOME, ALIAS)}
        self._led: dict[str, str] = {}
        self._key_of: dict[str, str] = {}
        self._promised: dict[str, Promise] = {}
        self.began: dict[str, str] = {}
        """The sessions that an address has started."""

    def must(self, holds: object, what: str) -> None:
        """Something that must be true."""
        if not holds:
            self.problems.append(what)

    def complain(self) -> None:
        """Fails if something was not true."""
        assert not self.problems, "\n".join(self.problems)

    # Keys -------------------------------------------------------------------------------------------------------------

    def named(self, key: str, delivery: str) -> None:
        """Somebody is about to send this under a key."""
        self._key_of[delivery] = key

    def forget(self) -> None:
        """So much time has passed that every key may be used anew."""
        self._key_of, self._promised = {}, {}

    def accepted(self, delivery: str, session: str, now: int) -> None:
        """A session has let something in."""
        key = self._key_of.get(delivery)
        if key is None or self.rewound:
            return
        if (first := self._young(key, now)) is not None:
            self.must(False, f"{key} was taken in twice: {first}, and {delivery} by {session}")
        self._promised[key] = Promise(session, delivery, now)

    def answered(self, key: str, session: str, delivery: str, now: int) -> None:
        """Somebody was told what became of what they sent under a key."""
        first = self._young(key, now)
        if not self.rewound and first is not None:
            told = (session, delivery)
            self.must(told == (first.session, first.delivery), f"{key}: first it was {first}, now {told}")

    def _young(self, key: str, now: int) -> Promise | None:
        """What was promised within a day, unless its session was erased."""
        first = self._promised.get(key)
        if first is None or now - first.at >= DAY_MS or self._ledgers[first.session].life == "gone":
            return None
        return first

    # Addresses --------------------------------------------------------------------------------------------------------

    def observe(self, said: Said) -> None:
        """A call has reached the server: do all addresses of sessions that live lead to them?"""
        name, before = said.verb.name, self._led
        if name not in CONCERNED or self.rewound:
            return
        self._look()
        if name == "arrive":
            self._arrived(said, before)
        for session, ledger in self._ledgers.items():
            if ledger.life != "live":
                continue
            for key, listed in ledger.adrs.items():
                if listed[0] == "o":
                    where = self._led.get(key) or self._at(key)
                    self.must(where == session, f"{name}: {session} has {key}, which leads to {where!r}: {listed}")

    def _arrived(self, said: Said, before: Mapping[str, str]) -> None:
        key, answer = said.argument("door"), said.answer
        owner = before.get(key, "")
        life = self._ledgers[owner].life if owner else "gone"
        match answer[0]:
            case b"started":
                self.must(life != "live", f"{answer[3]} was started, and {owner} is live at {self._keys[key]}")
                self.must(self._led.get(key) == answer[3].decode(), "it was started, and nothing leads to it")
                self.began[answer[3].decode()] = self._keys[key]
            case b"accepted":
                self.must(answer[3].decode() == owner, f"it came to {answer[3]}; the address leads to {owner}")
            case b"elsewhere" if not self._is_known(said):
                self.must(answer[2].decode() == owner, f"it was sent to {answer[2]}; the address leads to {owner}")
            case b"nobody":
                here = owner and shard_of(owner) == address_shard(key)
                self.must(not here or life in ("ending", "ended", "gone"), f"nobody is there, and {owner} is {life}")

    def _is_known(self, said: Said) -> bool:
        """Whether it came before, and goes where it went then."""
        return said.argument("id") in self._key_of or said.answer[2].decode() != self._led.get(said.argument("door"))

    def at_rest(self) -> None:
        """Nobody is at work: an address leads to somebody who lives and knows of it, or to nobody."""
        if self.rewound:
            return
        self._look()
        for key, session in self._led.items():
            if not session:
                continue
            ledger = self._ledgers[session]
            self.must(ledger.life == "live", f"{self._keys[key]} leads to {session}, which is {ledger.life}")
            listed = ledger.adrs.get(key, "")
            self.must(listed[:1] in ("o", "t", "d"), f"{self._keys[key]} leads to {session}, which says {listed!r}")

    def _look(self) -> None:
        found = self._line.ask(*[("GET", self._address(key)) for key in self._keys])
        self._led = {key: led.decode() if led else "" for key, led in zip(self._keys, found, strict=True)}

    def _at(self, key: str) -> str:
        found = self._line.say(("GET", self._address(key)))
        return found.decode() if found else ""

    def _address(self, key: str) -> str:
        return door(self._prefix, key, address_shard(key)).address
