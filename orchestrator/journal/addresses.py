"""Addresses: where a channel finds its session. Something that comes to one goes to the session there, or begins one; once by its keys.

An address is a pointer; the session's life is the truth, and one that is not live counts as nobody. A session that an address starts lives
in the address's shard, so one script looks and acts. Further addresses of a session may live elsewhere: what comes to one of them is
written down at its door before it is delivered, so that a repeat goes the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from orchestrator.core import codec
from orchestrator.core.delivery import Delivery
from orchestrator.core.names import DeliveryId, Millis, SessionId
from orchestrator.core.snapshot import READS
from orchestrator.envelope import RESUME
from orchestrator.errors import (
    AddressesFull,
    AddressTaken,
    BadRequest,
    DeliveryKeyReused,
    InboxFull,
    JournalAway,
    SessionNotActive,
)
from orchestrator.ids import address_key, address_shard, admission_key, erased_key, shard_of
from orchestrator.journal.admission import OUTCOMES, Admission
from orchestrator.journal.answers import Address, AdmissionKey, Arrived
from orchestrator.journal.client import spoken
from orchestrator.journal.keys import Door, door
from orchestrator.journal.listed import CHANNEL, OWNED, WAS, Listed, listed, understood

MOST_ADDRESSES = 256
"""Addresses a session has beside its own id."""
MOST_SUCCESSORS = 16
"""Sessions that may end under one call before it gives up for now."""
PAGE = 200
"""Keys of a door that are looked at in one script."""


class Addresses(Admission):
    """Arrive, reserve, resolve; take and drop addresses."""

    def arrive(
        self,
        channel: str,
        address: str,
        delivery: Delivery,
        *,
        candidate: SessionId,
        agent: str,
        deployment: str,
        keys: Sequence[AdmissionKey] = (),
        who: str = "",
        life_ms: int = 0,
        only: str = "",
    ) -> Arrived:
        """Bring something to an address: into the session there, or, if it is a message and nobody is there, into the session `candidate`,
        which begins with it. Safe to repeat, with the same keys or the same delivery, at any time within a day.

        `candidate` must be of the address's shard (`ids.address_shard`). Without `keys` the delivery's id is its key. `only`: who must take
        part in the session that is there. Raises `AddressTaken` where they do not, `SessionNotActive` when there is nothing to control,
        `DeliveryKeyReused`, `InboxFull`, `BadRequest`, `JournalFull`, `JournalAway`.
        """
        at = self._door(channel, address)
        if shard_of(candidate) != at.shard:
            raise ValueError(f"{candidate} is not in shard {at.shard}, where its address is")
        expect = ""
        for _ in range(MOST_SUCCESSORS):
            pairs = [(admission_key(channel, key.key), key.digest) for key in keys or (AdmissionKey(delivery.id),)]
            answer = self._arrive(
                at, channel, address, delivery, candidate, agent, deployment, pairs, who, life_ms, expect, only
            )
            match answer[0]:
                case b"elsewhere":
                    owner, known = SessionId(answer[2].decode()), DeliveryId(answer[3].decode())
                    if only and not self._takes_part(owner, only):
                        raise AddressTaken(address=f"{channel}/{address}")
                    try:
                        there = self.deliver(owner, replace(delivery, id=known), who=who)
                    except SessionNotActive:
                        expect = owner
                        continue
                    return Arrived(owner, known, started=False, again=there.again, outcome=there.outcome, at=there.at)
                case b"reused":
                    reused = next(
                        key.key for key, pair in zip(keys, pairs, strict=False) if pair[0] == answer[1].decode()
                    )
                    raise DeliveryKeyReused(key=reused)
                case b"full":
                    raise InboxFull(session=answer[2].decode(), waiting=answer[1], limit=self.waiting_limit)
                case b"taken":
                    raise AddressTaken(address=f"{channel}/{address}")
                case b"nobody":
                    raise SessionNotActive(session=f"{channel}/{address}")
                case b"gone":
                    raise SessionNotActive(session=candidate)
            word, now, ring, session, name, outcome, started, label = answer
            if ring == 1:
                self.wake.publish(RESUME, label.decode(), SessionId(session.decode()), name.decode())
            return Arrived(
                session=SessionId(session.decode()),
                delivery=DeliveryId(name.decode()),
                started=started == 1,
                again=word == b"again",
                outcome=cast(Any, OUTCOMES[int(outcome)]),
                at=Millis(int(now)),
            )
        raise JournalAway(reason=f"{MOST_SUCCESSORS} sessions have ended at this address meanwhile")

    def _arrive(
        self,
        at: Door,
        channel: str,
        address: str,
        delivery: Delivery,
        candidate: SessionId,
        agent: str,
        deployment: str,
        pairs: Sequence[tuple[str, str]],
        who: str,
        life_ms: int,
        expect: str,
        only: str,
    ) -> list[Any]:
        envelope = delivery.envelope
        return self._run_with_blobs(
            "arrive",
            self.keys(candidate),
            {
                "adr": at.address,
                "adm": at.admissions,
                "door": at.key,
                "agent": agent,
                "deployment": deployment,
                "reads": READS,
                "parent": "",
                "root": candidate,
                "life_ms": life_ms,
                "mute": "",
                "id": delivery.id,
                "kind": envelope.kind,
                "guard": envelope.guard,
                "head": codec.pack(envelope),
                "body": codec.pack(delivery.body) if delivery.body else b"",
                "who_is": who,
                "limit": self.waiting_limit,
                "grace_ms": self.grace_ms,
                "expect": expect,
                "only": only,
                "listed": listed(CHANNEL, channel, address),
                "grave": erased_key(candidate),
                "base": at.base,
                **self._resume_wake,
            },
            delivery.blobs,
            [part for pair in pairs for part in pair],
        )

    def reserve(self, channel: str, key: str, digest: str = "") -> Literal["new", "again"]:
        """Remember a webhook's own id for a day, for the whole channel, once its signature was checked. `again` says only that it came
        before, and not what became of it: let the same keys tell that. Raises `DeliveryKeyReused`, `JournalFull`, `JournalAway`."""
        name = admission_key(channel, key)
        at = door(self.prefix, address_key(channel, ""), address_shard(name))
        answer = self._run(
            "reserve",
            None,
            {
                "adm": at.admissions,
                "adms": at.by_age,
                "door": at.key,
                "key": name,
                "digest": digest,
                "base": at.base,
            },
            level=self.durability,
        )
        if answer[0] == b"reused":
            raise DeliveryKeyReused(key=key)
        return "new" if answer[0] == b"new" else "again"

    # Where an address leads -------------------------------------------------------------------------------------------

    def resolve(self, channel: str, address: str) -> SessionId | None:
        """The session that is live at an address."""
        with spoken():
            found = cast("bytes | None", self.client.get(self._door(channel, address).address))
        if found is None or self._life(SessionId(found.decode())) != b"live":
            return None
        return SessionId(found.decode())

    def addresses(self, session: SessionId) -> list[Address]:
        """The addresses a session has, in an order that stays. An operation that made it is one of them, and has no text."""
        found = self._list(session).values()
        return sorted(Address(one.channel, one.text, one.kind) for one in found if one.state == OWNED)

    def take_address(self, session: SessionId, channel: str, address: str) -> None:
        """Let an address lead to a session as well. One that it has already is free. Raises `AddressTaken` when another live session has
        it, `AddressesFull`, `SessionNotActive`, `BadRequest`, `JournalFull`, `JournalAway`."""
        self._take_listed(session, channel, address)
        self._settle_all()

    def _take_listed(self, session: SessionId, channel: str, address: str) -> None:
        at, text = self._door(channel, address), listed(CHANNEL, channel, address)
        before, last = self._listed(session, at.key)
        if before is not None and before.state == OWNED:
            return
        said = self._note(session, at.key, "take", before.number if before else last, text)
        match said[0]:
            case b"crowded":
                for key in said[1:]:
                    self._forget_door(session, key.decode())
                    if old := self._listed(session, key.decode())[0]:
                        self._note(session, key.decode(), "forgotten", old.number)
                self._take_listed(session, channel, address)
                return
            case b"moved":
                self._take_listed(session, channel, address)
                return
            case b"full":
                raise AddressesFull(session=session, limit=MOST_ADDRESSES)
            case b"ended" | b"gone":
                raise SessionNotActive(session=session)
        number = int(said[1])
        if not self._take(at, session, number):
            # Should it run late, it finds that more has happened.
            self._at_the_door("drop_address", at, session, number + 1)
            # A door it once had may name it still.
            self._note(session, at.key, "free" if before is None else "was", number)
            raise AddressTaken(address=f"{channel}/{address}")
        if self._note(session, at.key, "taken", number)[0] in (b"ended", b"gone"):
            # It ended in between. Should that have let go of its addresses before this one was taken, nobody else will.
            self._let_go(session, at.key, number + 1)
            raise SessionNotActive(session=session)

    def drop_address(self, session: SessionId, channel: str, address: str) -> None:
        """Let an address lead to a session no more. One that is another's by now is left alone. Raises `JournalAway`."""
        self._drop_listed(session, self._door(channel, address).key)
        self._settle_all()

    def _drop_listed(self, session: SessionId, key: str) -> None:
        before, _ = self._listed(session, key)
        if before is None or before.state == WAS:
            return
        said = self._note(session, key, "drop", before.number)
        if said[0] == b"moved":
            self._drop_listed(session, key)
        elif said[0] == b"done":
            self._let_go(session, key, int(said[1]))

    # At the address, and in the session's list ------------------------------------------------------------------------

    def _door(self, channel: str, address: str) -> Door:
        if not address:
            raise BadRequest(problem="An address must have a text.")
        key = address_key(channel, address)
        return door(self.prefix, key, address_shard(key))

    def _take(self, at: Door, session: SessionId, number: int) -> bool:
        """Whether the address leads to the session now, or did before it was dropped again."""
        expect = ""
        for _ in range(MOST_SUCCESSORS):
            answer = self._at_the_door("take_address", at, session, number, expect=expect, base=at.base)
            if answer[0] != b"elsewhere":
                return bool(answer[0] != b"taken")
            owner = SessionId(answer[1].decode())
            if self._life(owner) == b"live":
                return False
            expect = owner
        raise JournalAway(reason=f"{MOST_SUCCESSORS} sessions have ended at this address meanwhile")

    def _let_go(self, session: SessionId, key: str, number: int) -> None:
        """The address leads to the session no more, and the session's list says so."""
        self._at_the_door("drop_address", door(self.prefix, key, address_shard(key)), session, number)
        self._note(session, key, "dropped", number)

    def _at_the_door(self, verb: str, at: Door, session: SessionId, number: int, **more: object) -> list[Any]:
        keys = {"adr": at.address, "adm": at.admissions, "adms": at.by_age, "door": at.key}
        return self._run(
            verb, None, {**keys, "session": session, "grave": erased_key(session), "number": number, **more}
        )

    def _forget_door(self, session: SessionId, key: str) -> None:
        """No key at this door names the session any more."""
        at = door(self.prefix, key, address_shard(key))
        forgotten = True
        while forgotten:
            # Once more after the last find: a key beside it may have been written while we looked.
            cursor, forgotten = "0", False
            while True:
                named = {"adm": at.admissions, "adms": at.by_age, "session": session, "door": key}
                answer = self._run("forget", None, {**named, "cursor": cursor, "most": PAGE})
                cursor, forgotten = answer[0].decode(), forgotten or answer[1] > 0
                if cursor == "0":
                    break

    def _note(self, session: SessionId, key: str, step: str, number: int, text: str = "") -> list[Any]:
        named = {"key": key, "step": step, "number": number, "listed": text, "most": MOST_ADDRESSES}
        return self._run("list_address", self.keys(session), named)

    def _list(self, session: SessionId) -> dict[str, Listed]:
        with spoken():
            found = cast("dict[bytes, bytes]", self.client.hgetall(self.keys(session).adrs))
        return {key.decode(): understood(said) for key, said in found.items()}

    def _listed(self, session: SessionId, key: str) -> tuple[Listed | None, int]:
        """What the list says of an address, and the last number that the session has given to any."""
        keys = self.keys(session)
        with spoken():
            pipe = self.client.pipeline(transaction=True)
            pipe.hget(keys.adrs, key)
            pipe.hget(keys.own, "adr_n")
            said, last = pipe.execute()
        return None if said is None else understood(said), int(last or 0)

    def _takes_part(self, session: SessionId, who: str) -> bool:
        with spoken():
            return bool(self.client.sismember(self.keys(session).who, who))

    def _life(self, session: SessionId) -> bytes | None:
        with spoken():
            return cast("bytes | None", self.client.hget(self.keys(session).own, "status"))
