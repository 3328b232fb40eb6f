"""Files in a history: a text stands for each, and what it stands for is put there when the history is sent.

So a history is readable, and may be summed up, without the bytes. A model is shown pictures, PDF, sound and film as such, and what is
text as text; of all else it is told what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from httpx2 import HTTPStatusError, RequestError
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ModelMessage,
    ModelRequest,
    TextContent,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import download_item

from orchestrator.core.delivery import File

MARK = "file"
"""In the metadata of the text that stands for a file: which one it is."""
MOST_TEXT_BYTES = 200_000
"""Of a file that is text, a model is shown so much at most."""
SHOWN = ("image/", "audio/", "video/")
PDF = "application/pdf"
TEXTS = frozenset(
    f"application/{kind}"
    for kind in (
        *("json", "ld+json", "x-ndjson", "xml", "yaml", "x-yaml", "toml", "javascript", "x-javascript", "typescript"),
        *("sql", "graphql", "x-sh", "x-python", "csv", "rtf", "x-httpd-php"),
    )
)
DOWNLOAD_TRIES = 3
DOWNLOAD_SECONDS = 30.0


def text_of(file: File) -> TextContent:
    """What stands for a file."""
    said = {"blob": file.blob, "mediaType": file.media_type, "name": file.name, "size": file.size, "url": file.url}
    kept = {
        **{name: value for name, value in said.items() if value},
        **({"channel": file.channel} if file.channel else {}),
    }
    return TextContent(file.shown, metadata={MARK: kept})


def in_history(history: Sequence[Any]) -> list[File]:
    """The files that a history speaks of, oldest first."""
    return [file for message in history if isinstance(message, ModelRequest) for file in _in_request(message)]


def _in_request(message: ModelRequest) -> Iterator[File]:
    for part in message.parts:
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
            yield from (file for piece in part.content if (file := _file(piece)) is not None)


def _file(piece: object) -> File | None:
    match piece:
        case TextContent(metadata={"file": {"blob": str(blob), "mediaType": str(media_type), **more}}):
            name, url, channel = (str(more.get(one, "")) for one in ("name", "url", "channel"))
            return File(media_type, name, int(str(more.get("size", 0))), url, blob, channel)
    return None


def filled(
    messages: Sequence[ModelMessage], bytes_of: Mapping[str, bytes | str], refused: Container[str] = ()
) -> list[ModelMessage]:
    """The messages with the files where their texts stand. `bytes_of`: by blob, or why there are none. `refused` stay texts."""
    return [_with_files(message, bytes_of, refused) for message in messages]


def _with_files(message: ModelMessage, bytes_of: Mapping[str, bytes | str], refused: Container[str]) -> ModelMessage:
    if not isinstance(message, ModelRequest) or next(_in_request(message), None) is None:
        return message
    parts = [
        replace(part, content=[one for piece in part.content for one in _shown(piece, bytes_of, refused)])
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str)
        else part
        for part in message.parts
    ]
    return replace(message, parts=parts)


def _shown(piece: UserContent, bytes_of: Mapping[str, bytes | str], refused: Container[str]) -> Iterator[UserContent]:
    file = _file(piece)
    if file is None:
        yield piece
        return
    found = bytes_of.get(file.blob, "it is left out here, for there are newer files")
    if file.blob in refused:
        found = "the model does not take it"
    if isinstance(found, str):
        yield f"{file.shown[:-1]}, not shown: {found}]"
    elif file.media_type.startswith("text/") or file.media_type in TEXTS or file.media_type.endswith(("+json", "+xml")):
        cut = "" if len(found) <= MOST_TEXT_BYTES else f"\n[the first {MOST_TEXT_BYTES} of {len(found)} bytes]"
        yield f"{file.shown}\n{found[:MOST_TEXT_BYTES].decode(errors='replace')}{cut}"
    elif file.media_type.startswith(SHOWN) or file.media_type == PDF:
        yield file.shown
        yield BinaryContent(found, media_type=file.media_type)
    else:
        yield f"{file.shown[:-1]}, {len(found)} bytes, not shown: the model cannot read this kind]"


async def download(url: str, media_type: str, limit_bytes: int, *, local: bool = False) -> bytes:
    """What is behind a URL, from public addresses only (`local`: also from this machine). Raises `ValueError` with why there is nothing."""
    for tries in range(1, DOWNLOAD_TRIES + 1):
        try:
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                item = DocumentUrl(url, media_type=media_type, force_download="allow-local" if local else True)
                found = (await download_item(item, data_format="bytes"))["data"]
        except HTTPStatusError as answer:
            status = answer.response.status_code
            if status < 500 or tries == DOWNLOAD_TRIES:
                raise ValueError(f"its server answered {status}") from answer
        except (RequestError, TimeoutError) as away:
            if tries == DOWNLOAD_TRIES:
                raise ValueError("its server did not answer") from away
        else:
            if len(found) > limit_bytes:
                raise ValueError(f"it has more than {limit_bytes} bytes")
            return bytes(found)
        await _pause(0.5 * tries)
    raise AssertionError


async def _pause(seconds: float) -> None:
    await asyncio.sleep(seconds)
