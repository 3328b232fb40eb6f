"""The chat, typed into a terminal: what it shows, what it asks in place, and that a restart of everything loses nothing of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import local
from tests.acceptance.dev import Dev, FolderServer
from tests.acceptance.system import ROOT, System, running
from tests.servers import wait_for

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(240)]
needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed; CI installs it")


class Terminal:
    """A terminal of 100 x 50 in which one program runs."""

    def __init__(self, command: str, env: dict[str, str], folder: Path) -> None:
        self._tmux = ["tmux", "-L", f"chat-{uuid.uuid4().hex}"]
        kept = {name: value for name, value in os.environ.items() if name != "TMUX"}
        shell = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "50", f"{command}; echo ended $?; cat"]
        subprocess.run([*self._tmux, *shell], env={**kept, **env, "TERM": "xterm"}, cwd=folder, check=True, timeout=20)

    def screen(self) -> str:
        """What stands there now, without empty lines."""
        said = [*self._tmux, "capture-pane", "-p", "-S", "-200"]
        found = subprocess.run(said, capture_output=True, text=True, check=True, timeout=20).stdout
        return "\n".join(line.rstrip() for line in found.splitlines() if line.strip())

    def type(self, text: str) -> None:
        """Type words and Enter."""
        self.keys("-l", text)
        self.keys("Enter")

    def keys(self, *keys: str) -> None:
        """Press keys."""
        subprocess.run([*self._tmux, "send-keys", *keys], check=True, timeout=20)

    def shows(self, text: str, seconds: float = 30.0, *, times: int = 1) -> str:
        """Wait until it is there so often."""
        try:
            wait_for(lambda: self.screen().count(text) >= times, seconds, what=f"{text!r} in the terminal")
        except AssertionError:
            raise AssertionError(f"{text!r} is not there {times} times:\n{self.screen()}") from None
        return self.screen()

    def close(self) -> None:
        """End it and what runs in it."""
        subprocess.run([*self._tmux, "kill-server"], check=False, timeout=20)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    data = tmp_path / "data"
    data.mkdir()
    with running(System(FolderServer("valkey", data), tmp_path)) as made:
        made.start_model("--token-seconds", "0.02", "--call-seconds", "0.05")
        yield made
    local.stop(data)


@pytest.fixture
def open_dev(system: System) -> Iterator[Callable[[], Terminal]]:
    opened: list[Terminal] = []

    def start() -> Terminal:
        flags = f"--port 0 --data {system.server.dir} --workers 1"
        command = f"{sys.executable} -m orchestrator.cli dev tests.acceptance.load:app {flags}"
        env = {**system.environment, "ORCHESTRATOR_DRAIN_SECONDS": "2"}
        opened.append(Terminal(command, env, ROOT))
        opened[-1].shows("Say something.", 60)
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@needs_tmux
def test_a_person_talks_in_a_terminal_and_a_restart_of_everything_loses_nothing(
    system: System, open_dev: Callable[[], Terminal]
) -> None:
    terminal = open_dev()
    terminal.type("steps=2 tool=work tokens=5 #first")
    terminal.shows("→ work:")
    terminal.shows("word4")  # the fifth and last word
    terminal.type("tokens=5000 #long")
    terminal.shows("word40")
    terminal.keys("Escape")
    assert "word4999" not in terminal.shows("Stopped.")
    terminal.type("steps=2 tool=sign tokens=5 #asked")
    terminal.shows("1. Approve")
    terminal.type("/session")
    session = terminal.shows("ses_").partition("ses_")[2][:28]

    terminal.shows("waits for your answer")
    terminal.keys("C-d")
    terminal.shows("ended 0")
    again = open_dev()
    again.shows(f"Going on with ses_{session}")
    again.shows("1. Approve")
    again.type("1")
    again.shows("(approved)")
    again.shows("→ sign:")
    again.type("steps=2 tool=work tokens=3 #last")
    again.shows("#last", times=1)
    again.shows("ready")
    wait_for(lambda: len([line for line in system.tools() if line["event"] == "start"]) >= 3, 30, what="the tools")
    again.keys("-l", "half a word")
    again.keys("C-c")
    again.shows("ready")
    again.keys("C-c")
    again.shows("ended 0")
    keys = [line["key"] for line in system.tools() if line["event"] == "start"]
    assert len(set(keys)) == len(keys) == 3, "each call ran once"


@needs_tmux
def test_what_is_typed_while_it_works_steers(system: System, open_dev: Callable[[], Terminal]) -> None:
    terminal = open_dev()
    terminal.type('steps=3 tool=linger args={"seconds":1.0} tokens=3 #slow')
    terminal.shows("linger(")
    terminal.type("rather this: tokens=4 #steered")
    terminal.shows("it is told when its tools are done")
    terminal.shows("word3")
    users = [str(call["user"]) for call in system.model_calls()]
    assert "#steered" in users[-1]
    assert terminal.screen().count("> rather this") == 1, "what was typed here is not shown again"


def test_lines_from_a_pipe_are_said_one_after_the_other(system: System) -> None:
    dev = Dev(system, system.server.dir)
    try:
        dev.start()
        said = "steps=2 tool=sign tokens=3 #one\n1\ntokens=2 #two\n/nonsense\n"
        command = [sys.executable, "-m", "orchestrator.cli", "chat", f"http://127.0.0.1:{dev.port}"]
        done = subprocess.run(command, input=said, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
        lines = done.stdout.splitlines()
        assert [line for line in lines if line.startswith("word0")] == ["word0 word1 word2", "word0 word1"]
        assert "? Run sign?" in lines
        assert "  (approved)" in lines
        assert (done.returncode, lines[-1]) == (1, "There is no command /nonsense; /help lists them.")
        lost = [*command, "--session", "ses_01JQ2M8V6W3C4D5E6F7G8H9J0KA7"]
        told = subprocess.run(lost, input="hi\n", capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
        assert (told.returncode, told.stdout) == (2, ""), "it does not begin another in its place"
        assert "There is no such session" in told.stderr
    finally:
        if dev.process is not None:
            dev.process.stop()


def test_a_server_that_is_away_or_none_is_told_in_one_sentence() -> None:
    for url, code, words in (
        ("http://127.0.0.1:9", 1, "Nothing answers at http://127.0.0.1:9. Start it"),
        ("nonsense", 2, "http://127.0.0.1:8000"),
    ):
        command = [sys.executable, "-m", "orchestrator.cli", "chat", url]
        done = subprocess.run(command, input="", capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
        assert done.returncode == code
        assert words in done.stderr
        assert "Traceback" not in done.stderr
