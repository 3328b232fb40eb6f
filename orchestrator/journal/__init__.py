"""What is remembered: the only place that knows Redis. One Lua script per verb; `keys.py` tells the story of the data."""

from orchestrator.journal.answers import (
    Address,
    AdmissionKey,
    Admitted,
    Appended,
    Arrived,
    Behind,
    Committed,
    Done,
    Gone,
    Granted,
    Mode,
    News,
    Operation,
    Out,
    Refused,
    Superseded,
    View,
    Writes,
)
from orchestrator.journal.client import connect
from orchestrator.journal.journal import Journal
from orchestrator.journal.reads import Reads

__all__ = [
    "Address",
    "AdmissionKey",
    "Admitted",
    "Appended",
    "Arrived",
    "Behind",
    "Committed",
    "Done",
    "Gone",
    "Granted",
    "Journal",
    "Mode",
    "News",
    "Operation",
    "Out",
    "Reads",
    "Refused",
    "Superseded",
    "View",
    "Writes",
    "connect",
]
