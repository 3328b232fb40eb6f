"""Both clients under one name: what a test says of one it says of the other. And the ways in which a network fails them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from inspect import isawaitable
from typing import Any

import httpx2

from orchestrator.client import AsyncClient, Client, Patience

QUICK = Patience(seconds=5, first_pause_seconds=0.005, longest_pause_seconds=0.01)
Answers = Callable[[httpx2.Request], httpx2.Response]


class Both:
    """One of the clients, for a story that is told to either: `say(lambda client: ...)` awaits what has to be awaited."""

    def __init__(self, kind: str, url: str, answers: Answers | None = None, **options: Any) -> None:
        self.kind = kind
        self._url = url
        self._answers = answers
        self._options = {"patience": QUICK, **options}

    def say(self, story: Callable[[Any], Any]) -> Any:
        """What a story comes to. Whatever it returns is waited for, and an iterator is read to its end."""
        return self._sync(story) if self.kind == "sync" else asyncio.run(self._async(story))

    def _sync(self, story: Callable[[Any], Any]) -> Any:
        transport = httpx2.MockTransport(self._answers) if self._answers else None
        with httpx2.Client(transport=transport) as http, Client(self._url, http=http, **self._options) as client:
            found = story(client)
            return list(found) if isinstance(found, Iterator) else found

    async def _async(self, story: Callable[[Any], Any]) -> Any:
        transport = httpx2.MockTransport(self._answers) if self._answers else None
        http = httpx2.AsyncClient(transport=transport)
        async with http, AsyncClient(self._url, http=http, **self._options) as client:
            found = story(client)
            if isinstance(found, AsyncIterator):
                return [one async for one in found]
            return await found if isawaitable(found) else found


class Losing(httpx2.BaseTransport):
    """Carries requests to the server, and loses so many of its answers to those that change something."""

    def __init__(self, losses: int) -> None:
        self._inner = httpx2.HTTPTransport()
        self.losses = losses
        self.lost: list[str] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        if request.method != "GET" and len(self.lost) < self.losses:
            response.read()
            response.close()
            self.lost.append(f"{request.method} {request.url.path} {response.status_code}")
            raise httpx2.ReadError("the answer was lost", request=request)
        return response

    def close(self) -> None:
        self._inner.close()


class Cuts:
    """Cuts streams after a random number of bytes, often within a line, until there were so many cuts."""

    def __init__(self, cuts: int, seed: int, between: tuple[int, int] = (50, 700)) -> None:
        self.left = cuts
        self.connections = 0
        self.made = 0
        self._chance = random.Random(seed)
        self._between = between

    def next(self) -> int | None:
        """After how many bytes the connection that begins now is cut; None: never."""
        self.connections += 1
        if self.left <= 0:
            return None
        self.left -= 1
        return self._chance.randrange(*self._between)


class CutStream(httpx2.SyncByteStream):
    """A body that breaks off."""

    def __init__(self, inner: httpx2.SyncByteStream, after: int, cuts: Cuts) -> None:
        self._inner, self._left, self._cuts = inner, after, cuts

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            yield data[: self._left]
            self._left -= len(data)
            if self._left <= 0:
                self._cuts.made += 1
                raise httpx2.ReadError("cut")

    def close(self) -> None:
        self._inner.close()


class AsyncCutStream(httpx2.AsyncByteStream):
    """A body that breaks off, for asyncio."""

    def __init__(self, inner: httpx2.AsyncByteStream, after: int, cuts: Cuts) -> None:
        self._inner, self._left, self._cuts = inner, after, cuts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            yield data[: self._left]
            self._left -= len(data)
            if self._left <= 0:
                self._cuts.made += 1
                raise httpx2.ReadError("cut")

    async def aclose(self) -> None:
        await self._inner.aclose()


class Cutting(httpx2.BaseTransport):
    """Carries requests, and cuts streams."""

    def __init__(self, cuts: Cuts) -> None:
        self._inner = httpx2.HTTPTransport()
        self._cuts = cuts

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        if not request.url.path.endswith("/stream") or (after := self._cuts.next()) is None:
            return response
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = CutStream(response.stream, after, self._cuts)
        return response

    def close(self) -> None:
        self._inner.close()


class AsyncCutting(httpx2.AsyncBaseTransport):
    """Carries requests, and cuts streams, for asyncio."""

    def __init__(self, cuts: Cuts) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._cuts = cuts

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if not request.url.path.endswith("/stream") or (after := self._cuts.next()) is None:
            return response
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = AsyncCutStream(response.stream, after, self._cuts)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
