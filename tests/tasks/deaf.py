"""The shop again; SIGUSR2 does to its worker what the keeper does when the consumer hears nothing: first once, then again."""

import signal
from typing import Any

import tasks.keeper
from tests.tasks.shop import app

__all__ = ["app"]
times = 0


def again(*_: object) -> None:
    global times
    times += 1
    ear: Any = vars(tasks.keeper)["_keeper"]._ear
    if times == 1:
        ear.reconnect()
    else:
        ear.give_up()


signal.signal(signal.SIGUSR2, again)
