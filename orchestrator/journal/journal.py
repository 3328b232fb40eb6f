"""What the engine says to Redis: one method per verb, each safe to repeat with the same arguments.

blobs.py       the bytes of files: keep_blob
admission.py   create, deliver
addresses.py   arrive, reserve, resolve, take_address, drop_address
ownership.py   own, commit, append, renew, release, disown
outbox.py      take_out, settle_out
erasing.py     erase
requests.py    notes of requests; claim, a link to one
keeping.py     due, tidy, prune, heartbeat
"""

from __future__ import annotations

from orchestrator.journal.keeping import Keeping
from orchestrator.journal.outbox import Outbox
from orchestrator.journal.ownership import Ownership
from orchestrator.journal.requests import Requests


class Journal(Outbox, Requests, Ownership, Keeping):
    """The journal of one world. Thread-safe; a forked child opens connections of its own."""
