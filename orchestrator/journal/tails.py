"""Hearing that something has happened: one subscription a process, for streams that grow and for deliveries that come in.

A message may be lost. Whoever waits here looks by himself every two seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import redis

from orchestrator.clock import steady
from orchestrator.ids import shard_of, shards
from orchestrator.journal.keys import shard_key

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
DEAF_SECONDS = 10.0
"""Silence after which a connection is asked whether it lives; after as much again it is made anew."""


class Tails:
    """Readers wait for a session's stream to grow."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._lock = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = {}
        self._shards: dict[str, int] = {}
        self._listener: Listener | None = None

    def wait_beside(self, session: str) -> Waiter:
        """Begin to listen for a session. Close it when done."""
        event = threading.Event()
        shard = shard_of(session)
        with self._lock:
            self._waiting.setdefault(session, set()).add(event)
            self._shards[shard] = self._shards.get(shard, 0) + 1
            if self._listener is None:
                self._listener = Listener(self._client, self._heard, "orchestrator-tails", self._look_all)
            self._listener.want(self._channels())
        return Waiter(self, session, event)

    def leave(self, session: str, event: threading.Event) -> None:
        """Stop listening."""
        shard = shard_of(session)
        with self._lock:
            beside = self._waiting.get(session, set())
            beside.discard(event)
            if not beside:
                self._waiting.pop(session, None)
            self._shards[shard] -= 1
            if not self._shards[shard]:
                del self._shards[shard]
            if self._listener is not None:
                self._listener.want(self._channels())

    def close(self) -> None:
        """Stop listening for anybody."""
        if self._listener is not None:
            self._listener.close()
        self._client.close()

    def _channels(self) -> set[str]:
        return {shard_key(self._prefix, shard, "tail") for shard in self._shards}

    def _look_all(self) -> None:
        with self._lock:
            events = [event for beside in self._waiting.values() for event in beside]
        for event in events:
            event.set()

    def _heard(self, text: str) -> None:
        session = text.partition(" ")[0]
        with self._lock:
            events = list(self._waiting.get(session, ()))
        for event in events:
            event.set()


class Waiter:
    """One reader's ear."""

    def __init__(self, tails: Tails, session: str, event: threading.Event) -> None:
        self._tails = tails
        self._session = session
        self._event = event

    def wait(self, seconds: float) -> bool:
        """Until the stream may have grown, or so many seconds have passed."""
        heard = self._event.wait(seconds)
        self._event.clear()
        return heard

    def wake(self) -> None:
        """End a `wait` from another thread."""
        self._event.set()

    def close(self) -> None:
        """Stop listening."""
        self._tails.leave(self._session, self._event)


def news_channels(prefix: str) -> set[str]:
    """The channels on which owners hear of deliveries."""
    return {shard_key(prefix, shard, "news") for shard in shards()}


class Listener:
    """A thread with one subscription, made again whenever the connection breaks."""

    def __init__(
        self,
        client: redis.Redis,
        heard: Callable[[str], None],
        name: str,
        also_when_joined: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._heard = heard
        self._joined = also_when_joined
        self._wanted: set[str] = set()
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def want(self, channels: set[str]) -> None:
        """Listen to exactly these from now on."""
        if channels != self._wanted:
            self._wanted = set(channels)
            self._changed.set()

    def stop(self) -> None:
        """End the thread. It looks up every 0.2 s."""
        self._stop.set()
        self._changed.set()

    def close(self) -> None:
        """End the thread, and wait until it has hung up."""
        self.stop()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._wanted:
                self._changed.wait()
                self._changed.clear()
                continue
            try:
                self._listen()
            except (redis.RedisError, OSError, ValueError) as broken:
                log.debug("subscription lost: %s", broken)
                self._stop.wait(0.5)
            except Exception:  # nothing may end this thread: whoever waits here would only look by himself
                log.exception("the listener stumbled")
                self._stop.wait(0.5)

    def _listen(self) -> None:
        subscription = self._client.pubsub()
        have: set[str] = set()
        joining = 0
        heard_at = steady()
        try:
            while not self._stop.is_set():
                # In this order: a wish that comes in between is seen now, or leaves the flag up.
                self._changed.clear()
                wanted = self._wanted
                if fresh := wanted - have:
                    subscription.subscribe(*fresh)
                    joining += len(fresh)
                if stale := have - wanted:
                    subscription.unsubscribe(*stale)
                have = set(wanted)
                if not have:
                    return
                while (message := subscription.get_message(timeout=0.0 if self._changed.is_set() else 0.2)) is not None:
                    heard_at = steady()
                    if message["type"] == "message":
                        self._heard(message["data"].decode())
                    elif message["type"] == "subscribe":
                        joining -= 1
                        if not joining:
                            # What was said before we listened is looked up.
                            self._joined()
                silent = steady() - heard_at
                if silent > 2 * DEAF_SECONDS:
                    raise redis.ConnectionError("nothing is heard on this connection any more")
                if silent > DEAF_SECONDS:
                    subscription.ping()
        finally:
            subscription.close()
