"""A stand-in for an OpenAI-compatible provider: /v1/chat/completions with SSE streams, on 127.0.0.1, no key needed.

In a test, scripted (each call takes the next reply; after the last one, and without a script, `by_message` answers):

    with FakeOpenAI([error(429, retry_after=2), text("hello")]) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        ...                                              # model "openai-chat:gpt-test"
        assert provider.calls[0].messages[-1]["content"] == "hi"
        provider.wait_for(lambda: provider.calls[0].disconnected_at)

A script may also be a function `(Call) -> Reply`. What a provider can do wrong is a reply, too:

    text("a b c")                      words, one delta each; `reasoning=` before them
    tools(use("find", x=1), use(...))  tool calls, their arguments in pieces, parallel ones interleaved; `use(..., id="c")`
    error(500), error(429, retry_after=2), error(400, code="context_length_exceeded", message=...)
    cut(text("a b c"), after=2)        after 2 deltas the connection is reset; how="drop": closed in the middle of the body;
                                       how="end": the body ends properly, but without finish and [DONE]; how="silent": hangs
    empty(), filtered()                no content at all; the content filter's finish
    text(..., token_seconds=0.05, call_seconds=1)    slow: between deltas, before the first byte

For tests with several processes:

    python -m tests.fake_openai PORT LOGFILE [--token-seconds S] [--call-seconds S]

prints `ready URL` and answers by the last user message, which may say what should happen (the rest of it is free text):

    steps=5            tool calls in 4 answers, then a final text (default 1: the text at once)
    tool=NAME          which tool (default: the first that the request offers); calls=3: three in each answer
    args={"x":1}       the arguments (default: made up from the tool's schema)
    tokens=40          words of the final text; token_seconds=0.1, call_seconds=2: as slow as that
    fail=500           every call is answered with that status; fail_first=2: only the first two calls for this message

The step is counted from the request itself (assistant messages since the last user message), so the answer to a request
is always the same, however often it is sent. LOGFILE gets one JSON line per thing, in one write each:

    {"event":"call","call":7,"at":1790000000.1,"user":"steps=5","step":2,"messages":6,"authorization":"Bearer x"}
    {"event":"done","call":7,"at":...}      or      {"event":"disconnected","call":7,"at":...,"deltas":12}

Count the calls of a message with `grep '"event":"call"' LOGFILE`: what was asked twice was paid twice.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal

How = Literal["reset", "drop", "end", "silent"]


@dataclass(frozen=True)
class Use:
    """A tool call that the model makes. `arguments` is sent as it is when it is a text, so it may be broken JSON."""

    tool: str
    arguments: object = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Reply:
    """What the provider does with one call. Made by `text`, `tools`, `error`, `cut`, `empty` and `filtered`."""

    text: str = ""
    reasoning: str = ""
    uses: tuple[Use, ...] = ()
    finish: str = "stop"
    usage: bool = True
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: object = None
    cut_after: int | None = None
    how: How = "reset"
    token_seconds: float | None = None
    call_seconds: float | None = None


@dataclass
class Call:
    """A request as it came in. `disconnected_at` is when the client hung up before the end (seconds, `time.time`)."""

    number: int
    at: float
    body: dict[str, Any]
    headers: dict[str, str]
    deltas: int = 0
    done_at: float | None = None
    disconnected_at: float | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the request."""
        return list(self.body.get("messages", []))

    @property
    def user(self) -> str:
        """The text of the last user message."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return _plain(message["content"])
        return ""

    @property
    def step(self) -> int:
        """How many answers the model gave since that message."""
        step = 0
        for message in reversed(self.messages):
            if message["role"] == "user":
                break
            step += message["role"] == "assistant"
        return step


def text(words: str, *, reasoning: str = "", **how: Any) -> Reply:
    """A final answer."""
    return Reply(text=words, reasoning=reasoning, **how)


def use(tool: str, /, *, id: str | None = None, **arguments: object) -> Use:
    """A tool call for `tools`."""
    return Use(tool, arguments, id)


def tools(*uses: Use, text: str = "", **how: Any) -> Reply:
    """An answer that asks for tools."""
    return Reply(text=text, uses=uses, finish="tool_calls", **how)


def error(
    status: int, *, message: str = "scripted", code: str = "", retry_after: float | str | None = None, **how: Any
) -> Reply:
    """An HTTP error. `retry_after` is sent as it is: seconds or a date."""
    headers = () if retry_after is None else (("Retry-After", str(retry_after)),)
    body = {"error": {"message": message, "type": "scripted", "code": code or None, "param": None}}
    return Reply(status=status, headers=headers, body=body, **how)


def cut(reply: Reply, *, after: int, how: How = "reset") -> Reply:
    """`reply`, broken after so many deltas."""
    return replace(reply, cut_after=after, how=how)


def empty() -> Reply:
    """An answer with nothing in it."""
    return Reply()


def filtered(words: str = "") -> Reply:
    """An answer that the content filter stopped."""
    return Reply(text=words, finish="content_filter")


Script = Sequence[Reply] | Callable[[Call], Reply]


class FakeOpenAI:
    """The server; runs in threads of this process while entered. `calls` is what it was asked, in order."""

    def __init__(
        self,
        script: Script = (),
        *,
        port: int = 0,
        log: str | os.PathLike[str] | None = None,
        token_seconds: float = 0.0,
        call_seconds: float = 0.0,
    ) -> None:
        self.calls: list[Call] = []
        self._asked: Counter[str] = Counter()
        self.token_seconds = token_seconds
        self.call_seconds = call_seconds
        self._script = script
        self._taken = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log is not None else None
        owner = self

        class Handler(_Handler):
            fake = owner

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """What `OPENAI_BASE_URL` has to be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeOpenAI:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
        if self._log is not None:
            os.close(self._log)

    def wait_for(self, condition: Callable[[], object], seconds: float = 5.0) -> None:
        """Wait until `condition` holds, or fail."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s; the calls were {self.calls}")
            time.sleep(0.005)

    def wait_forever(self) -> None:
        """Serve until the process is told to stop."""
        self._closing.wait()

    def _received(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[Call, Reply]:
        with self._lock:
            call = Call(len(self.calls), time.time(), body, headers)
            earlier = self._asked[call.user]
            self._asked[call.user] += 1
            self.calls.append(call)
            scripted: Reply | None = None
            if not callable(self._script) and self._taken < len(self._script):
                scripted = self._script[self._taken]
                self._taken += 1
        self._write(
            {
                "event": "call",
                "call": call.number,
                "at": call.at,
                "user": call.user,
                "step": call.step,
                "messages": len(call.messages),
                "authorization": headers.get("authorization", ""),
            }
        )
        if scripted is None:
            scripted = self._script(call) if callable(self._script) else by_message(call, earlier)
        return call, scripted

    def _ended(self, call: Call, whole: bool) -> None:
        now = time.time()
        if whole:
            call.done_at = now
        else:
            call.disconnected_at = now
        event: dict[str, object] = {
            "event": "done" if whole else "disconnected",
            "call": call.number,
            "at": now,
            "deltas": call.deltas,
        }
        self._write(event)

    def _write(self, event: dict[str, object]) -> None:
        if self._log is not None:
            os.write(self._log, (json.dumps(event, separators=(",", ":")) + "\n").encode())


def by_message(call: Call, earlier: int = 0) -> Reply:
    """The reply that the last user message asks for (see the module). `earlier`: calls before with the same message."""
    said = call.user
    slow: dict[str, Any] = {
        name: float(value) for name in ("token_seconds", "call_seconds") if (value := _option(said, name))
    }
    if failing := _option(said, "fail"):
        return error(int(failing), **slow)
    if earlier < int(_option(said, "fail_first") or 0):
        return error(500, **slow)
    offered = [tool["function"] for tool in call.body.get("tools", [])]
    steps = int(_option(said, "steps") or 1)
    if call.step < steps - 1 and offered:
        wanted = _option(said, "tool") or offered[0]["name"]
        schema: dict[str, Any] = next((tool["parameters"] for tool in offered if tool["name"] == wanted), {})
        given = re.search(r"args=(\{.*\})", said)
        arguments = json.loads(given.group(1)) if given else _made_up(schema)
        uses = [
            Use(wanted, arguments, f"call_{call.step}_{place}") for place in range(int(_option(said, "calls") or 1))
        ]
        return tools(*uses, **slow)
    if tokens := _option(said, "tokens"):
        return text(" ".join(f"word{number}" for number in range(int(tokens))), **slow)
    return text(f"done after {call.step + 1} steps: {said}", **slow)


def _option(said: str, name: str) -> str:
    found = re.search(rf"\b{name}=([\w.-]+)", said)
    return found.group(1) if found else ""


def _made_up(schema: dict[str, Any]) -> dict[str, object]:
    values: dict[str, object] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    properties = schema.get("properties", {})
    return {name: values.get(properties[name].get("type", ""), "1") for name in schema.get("required", [])}


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content or "")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    fake: FakeOpenAI

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call, reply = self.fake._received(body, {name.lower(): value for name, value in self.headers.items()})
        seconds = self.fake.call_seconds if reply.call_seconds is None else reply.call_seconds
        try:
            self._wait(seconds)
            if reply.status != 200:
                self._plain(reply)
            elif not body.get("stream"):
                self._plain(Reply(status=400, body={"error": {"message": "only streams here", "type": "scripted"}}))
            elif not self._stream(call, reply):
                self.close_connection = True
                self.fake._ended(call, whole=False)
                return
        except OSError:
            self.close_connection = True
            self.fake._ended(call, whole=False)
            return
        self.fake._ended(call, whole=True)

    def _plain(self, reply: Reply) -> None:
        content = json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in (
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            *reply.headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, call: Call, reply: Reply) -> bool:
        """Whether the stream was sent as far as it should be."""
        pause = self.fake.token_seconds if reply.token_seconds is None else reply.token_seconds
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = {"id": f"chatcmpl-{call.number}", "object": "chat.completion.chunk", "created": int(call.at)}
        head["model"] = call.body.get("model", "fake")
        for delta in _deltas(reply):
            if reply.cut_after is not None and call.deltas >= reply.cut_after:
                return self._cut(reply.how)
            self._wait(pause)
            self._chunk({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            call.deltas += 1
        if reply.cut_after is not None:
            return self._cut(reply.how)
        self._chunk({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish}]})
        if reply.usage:
            self._chunk({**head, "choices": [], "usage": _usage(call, reply)})
        self._send(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return True

    def _cut(self, how: How) -> bool:
        self.close_connection = True
        match how:
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            case "drop":
                self.connection.shutdown(socket.SHUT_RDWR)
            case "end":
                self.wfile.write(b"0\r\n\r\n")
            case "silent":
                self._wait(3600)
        return True

    def _chunk(self, data: dict[str, object]) -> None:
        self._send(b"data: " + json.dumps(data).encode() + b"\n\n")

    def _send(self, data: bytes) -> None:
        if self._hung_up(0):
            raise ConnectionResetError
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _wait(self, seconds: float) -> None:
        """Sleep, but notice at once when the client hangs up."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._hung_up(min(left, 0.02)):
                raise ConnectionResetError
            if self.fake._closing.is_set():
                raise ConnectionAbortedError

    def _hung_up(self, seconds: float) -> bool:
        ear = select.poll()  # not select.select, which knows no descriptor above 1,023
        ear.register(self.connection, select.POLLIN)
        return bool(ear.poll(seconds * 1000)) and self.connection.recv(1, socket.MSG_PEEK) == b""


def _deltas(reply: Reply) -> Iterator[dict[str, object]]:
    yield {"role": "assistant", "content": ""}
    for piece in re.findall(r"\s*\S+", reply.reasoning):
        yield {"reasoning_content": piece}
    for piece in re.findall(r"\s*\S+\s*$|\s*\S+", reply.text):
        yield {"content": piece}
    rest = []
    for index, made in enumerate(reply.uses):
        name = f"call_{index}" if made.id is None else made.id
        start = {"index": index, "id": name, "type": "function", "function": {"name": made.tool, "arguments": ""}}
        yield {"tool_calls": [start]}
        arguments = made.arguments if isinstance(made.arguments, str) else json.dumps(made.arguments)
        rest.append([arguments[at : at + 6] for at in range(0, len(arguments), 6)])
    for place in range(max(map(len, rest), default=0)):
        for index, pieces in enumerate(rest):
            if place < len(pieces):
                yield {"tool_calls": [{"index": index, "function": {"arguments": pieces[place]}}]}


def _usage(call: Call, reply: Reply) -> dict[str, object]:
    prompt = 10 * len(call.messages)
    completion = max(1, len(reply.text.split()) + 5 * len(reply.uses))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def main() -> None:
    """Run it as a process of its own."""
    parser = argparse.ArgumentParser(description="A stand-in for an OpenAI-compatible provider.")
    parser.add_argument("port", type=int)
    parser.add_argument("log")
    parser.add_argument("--token-seconds", type=float, default=0.0)
    parser.add_argument("--call-seconds", type=float, default=0.0)
    given = parser.parse_args()
    with FakeOpenAI(
        port=given.port, log=given.log, token_seconds=given.token_seconds, call_seconds=given.call_seconds
    ) as fake:
        print("ready", fake.url, flush=True)
        fake.wait_forever()


if __name__ == "__main__":
    main()
