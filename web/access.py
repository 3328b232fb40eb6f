"""Who may do what: scopes for services, their own sessions for everybody else.

What somebody may not reach looks as if it did not exist: the answers are those for an id that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flask import Request, g

from orchestrator.agent import Access
from orchestrator.auth import Caller, Shown
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.errors import Forbidden, SessionNotFound

TakesPart: TypeAlias = Callable[[SessionId, Principal], bool]


def shown(request: Request) -> Shown:
    """What a request shows of its caller. The peer is the socket's: no header can change it."""
    headers = {name.lower(): text for name, text in request.headers}
    return Shown(headers, str(request.environ.get("REMOTE_ADDR", "")))


def remember(caller: Caller) -> None:
    """Keep who makes this request."""
    g.orchestrator_caller = caller


def caller() -> Caller:
    """Who makes this request."""
    found: Caller = g.orchestrator_caller
    return found


def check_scope(who: Caller, scope: str) -> None:
    """Whether a service may do this at all. Raises `Forbidden`."""
    if not who.is_user and scope not in who.scopes:
        raise _lacking(who, scope)


def check_metrics(who: Caller) -> None:
    """Whether somebody may scrape: a service that may look at everything, or at this alone. Raises `Forbidden`."""
    if who.is_user or not who.scopes & {"metrics", "read"}:
        raise _lacking(who, "metrics")


def check_session(
    who: Caller, session: SessionId, scope: str, takes_part: TakesPart, widen: Access | None = None
) -> None:
    """Whether this caller may do this to this session. Raises `Forbidden`, or `SessionNotFound` for what they may not even know of."""
    if not who.is_user or who.principal is None:
        check_scope(who, scope)
        return
    own = takes_part(session, who.principal)
    if own and scope in who.scopes:
        return
    if widen is not None and widen(who.principal, session, scope):
        return
    if own:
        raise _lacking(who, scope)
    raise SessionNotFound(session=session)


def _lacking(who: Caller, scope: str) -> Forbidden:
    if who.principal is None:
        remedy = "Use a key that has it: `orchestrator keys new NAME --scopes ...`"
        return Forbidden(problem=f"Callers without a name lack the scope {scope}. {remedy}.")
    if who.is_user:
        return Forbidden(problem=f"Users lack the scope {scope}. App(access=...) may give it to them.")
    return Forbidden(
        problem=f"{who.principal.id} lacks the scope {scope}. Use a key that has it: `orchestrator keys new NAME --scopes ...`."
    )
