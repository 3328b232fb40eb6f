"""Every error a user of this package can meet: one base, one tree, a code for programs and a text that says what to do.

OrchestratorError
├── ConfigError            something is set wrongly; nothing was started
├── SessionNotFound        404
├── SessionNotActive       409
├── DeliveryKeyReused      409
├── AddressTaken           409
├── AddressesFull          409
├── RequestUnknown         409
├── LinkUnknown            404
├── LinkUsed               409
├── InboxFull              429
├── BadRequest             400
│   ├── NotSupportedYet    400
│   ├── BodyTooLarge       413
│   ├── FileTooLarge       413
│   └── FileRefused        415
├── Unauthorized           401
├── Forbidden              403
├── IssuerAway             503
├── TooManyStreams         503
├── JournalAway            503
├── JournalFull            503
├── WorldMismatch          the stored world cannot be used by this version
├── NotStorable            a value that no checkpoint can hold
└── UnreadableHistory      a stored row that this version cannot read

The facts of an error are keyword arguments; the class docstring is its text.
"""

from __future__ import annotations


class OrchestratorError(Exception):
    """Something went wrong: {reason}."""

    code = "error"
    status = 500

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        text = type(self).__doc__ or ""
        try:
            text = text.format(**facts)
        except KeyError:  # raised without its facts, by a channel of somebody else's perhaps
            text = type(self).code.replace("_", " ")
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        # It is made of facts and not of a text: pools and task queues could not carry it as they carry others.
        return _made_again, (type(self), str(self)), self.__dict__


def _made_again(kind: type[OrchestratorError], text: str) -> OrchestratorError:
    error = kind.__new__(kind)
    error.args = (text,)
    return error


class ConfigError(OrchestratorError):
    """{problem} {remedy}"""

    code = "config_error"


class SessionNotFound(OrchestratorError):
    """Session not found. {session} never existed, or its retention has passed."""

    code, status = "session_not_found", 404


class SessionNotActive(OrchestratorError):
    """{session} takes no more messages: it has ended or never existed. Start a new session."""

    code, status = "session_not_active", 409


class RequestUnknown(OrchestratorError):
    """{session} has never asked {request}. Answer with the id of an `input.requested` of its stream."""

    code, status = "request_unknown", 409


class LinkUnknown(OrchestratorError):
    """This link leads to no request. It was mistyped, or its session is gone."""

    code, status = "link_unknown", 404


class LinkUsed(OrchestratorError):
    """This link was used before, for another answer. The stream of its session says how the request ended."""

    code, status = "link_used", 409


class InboxFull(OrchestratorError):
    """{waiting} messages wait for {session}, the limit is {limit}. Send again when a turn has ended."""

    code, status = "inbox_full", 429


class DeliveryKeyReused(OrchestratorError):
    """The key {key} was used for another message. Send the same message again, or use a new key."""

    code, status = "delivery_key_reused", 409


class AddressTaken(OrchestratorError):
    """The address {address} belongs to another session that is still active. End that one first, or use another address."""

    code, status = "address_taken", 409


class AddressesFull(OrchestratorError):
    """{session} has {limit} addresses already. Drop one that is not used any more."""

    code, status = "addresses_full", 409


class BadRequest(OrchestratorError):
    """{problem}"""

    code, status = "bad_request", 400


class NotSupportedYet(BadRequest):
    """{field} is not supported by this version. Send the request without it."""

    code = "not_supported_yet"


class BodyTooLarge(BadRequest):
    """The body has more than {limit_bytes} bytes. Send less text, or raise the limit of the server."""

    code, status = "body_too_large", 413


class FileTooLarge(BadRequest):
    """A file has more than {limit_bytes} bytes. Send a smaller one, or raise limit_bytes of the App's uploads."""

    code, status = "file_too_large", 413


class FileRefused(BadRequest):
    """Files of {types} are not taken here; these are: {taken}."""

    code, status = "file_type_refused", 415


class Unauthorized(OrchestratorError):
    """{problem}"""

    code, status = "unauthorized", 401


class Forbidden(OrchestratorError):
    """{problem}"""

    code, status = "forbidden", 403


class IssuerAway(OrchestratorError):
    """The issuer {issuer} does not answer, so its tokens cannot be checked: {reason}. Try again shortly."""

    code, status = "issuer_away", 503


class TooManyStreams(OrchestratorError):
    """This process already serves {limit} readers. Try again shortly, or start more web processes (ORCHESTRATOR_STREAMS)."""

    code, status = "too_many_streams", 503


class JournalAway(OrchestratorError):
    """The journal (Redis) does not answer: {reason}. Say the same again, with the same ids, until there is an answer."""

    code, status = "journal_away", 503


class JournalFull(OrchestratorError):
    """The journal (Redis) is out of memory and accepts nothing new. Work that has begun can finish. Free memory or raise maxmemory."""

    code, status = "journal_full", 503


class WorldMismatch(OrchestratorError):
    """The journal says {found}, this version needs {needed}. Use another key prefix (ORCHESTRATOR_PREFIX) or the version that wrote it."""

    code = "world_mismatch"


class NotStorable(OrchestratorError):
    """{where}: a {kind} cannot be stored. Use plain values: text, numbers, booleans, lists, dicts, dates, Decimal, UUID, bytes, enums, dataclasses."""

    code = "not_storable"


class UnreadableHistory(OrchestratorError):
    """A stored row of {session} cannot be read by this version: {reason}. Start a worker of the version that wrote it."""

    code = "needs_newer_worker"
