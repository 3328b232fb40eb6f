"""What can go wrong for a caller of the HTTP API: one small tree, and each text says what to do.

ClientError
├── Refused                  the server has understood and said no; other codes than those below stay a plain Refused
│   ├── BadRequest           400, 413, 415
│   ├── Unauthorized         401
│   ├── Forbidden            403
│   ├── SessionNotFound      404
│   ├── SessionNotActive     409
│   ├── DeliveryKeyReused    409
│   ├── RequestUnknown       409
│   ├── AddressTaken         409
│   └── InboxFull            429
├── ServerAway               no answer, or none that is the server's, for as long as the client has patience
├── StreamBroken             a stream that is not one
├── TookTooLong              the caller's own timeout is over; nothing was stopped
└── NoAnswer                 a text was wanted of a turn that has none: it failed, was cancelled, or waits for people

None of them is an `OrchestratorError`, though some have the names of one: a tool or a channel that talks to another server must not have
the refusals of that one taken for refusals of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.client.turns import Outcome


class ClientError(Exception):
    """Something went wrong between this client and its server.

    The facts of an error are keyword arguments; the docstring of its class is its text.
    """

    code = "client_error"

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        super().__init__((type(self).__doc__ or "").format(**facts))

    def __reduce__(self) -> tuple[object, ...]:
        # Made of facts and not of a text, so pools and task queues could not carry it as they carry others.
        return _again, (type(self), str(self)), self.__dict__


class Refused(ClientError):
    """The server refused this with {status} {code}: {problem}"""

    def __init__(
        self, *, status: int, code: str, problem: str, body: Mapping[str, Any], retry_after: float | None = None
    ) -> None:
        super().__init__(status=status, code=code, problem=problem)
        self.status = status
        self.code = code
        self.body = body
        """All that the answer says; of a 500 its `errorId` is also in the server's log."""
        self.retry_after = retry_after
        """Seconds after which the server wants to be asked again, if it says so."""


class BadRequest(Refused):
    """Mend the request before you send it again. The server says: {problem}"""


class Unauthorized(Refused):
    """The server does not know this credential: give the client another `auth`. It says: {problem}"""


class Forbidden(Refused):
    """This caller may not do that: use a credential with the scope that is named. The server says: {problem}"""


class SessionNotFound(Refused):
    """There is no such session for this caller: it never existed, was erased, or is somebody else's. The server says: {problem}"""


class SessionNotActive(Refused):
    """The session takes nothing more: start a new one. The server says: {problem}"""


class DeliveryKeyReused(Refused):
    """This key was used for something else: send the same message again, or use another key. The server says: {problem}"""


class RequestUnknown(Refused):
    """Answer with the id of a request that this session has asked. The server says: {problem}"""


class AddressTaken(Refused):
    """The address leads to a session of somebody else: use another address. The server says: {problem}"""


class InboxFull(Refused):
    """Too many messages wait in this session: send it again, with the same key, when a turn has ended. The server says: {problem}"""


class ServerAway(ClientError):
    """No answer to {asked} for {seconds:.0f} s: {reason}. {remedy}"""

    code = "server_away"


class StreamBroken(ClientError):
    """What came in the place of event {index} is no event: {reason}. Look at what stands between this client and its server."""

    code = "stream_broken"


class TookTooLong(ClientError, TimeoutError):
    """{what} was not there within {seconds:g} s. Nothing was stopped: ask again, with more time, or cancel the turn."""

    code = "took_too_long"


class NoAnswer(ClientError):
    """The turn of this message has no text to give: {problem} {remedy}"""

    code = "no_answer"

    def __init__(self, outcome: Outcome) -> None:
        error = outcome.error
        problem, remedy = {
            "failed": (
                f"it failed with {error.code}: {error.message}" if error else "it failed.",
                "Send the message again, or mend what it names.",
            ),
            "cancelled": ("it was cancelled.", "Send the message again if it is still wanted."),
            "waiting": (
                f"it waits for answers to {', '.join(request.request_id for request in outcome.requests)}.",
                "Answer them (`turn.answer`), then ask for the text again.",
            ),
        }.get(outcome.state, ("its session ended before the message was used.", "Start a new session with it."))
        super().__init__(problem=problem, remedy=remedy)
        self.outcome = outcome


def _again(kind: type[ClientError], text: str) -> ClientError:
    error = kind.__new__(kind)
    error.args = (text,)
    return error


KINDS: Mapping[str, type[Refused]] = {
    **dict.fromkeys(("bad_request", "not_supported_yet", "cursor_of_other_session", "body_too_large"), BadRequest),
    **dict.fromkeys(("file_too_large", "file_type_refused"), BadRequest),
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "session_not_found": SessionNotFound,
    "session_not_active": SessionNotActive,
    "delivery_key_reused": DeliveryKeyReused,
    "request_unknown": RequestUnknown,
    "address_taken": AddressTaken,
    "inbox_full": InboxFull,
}
BY_STATUS: Mapping[int, type[Refused]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    413: BadRequest,
    415: BadRequest,
}
"""For answers without a code that is known, of a proxy perhaps, or of a later server."""


def refusal(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> Refused:
    """The error that an answer stands for."""
    code, problem = body.get("code"), body.get("error")
    code = code if isinstance(code, str) else ""
    if not isinstance(problem, str):
        problem = "This is no answer of ours: is the address of the server right, and what stands before it?"
    kind = KINDS.get(code) or BY_STATUS.get(status, Refused)
    return kind(status=status, code=code, problem=problem, body=body, retry_after=retry_after)
