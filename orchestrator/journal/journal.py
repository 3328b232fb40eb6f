"""What the engine says to Redis: one method per verb, each safe to repeat with the same arguments.

admission.py   create, deliver
addresses.py   arrive, reserve, resolve, take_address, drop_address
ownership.py   own, commit, append, renew, release, disown
outbox.py      take_out, settle_out
erasing.py     erase
keeping.py     due, tidy, prune, heartbeat
"""

from __future__ import annotations

from orchestrator.journal.erasing import Erasing
from orchestrator.journal.keeping import Keeping
from orchestrator.journal.outbox import Outbox
from orchestrator.journal.ownership import Ownership


class Journal(Outbox, Erasing, Ownership, Keeping):
    """The journal of one world. Thread-safe; a forked child opens connections of its own."""
