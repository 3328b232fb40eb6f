"""Faults put in on purpose: a test that nobody has ever seen fail promises nothing.

Each patch beside this file breaks one rule in a copy of the tree; the test named for it must fail there, for what it asserts,
and pass in a copy without the patch. A patch that does not apply any more is refreshed like this:

    break the rule in the tree, git diff -U1 > tests/planted/NAME.patch, git checkout the file
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(420)
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = ("orchestrator", "tasks", "web", "docs", "tests", "celeryconfig.py", "pyproject.toml")
AT_ONCE = 2

AGAIN, COMMIT = "tests/journal/test_again_and_late.py", "tests/journal/test_commit.py"
ADMISSION, OWNERSHIP = "tests/journal/test_admission.py", "tests/journal/test_ownership.py"
ARRIVING, OWNERS = "tests/journal/test_arriving.py", "tests/engine/test_owners.py"
CRASHES, FOUND = "tests/engine/test_crash_table.py::test_a_broken_call_changes_nothing", "tests/property/test_found.py"
APPROVALS, FILES = "tests/engine/test_approvals.py", "tests/engine/test_files.py"
STORIES = "tests/property/test_stories.py::test_every_story_keeps_every_promise"

NOTICED_BY: Mapping[str, str] = {
    # a delivery does not keep the bytes of its files
    "a-file-goes-by-itself": f"{FILES}::test_a_file_is_sent_with_every_model_call_from_then_on_the_same_bytes",
    # a new generation of the history takes the files of waiting messages with it
    "waiting-files-go-with-the-history": f"{FILES}::test_clear_lets_go_of_files_and_keeps_those_that_wait",
    # commit does not look at the token
    "no-token-check": f"{AGAIN}::test_a_stale_owner_is_told_so",
    # commit does not look at the position it builds on
    "no-position-check": f"{AGAIN}::test_a_commit_of_before_the_last_is_superseded",
    # a repeated commit is not recognised
    "lost-answer-is-made-anew": f"{AGAIN}::test_commit_whose_reply_was_lost_has_landed_with_the_same_answer",
    # deliver looks at the session's life before it looks whether it has answered already
    "seen-after-ended": f"{ADMISSION}::test_the_order_is_gone_seen_ended_full_accepted",
    # own takes the messages out of the inbox, and not the commit that uses them
    "inbox-trimmed-at-own": f"{CRASHES}[1 own, crash after]",
    # a commit that parks does not look whether something came in
    "park-without-looking": f"{COMMIT}::test_a_park_before_something_unread_keeps_the_lease_and_writes_the_rest",
    # release does not look whether there is more to do
    "release-without-looking": f"{OWNERSHIP}::test_giving_back_rings_if_there_is_more_to_do",
    # a commit that ends a turn does not look for a cancel
    "cancel-is-not-waited-for": f"{COMMIT}::test_a_commit_that_does_not_know_the_last_cancel_is_refused_whole",
    # calls whose result is recorded run again after a crash
    "settled-calls-run-again": f"{CRASHES}[5 commit: reserve, crash after]",
    # takeovers are counted for ever
    "attempts-never-reset": f"{OWNERSHIP}::test_progress_begins_the_counting_anew",
    # the caller announces what the script has stored
    "wake-after-the-script": f"{FOUND}::test_what_is_stored_is_announced_though_its_caller_dies_at_once",
    # a wake that was heard silences the session
    "wake-is-thought-heard": "tests/journal/test_wakes.py::test_a_wake_that_was_heard_may_be_followed_by_another",
    # a delivery makes the keeper look at a session that is owned
    "delivery-moves-due-of-an-owner": f"{ADMISSION}::test_the_owner_is_told_at_once_and_nobody_else_is_rung_for",
    # the events of a dead attempt are named with a committed one among them
    "superseded-takes-a-committed-event": "tests/engine/test_model_calls.py::test_what_a_dead_worker_had_said_is_superseded",
    # an effect begins on a lease that may be over
    "lease-not-looked-at": f"{OWNERS}::test_a_frozen_owner_starts_no_effect_after_a_takeover",
    # an answer to one of several requests is forgotten
    "partial-answers-are-dropped": f"{APPROVALS}::test_answers_survive_a_restart_of_everything_between_them",
    # what a loop or a thread was handed begins whenever that comes to it
    "begins-what-was-handed-over": f"{OWNERS}::test_what_was_handed_over_before_the_freeze_does_not_begin_after_a_takeover",
    # a cancel that came with the commit before an effect is not looked at
    "starts-what-was-cancelled": (
        f"{FOUND}::test_a_careful_tool_does_not_start_when_the_commit_of_its_start_brought_a_cancel"
    ),
    # a cancelled turn fails as well
    "failure-beside-a-cancel": f"{FOUND}::test_a_turn_that_was_told_to_stop_does_not_fail",
    # a commit judges a delivery that the store has lost
    "judged-what-was-lost": f"{FOUND}::test_a_commit_that_judges_what_the_store_has_lost_is_ahead_of_it",
    # an owner that has seen more than there is leaves without a word
    "loss-is-kept-to-oneself": f"{FOUND}::test_a_loss_is_reported_when_another_goes_on",
    # a message joins the turn of whoever is being answered
    "steers-for-anybody": STORIES,
    # a message joins a turn before an earlier one of the same person
    "overtakes-himself": STORIES,
    # messages of callers of whom nothing is known share a turn
    "strangers-share-a-turn": STORIES,
    # messages that share a turn change places
    "neighbours-change-places": STORIES,
    # what has joined a turn stays in the inbox
    "joined-and-still-there": STORIES,
    # the event of a message that joins does not name it
    "joined-is-not-named": STORIES,
    # what comes while the history is made shorter begins a turn before what waits
    "overtakes-after-a-summary": f"{FOUND}::test_what_waits_while_the_history_is_made_shorter_is_not_overtaken",
    # a clear leaves the history as it is
    "cleared-and-still-there": STORIES,
    # the deadline cuts a turn
    "time-is-over-in-a-turn": STORIES,
    # a session that was reset lets more in
    "reset-lets-more-in": STORIES,
    # a turn that ends by itself does not wait for a reset
    "reset-is-passed-by": "tests/journal/test_ending.py::test_no_conditional_commit_passes_a_reset_by",
    # what goes to an alias's session is not written down at the door
    "elsewhere-is-not-written-down": f"{ARRIVING}::test_what_an_alias_has_delivered_is_known_after_its_session_was_reset",
    # the door forgets under which key something came
    "key-of-the-door-forgotten": (
        f"{FOUND}::test_what_came_into_a_session_by_its_address_is_not_done_again_by_the_next_one"
    ),
    # a session that ends keeps its addresses of other shards
    "an-end-keeps-its-aliases": STORIES,
    # an entry leaves the outbox before it is posted
    "settled-before-it-is-posted": STORIES,
    # an erased session leaves what it had seen
    "erased-and-still-seen": STORIES,
    # an answer counts that came in before it was asked for
    "answers-what-was-asked-later": (
        "tests/core/test_holds.py::test_an_answer_that_came_in_before_its_request_counts_for_nothing"
    ),
    # a text counts that was typed before the question
    "words-before-the-question": (
        "tests/core/test_states.py::test_the_code_does_what_the_table_says[held by a question | steer, same]"
    ),
    # a worker looks at a turn that waits for people, again and again, once its session's time is over
    "a-held-turn-is-looked-at-for-its-deadline": (
        "tests/journal/test_ending.py::test_nobody_looks_at_a_turn_that_waits_for_people_beyond_the_deadline"
    ),
    # an approval is not used up by the commit that starts its call
    "approval-is-not-used-up": f"{APPROVALS}::test_an_approval_that_breaks_anywhere_runs_its_call_at_most_once",
    # whatever the call has become, it was approved
    "approves-another-call": f"{APPROVALS}::test_an_approval_is_for_the_call_that_was_shown_and_for_no_other",
    # of several answers only the last is kept
    "forgets-the-first-answer": f"{APPROVALS}::test_no_call_of_a_batch_runs_before_all_are_answered",
}
WITHOUT = "nothing"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What pytest said in a copy. `unapplied` is why the patch could not be applied."""

    code: int = 0
    text: str = ""
    unapplied: str = ""


def run(place: Path, patch: str, nodes: Sequence[str]) -> Outcome:
    """The tests, in a copy of the tree with the patch."""
    place.mkdir()
    for name in COPIED:
        source, there = ROOT / name, place / name
        if source.is_dir():
            shutil.copytree(source, there, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(source, there)
    environment = {
        **os.environ,
        "PYTHONPATH": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "200",  # pytest shortens its summary to the width of the screen
        "ORCHESTRATOR_PROPERTY_TRIES": "0",  # a story need not be told shortly to show that it fails
        "GIT_CEILING_DIRECTORIES": str(place.parent),
    }

    def call(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=400, check=False
        )

    if patch != WITHOUT:
        applied = call("git", "apply", str(HERE / f"{patch}.patch"))
        if applied.returncode:
            return Outcome(unapplied=applied.stderr)
    imported = call(sys.executable, "-c", "import orchestrator; print(orchestrator.__file__)").stdout.strip()
    assert imported == str(place / "orchestrator" / "__init__.py"), (
        f"the copy's package is not imported, but {imported}"
    )
    tests = call(
        *(sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=line", "--timeout=60", "-k", "not redis7"),
        *("-p", "no:cacheprovider", *nodes),
    )
    shutil.rmtree(place)
    return Outcome(tests.returncode, tests.stdout + tests.stderr)


def noticed(place: Path, patch: str, node: str) -> Outcome:
    """What the test says of the fault. A fault that is a race may win it once: it is given three chances to show."""
    outcome = run(place, patch, [node])
    for chance in range(2):
        if outcome.code == 0 and not outcome.unapplied:
            outcome = run(place.with_name(f"{place.name}-{chance}"), patch, [node])
    return outcome


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Outcome]]]:
    """All of them, two at a time; whoever asks for one waits for it."""
    place = tmp_path_factory.mktemp("planted")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        nodes = list(dict.fromkeys(NOTICED_BY.values()))
        begun = {WITHOUT: pool.submit(run, place / WITHOUT, WITHOUT, nodes)}
        for name, node in NOTICED_BY.items():
            begun[name] = pool.submit(noticed, place / name, name, node)
        yield begun
        pool.shutdown(cancel_futures=True)


def test_every_patch_is_in_the_table() -> None:
    assert {patch.stem for patch in HERE.glob("*.patch")} == set(NOTICED_BY)


def test_without_a_patch_they_pass(outcomes: Mapping[str, Future[Outcome]]) -> None:
    outcome = outcomes[WITHOUT].result()
    assert outcome.code == 0, outcome.text


@pytest.mark.parametrize("patch", NOTICED_BY)
def test_a_planted_fault_is_noticed(outcomes: Mapping[str, Future[Outcome]], patch: str) -> None:
    outcome = outcomes[patch].result()
    assert not outcome.unapplied, f"{patch}.patch does not apply any more: refresh it.\n{outcome.unapplied}"
    assert outcome.code == 1, f"{NOTICED_BY[patch]} does not notice {patch}.patch:\n{outcome.text}"
    reasons = re.findall(r"^FAILED .* - (.*)$", outcome.text, re.MULTILINE)
    assert reasons, f"it did not come so far:\n{outcome.text}"
    # By what the test asserts, or by a refusal of the product that must not be.
    noticed = re.match(r"AssertionError|assert |Failed: DID NOT|orchestrator\.errors\.", reasons[0])
    assert noticed, f"not by an assertion:\n{outcome.text}"
