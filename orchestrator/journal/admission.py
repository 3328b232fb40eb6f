"""What comes in: sessions begin, deliveries are put into their inboxes. Both under ids of the caller, so that a repeat is known."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.core import codec
from orchestrator.core.delivery import Delivery
from orchestrator.core.names import Millis, SessionId
from orchestrator.core.snapshot import READS
from orchestrator.envelope import RESUME
from orchestrator.errors import DeliveryKeyReused, InboxFull, SessionNotActive
from orchestrator.ids import erased_key, shard_of
from orchestrator.journal.answers import Admitted, Operation
from orchestrator.journal.blobs import Blobs
from orchestrator.journal.listed import OPERATION, listed

OUTCOMES = ("taken", "cancelling", "other_turn", "nothing_runs")


class Admission(Blobs):
    """Create and deliver."""

    def create(
        self,
        session: SessionId,
        *,
        agent: str,
        deployment: str,
        first: Delivery | None = None,
        parent: str = "",
        root: str = "",
        life_ms: int = 0,
        who: str = "",
        operation: Operation | None = None,
        may_ask: bool = True,
    ) -> Admitted:
        """Bring a session into being; with `life_ms` it has a deadline. Raises `JournalFull`, `JournalAway`, and `SessionNotActive` for
        an id that was erased.

        `operation`: whoever comes with it again is told of the session it made (`Admitted.session`), and nothing is delivered, while
        that session is live and for a day after it was made. The session must be of the operation's shard. `who` takes part. Without
        `may_ask` the session asks nobody.
        """
        keys = self.keys(session)
        if operation is not None and operation.shard != shard_of(session):
            raise ValueError(f"{session} is not in shard {operation.shard}, where its operation is")
        answer = self._run_with_blobs(
            "create",
            keys,
            {
                "adr": keys.address(operation.address) if operation else keys.own,
                "agent": agent,
                "deployment": deployment,
                "reads": READS,
                "parent": parent,
                "root": root or session,
                "life_ms": life_ms,
                "mute": "" if may_ask else "1",
                "grace_ms": self.grace_ms,
                "delivery": first.id if first else "",
                "head": codec.pack(first.envelope) if first else b"",
                "body": codec.pack(first.body) if first and first.body else b"",
                "who_is": who,
                "operation": operation.address if operation else "",
                "listed": listed(OPERATION, "", "") if operation else "",
                "grave": erased_key(session),
                "base": keys.base,
                **self._resume_wake,
            },
            first.blobs if first else {},
        )
        if answer[0] == b"gone":
            raise SessionNotActive(session=session)
        if answer[2] == 1 and first:
            self.wake.publish(RESUME, deployment, session, first.id)
        return Admitted(SessionId(answer[3].decode()), answer[0] == b"again", Millis(int(answer[1])))

    def deliver(self, session: SessionId, delivery: Delivery, *, digest: str = "", who: str = "") -> Admitted:
        """Admit a delivery. Raises `SessionNotActive`, `InboxFull`, `JournalFull`, `JournalAway`.

        `digest`: of what was sent under a caller's own key (at most 32 characters); another one under the same id raises
        `DeliveryKeyReused`. `who` takes part from now on.
        """
        envelope = delivery.envelope
        answer = self._run_with_blobs(
            "deliver",
            self.keys(session),
            {
                "id": delivery.id,
                "kind": envelope.kind,
                "guard": envelope.guard,
                "head": codec.pack(envelope),
                "body": codec.pack(delivery.body) if delivery.body else b"",
                "digest": digest,
                "who_is": who,
                "reads": READS,
                "limit": self.waiting_limit,
                "grace_ms": self.grace_ms,
                "base": self.keys(session).base,
                **self._resume_wake,
            },
            delivery.blobs,
        )
        match answer[0]:
            case b"gone" | b"ended":
                raise SessionNotActive(session=session)
            case b"full":
                raise InboxFull(session=session, waiting=answer[1], limit=self.waiting_limit)
            case b"reused":
                raise DeliveryKeyReused(key=delivery.id)
            case code:
                if answer[2] == 1:
                    self._publish(RESUME, session, delivery.id)
                outcome = cast(Any, OUTCOMES[int(answer[3])])
                return Admitted(session, code == b"again", Millis(int(answer[1])), outcome, int(answer[4]), delivery.id)
