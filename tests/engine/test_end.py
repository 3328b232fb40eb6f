"""What an engine leaves behind when it is closed."""

import os
import threading

from orchestrator import Agent, App, Engine, ScriptedModel, Settings, answers, tool
from orchestrator.core.delivery import Body, Part
from orchestrator.models.scripted import asks
from tests.servers import wait_for

HELLO = Body((Part("text", "hello"),))


def test_an_engine_that_was_used_and_closed_leaves_no_thread_and_no_descriptor(url: str) -> None:
    @tool
    def note(text: str) -> str:
        """Note something."""
        return text

    model = ScriptedModel([asks("note", text="this"), answers("done")])
    engine = Engine(App(agents=[Agent("a", model=model, tools=[note])]), Settings(url=url))
    others = set(threading.enumerate())  # a tool of another test that hangs has left one behind

    def threads() -> list[str]:
        begun = set(threading.enumerate()) - others
        return [thread.name for thread in begun if thread.name.startswith("orchestrator-")]

    # What a process opens once and keeps, whoever asks.
    use(engine)
    engine.close()
    wait_for(lambda: not threads(), 5, what="the end of the threads")
    before = descriptors()
    for _ in range(3):
        use(engine)
        assert threads(), "it works with threads"
        assert descriptors() > before, "and with connections"
        engine.close()
        wait_for(lambda: not threads() and descriptors() <= before, 5, what="the end of threads and connections")


def use(engine: Engine) -> None:
    """A turn, and a reader who waits for it."""
    session = engine.create(HELLO).session
    ear = engine.tails.wait_beside(session)
    while engine.carry_on(session).how == "chained":
        pass
    assert ear.wait(5)
    ear.close()


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/dev/fd"))
