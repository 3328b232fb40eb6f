"""The files that a history speaks of: their bytes, as the model is shown them.

Those behind a URL are fetched when they are first needed, and kept as they were: what came of it is the same for each call after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.core.delivery import File
from orchestrator.errors import JournalFull
from orchestrator.perform import Judged
from orchestrator.tool import UserFile
from orchestrator.turn.consulting import ask_all
from orchestrator.turn.hands import Hands

MOST_SENT_BYTES = 32 * 1024 * 1024
"""What one request may carry. The newest files go first; of the older ones the model is told their names."""
FETCH_SECONDS = 100.0
HERE, NOT_HERE = b"+", b"-"
"""How what was fetched begins: its bytes follow, or why there are none."""
LOST = "its bytes are lost"
LONGEST_REASON = 300


def files_of(hands: Hands) -> dict[str, bytes | str] | None:
    """The bytes of the files in the history, by blob, or why there are none. None: what came in has interrupted it."""
    wanted = hands.files()
    if not wanted:
        return {}
    if not _fetch(hands, [file for file in wanted if file.url]):
        return None
    chosen, left = list[File](), MOST_SENT_BYTES
    sizes = _sizes(hands, wanted)
    for file in reversed(wanted):
        left -= sizes[file.blob]
        if left < 0:
            break
        chosen.append(file)
    return read(hands, chosen[::-1])


def read(hands: Hands, files: Sequence[File]) -> dict[str, bytes | str]:
    """The bytes of files, by blob, or why there are none."""
    kept, journal = hands.process.files, hands.process.journal
    found = kept.take([file.blob for file in files])
    missing = [file for file in files if file.blob not in found]
    stored = hands.process.repeat(lambda: journal.blobs(hands.owned.session, [file.blob for file in missing]))
    fresh = {file.blob: _understood(file, stored[file.blob]) for file in missing if file.blob in stored}
    kept.put(fresh)
    return {file.blob: (found | fresh).get(file.blob, LOST) for file in files}


def user_files(hands: Hands) -> list[UserFile]:
    """The files of the history as a tool sees them."""
    return [_as_seen(hands, file) for file in hands.files()]


def _as_seen(hands: Hands, file: File) -> UserFile:
    def bytes_of() -> bytes:
        found = read(hands, [file])[file.blob]
        if isinstance(found, str):
            raise FileNotFoundError(f"{file.name or file.url or file.media_type}: {found}")
        return found

    return UserFile(file.name, file.media_type, file.size, file.url, bytes_of)


def _understood(file: File, stored: bytes) -> bytes | str:
    if not file.url:
        return stored
    return stored[1:] if stored.startswith(HERE) else stored[1:].decode(errors="replace")


def _sizes(hands: Hands, files: Sequence[File]) -> dict[str, int]:
    names = [file.blob for file in files]
    known = {name: len(data) for name, data in hands.process.files.take(names).items()}
    missing = [name for name in names if name not in known]
    journal = hands.process.journal
    return known | hands.process.repeat(lambda: journal.blob_sizes(hands.owned.session, missing))


# Behind a URL ------------------------------------------------------------------------------------------------------------


def _fetch(hands: Hands, files: Sequence[File]) -> bool:
    """Have the bytes of these in the journal, or why they are not to be had. False if it was interrupted."""
    session, token, journal = hands.owned.session, hands.owned.token, hands.process.journal
    known = hands.process.files.take([file.blob for file in files])
    looked_for = {file.blob: file for file in files if file.blob not in known}
    if not looked_for:
        return True
    absent = hands.process.repeat(lambda: journal.keep_blobs(session, token, list(looked_for)))
    missing = {blob: looked_for[blob] for blob in absent}
    hooks = {blob: (hook, file.url) for blob, file in missing.items() if (hook := _hook(hands, file)) is not None}
    heard = ask_all(hands, hooks, FETCH_SECONDS)
    if heard is None:
        return False
    # What its channel does not fetch is fetched as anybody would.
    done = {blob for blob, judged in heard.items() if judged.said is not None or judged.broken}
    left = {blob: file for blob, file in missing.items() if blob not in done}
    fetched = ask_all(hands, {blob: (_download(hands, file), file) for blob, file in left.items()}, FETCH_SECONDS)
    if fetched is None:
        return False
    made = {blob: _kept(judged, _limit(hands, missing[blob])) for blob, judged in (heard | fetched).items()}
    try:
        hands.process.repeat(lambda: journal.write_blobs(session, made))
        hands.process.repeat(lambda: journal.keep_blobs(session, token, list(made)))
    except JournalFull:
        hands.process.files.put({blob: _understood(file, made[blob]) for blob, file in missing.items()})
    return True


def _hook(hands: Hands, file: File) -> Any:
    channel = hands.process.app.channels_by_name.get(file.channel)
    return channel.fetch_file if channel is not None and channel.fetches else None


def _limit(hands: Hands, file: File) -> int:
    channel = hands.process.app.channels_by_name.get(file.channel)
    return ((channel and channel.uploads) or hands.process.app.uploads).limit_bytes


def _download(hands: Hands, file: File) -> Any:
    layer, limit = hands.process.layer, _limit(hands, file)

    async def download(file: File) -> bytes:
        return await layer.download(file.url, file.media_type, limit)

    return download


def _kept(judged: Judged, limit: int) -> bytes:
    said = judged.said
    if isinstance(said, bytes):
        return HERE + said if len(said) <= limit else NOT_HERE + f"it has more than {limit} bytes".encode()
    reason = judged.broken.removeprefix("ValueError: ") or f"its channel returned {type(said).__name__} and not bytes"
    return NOT_HERE + reason[:LONGEST_REASON].encode(errors="replace")
