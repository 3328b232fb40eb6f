"""What the engine says to Redis: one method per verb, each safe to repeat with the same arguments.

admission.py   create, deliver
ownership.py   own, commit, append, renew, release, disown
keeping.py     due, tidy, prune, heartbeat
"""

from __future__ import annotations

from orchestrator.journal.admission import Admission
from orchestrator.journal.keeping import Keeping
from orchestrator.journal.ownership import Ownership


class Journal(Admission, Ownership, Keeping):
    """The journal of one world. Thread-safe; a forked child opens connections of its own."""
