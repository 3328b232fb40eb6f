"""The only loop: own, find the next effect, perform it, commit what came of it, release.

    carry.py     a wake: ask for the session, drive it, survive losing it
    driver.py    the loop and the commit
    hands.py     what a driver has in its hands: the owned session, what has happened, its mailbox
    asking.py    the effect "call the model"
    calling.py   the effect "run the tools"
    alone.py     a session that has brought workers down, in a process of its own

A start and a restart are the same call: everything that must happen next is in the snapshot.
"""

from orchestrator.turn.carry import Carried, carry_on

__all__ = ["Carried", "carry_on"]
