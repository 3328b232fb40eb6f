"""With what a client comes in."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

Shown: TypeAlias = str | Mapping[str, str]
"""A key or token, or the headers themselves."""
Auth: TypeAlias = str | tuple[str, str] | Callable[[], Shown]
"""An API key or a signed token; name and password; or a function that gives a token or headers, and is asked before each request."""
AsyncAuth: TypeAlias = Auth | Callable[[], Awaitable[Shown]]


def headers(shown: Shown | tuple[str, str]) -> Mapping[str, str]:
    """The headers that show a credential."""
    match shown:
        case str():
            return {"authorization": f"Bearer {shown}"}
        case (name, password):
            return {"authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}
        case _:
            return shown
