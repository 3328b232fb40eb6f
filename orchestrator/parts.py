"""What a message consists of: texts and files, as callers give them, and which files are taken.

    {"type": "text", "text": "What does it say?"}
    {"type": "file", "mediaType": "application/pdf", "filename": "bill.pdf", "data": "<base64, a data: URL or an https URL>"}

A file behind a URL is fetched when the model is called, not here.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from orchestrator.core.delivery import Body, File, Part
from orchestrator.errors import BadRequest, ConfigError, FileRefused, FileTooLarge

Message = str | Sequence[Mapping[str, Any]] | Body
"""A text, or a list of parts as the HTTP API has them (`data` may be bytes), or what came of one."""
MOST_FILES = 20
LONGEST_URL = 4096
LONGEST_NAME = 255
MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9.+_-]{0,60}/[a-z0-9][a-z0-9.+_-]{0,120}")
PATTERN = re.compile(rf"\*/\*|[a-z0-9.+_-]+/\*|{MEDIA_TYPE.pattern}")
DATA_URL = re.compile(r"data:[^,;]*(?:;[^,;]*)*;base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Uploads:
    """Which files a message may bring: of so many bytes each, and of these media types (`image/*` is one, `*/*` all)."""

    limit_bytes: int = 25 * 1024 * 1024
    media_types: Sequence[str] = ("*/*",)

    def __post_init__(self) -> None:
        if isinstance(self.media_types, str) or not all(PATTERN.fullmatch(one) for one in self.media_types):
            raise ConfigError(
                problem=f"{self.media_types!r} are no media types.", remedy='Write ["image/*", "application/pdf"].'
            )
        if self.limit_bytes < 0:
            raise ConfigError(problem=f"limit_bytes={self.limit_bytes} is below 0.", remedy="Give a number of bytes.")

    def takes(self, media_type: str) -> bool:
        """Whether files of this type may come in."""
        return any(one in ("*/*", media_type, f"{media_type.partition('/')[0]}/*") for one in self.media_types)

    def check(self, body: Body) -> None:
        """Refuse a message with a file that must not come in. Raises `FileRefused`, `FileTooLarge`."""
        files = [(place, part.file) for place, part in enumerate(body.parts) if part.file is not None]
        wrong = [_violation(place, file) for place, file in files if not self.takes(file.media_type)]
        if wrong:
            taken = ", ".join(self.media_types) or "none"
            raise FileRefused(
                types=", ".join(sorted({one["mediaType"] for one in wrong})), taken=taken, violations=wrong
            )
        large = [_violation(place, file) for place, file in files if file.size > self.limit_bytes]
        if large:
            raise FileTooLarge(limit_bytes=self.limit_bytes, violations=large)


ANY_FILES = Uploads()


def _violation(place: int, file: File) -> dict[str, Any]:
    return {"part": place, "filename": file.name, "mediaType": file.media_type, "size": file.size}


def body_of(message: Message, where: str = "message") -> Body:
    """A message as it is stored. Raises `BadRequest`."""
    match message:
        case Body():
            return message
        case str():
            return Body((Part("text", text_of(where, message)),))
        case [*parts] if parts:
            made = tuple(_part(f"{where}[{place}]", part) for place, part in enumerate(parts))
        case _:
            raise BadRequest(problem=f"{where} must be a text, or a list of parts with at least one in it.")
    if sum(part.type == "file" for part in made) > MOST_FILES:
        raise BadRequest(problem=f"{where} has more than {MOST_FILES} files. Send several messages.")
    return Body(made)


def _part(where: str, given: Any) -> Part:
    match given:
        case {"type": "text", "text": str(text)}:
            return Part("text", text_of(f"{where}.text", text))
        case {"type": "text"}:
            raise BadRequest(problem=f"{where}.text must be a text.")
        case {"type": "file", "mediaType": str(media_type), "data": str() | bytes() as data}:
            file = _file(where, media_type.strip().lower(), data)
            file = replace(file, name=_name(where, given.get("filename", "")))
            return Part("file", file.shown, file)
        case {"type": "file"}:
            raise BadRequest(problem=f"{where} must have mediaType and data: base64, a data: URL or an https URL.")
        case {"type": str(kind)}:
            raise BadRequest(problem=f"{where}.type is {kind[:40]!r}; there are text and file.")
        case _:
            raise BadRequest(problem=f"{where} must be an object with a type.")


def text_of(where: str, text: str) -> str:
    """A text that says something and can be stored. Raises `BadRequest`."""
    if not text:
        raise BadRequest(problem=f"{where} is empty.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(problem=f"{where} has half of a surrogate pair, which is no character.") from None
    return text


def _file(where: str, media_type: str, data: str | bytes) -> File:
    media_type = media_type.partition(";")[0].rstrip()
    if not MEDIA_TYPE.fullmatch(media_type):
        raise BadRequest(problem=f"{where}.mediaType is no media type like image/png.")
    if isinstance(data, bytes):
        return File(media_type, size=len(data), data=data)
    scheme = data[:8].lower()
    if scheme.startswith("https://"):
        return File(media_type, url=_url(where, data))
    if scheme.startswith("http://"):
        raise BadRequest(problem=f"{where}.data is an http URL. Only https is fetched.")
    text = data
    if scheme.startswith("data:"):
        head = DATA_URL.match(data)
        if head is None:
            raise BadRequest(problem=f"{where}.data is a data: URL that is not in base64.")
        text = data[head.end() :]
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(problem=f"{where}.data is neither base64 nor a data: or https URL.") from None
    return File(media_type, size=len(found), data=found)


def _url(where: str, url: str) -> str:
    try:
        host = urlsplit(url).hostname
        url.encode("ascii")
    except ValueError:
        host = None
    if not host or len(url) > LONGEST_URL:
        raise BadRequest(problem=f"{where}.data is no URL of at most {LONGEST_URL} ASCII characters.")
    return url


def _name(where: str, given: object) -> str:
    """A file's name on one line, without what only looks like it."""
    if not isinstance(given, str):
        raise BadRequest(problem=f"{where}.filename must be a text.")
    name = "".join(letter if letter.isprintable() else " " for letter in given).strip()
    return text_of(f"{where}.filename", name[:LONGEST_NAME]) if name else ""
