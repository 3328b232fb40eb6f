"""A worker that posts what a session says, and is killed before it can say so: `python -m tests.channels.dying URL SESSION FILE`."""

import os
import signal
import sys
from pathlib import Path

from orchestrator import Channel, Engine, Settings
from orchestrator.channels import Event, ReplyTo
from orchestrator.core.names import SessionId
from tests.channels.conftest import an_app

if __name__ == "__main__":
    url, session, file = sys.argv[1:]
    channel = Channel("out")

    @channel.on("message.received")
    def answer(event: Event, to: ReplyTo) -> None:
        """Post, and die."""
        Path(file).write_text(to.key + "\n")
        os.kill(os.getpid(), signal.SIGKILL)

    Engine(an_app(channel), Settings(url=url)).carry_on(SessionId(session))
