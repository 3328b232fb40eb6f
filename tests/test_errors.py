"""Errors as values: what they carry, wherever they are carried to."""

import pickle

import pytest

from orchestrator import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.SessionNotFound(session="ses_1"),
        errors.InboxFull(session="ses_1", waiting=3, limit=3),
        errors.FileTooLarge(limit_bytes=5, violations=[{"part": 0}]),
        errors.Unauthorized(),
    ],
)
def test_an_error_that_crosses_processes_is_the_same_error(error: errors.OrchestratorError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (type(again), str(again), again.facts, again.code) == (type(error), str(error), error.facts, error.code)
