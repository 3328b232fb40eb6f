"""Which worker a process belongs to."""

import multiprocessing
import subprocess
import sys
from multiprocessing.queues import Queue as Answers

import pytest

from orchestrator.process.shared import worker_id

SAY = "from orchestrator.process.shared import worker_id; print(worker_id())"


def tell(answers: "Answers[str]") -> None:
    answers.put(worker_id())


def test_what_a_worker_forks_is_of_it_and_a_program_that_it_starts_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRATOR_WORKER", raising=False)
    mine = worker_id()
    forking = multiprocessing.get_context("fork")
    answers: Answers[str] = forking.Queue()
    child = forking.Process(target=tell, args=(answers,))
    child.start()
    assert answers.get(timeout=20) == mine
    child.join(20)
    other = subprocess.run([sys.executable, "-c", SAY], check=True, capture_output=True, text=True, timeout=60)
    assert len(other.stdout.strip()) == 8
    assert other.stdout.strip() != mine


def test_whoever_starts_a_worker_may_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_WORKER", "one")
    assert worker_id() == "one00000"
