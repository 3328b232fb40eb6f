"""The scripts as files: what the loader makes of them, and what a mistake in one looks like."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ResponseError

from orchestrator.journal import Appended, Done, Granted
from orchestrator.journal.scripts import FOLDER, VERBS, Script, script
from tests.journal.test_ownership import busy
from tests.journal.world import QUEUE, Command, Hand, Owner, Spoken

ADMITS = {"create", "deliver", "arrive", "reserve", "take_address", "append", "claim"}
each_verb = pytest.mark.parametrize("verb", VERBS)


def test_every_file_is_a_verb() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.lua")) == sorted(VERBS)


@each_verb
def test_lines_keep_their_numbers(verb: str) -> None:
    text, file = script(verb).text.split("\n"), (FOLDER / f"{verb}.lua").read_text().split("\n")
    assert text[0].startswith("#!lua")
    assert text[1].startswith("local ")
    assert text[2:] == file[2:]
    assert all(not line or line.startswith("--") for line in file[:2]), "the loader takes the first two lines"


@each_verb
def test_a_header_says_whether_the_verb_runs_in_a_full_server_and_what_it_returns(verb: str) -> None:
    text = (FOLDER / f"{verb}.lua").read_text()
    flags = re.search(r"^-- FLAGS (.+)$", text, re.MULTILINE)
    assert flags is not None
    assert flags[1] == ("deny-oom" if verb in ADMITS else "allow-oom")
    assert re.search(r"^-- Returns ", text, re.MULTILINE)


@each_verb
def test_every_name_of_a_header_is_used(verb: str) -> None:
    made = script(verb)
    parts = re.findall(r"^-- PARTS (.+)$", (FOLDER / f"{verb}.lua").read_text(), re.MULTILINE)
    bodies = [(FOLDER / f"{part}.part").read_text() for names in parts for part in names.split()]
    body = "\n".join(["\n".join(line for line in made.text.split("\n")[2:] if not line.startswith("--")), *bodies])
    unused = {name for name in (*made.keys, *made.args) if not re.search(rf"\b{name}\b", body)}
    allowed = {"append": {"now"}, "own": {"deployment"}}
    assert unused <= allowed.get(verb, set())


def test_a_name_that_the_caller_forgot_is_an_error() -> None:
    with pytest.raises(KeyError):
        script("release").command({"own": "x"})


SAID: dict[str, Callable[[Owner], object]] = {
    "append": lambda owner: owner.append(),
    "commit": lambda owner: owner.commit(state=(("slot", b"v"),)),
    "release": lambda owner: owner.release(),
}


@pytest.mark.parametrize(
    ("verb", "broken", "culprit"),
    [("append", "evt", "RPUSH"), ("commit", "state", "HSET"), ("release", "due", "ZADD")],
)
def test_an_error_names_the_line_of_the_file(hand: Hand, verb: str, broken: str, culprit: str) -> None:
    owner = busy(hand)
    key = getattr(hand.journal.keys(owner.session), broken)
    hand.client.delete(key)
    hand.client.set(key, "not what it should be")
    with pytest.raises(ResponseError) as error:
        SAID[verb](owner)
    at = re.search(r"user_script:(\d+)", str(error.value))
    assert at is not None, str(error.value)
    assert culprit in (FOLDER / f"{verb}.lua").read_text().split("\n")[int(at[1]) - 1]


def test_an_error_in_a_part_names_the_second_line(hand: Hand) -> None:
    hand.client.set(QUEUE, "not a list")
    with pytest.raises(ResponseError, match=r"user_script:2\b"):
        hand.asked()


def test_a_server_that_has_forgotten_the_scripts_is_given_them_once(hand: Hand) -> None:
    owner = busy(hand)
    hand.client.script_flush()
    assert isinstance(owner.commit(), Done)
    hand.client.script_flush()
    assert isinstance(owner.append(), Appended)
    hand.client.script_flush()
    command = hand.journal.append_command(
        owner.session, owner.token, owner.position.events, "evt_1", ['{"id":"evt_1"}']
    )
    assert hand.journal.append_many([command]) == [Appended(owner.position.events + 1, 1)]


def test_all_scripts_load(hand: Hand) -> None:
    hand.journal.load_scripts()
    assert hand.client.script_exists(*(script(verb).sha for verb in VERBS)) == [True] * len(VERBS)


class Bare(Spoken):
    """For a server that knows no shebang: the same scripts without their first line."""

    def call(self, verb: Script, command: Command) -> Any:
        text = verb.text.replace(verb.text.split("\n")[0], "--", 1)
        return self.client.execute_command("EVAL", text, *command[2:])


def test_without_their_first_line_the_scripts_run_in_fakeredis() -> None:
    with fakeredis.FakeRedis() as client:
        hand = Hand(client, kind=Bare)
        first = hand.message()
        session = hand.create(first)
        assert hand.deliver(session, first).again
        assert hand.deliver(session).n == 2
        owner = hand.owner(session)
        assert isinstance(owner.granted, Granted)
        assert isinstance(owner.use(first.id, records=(("c", b"r"),)), Done)
        assert owner.renew() == "done"
        owner.append(2)
        owner.release()
        assert len(hand.wakes()) == 2
        hand.client.delete(QUEUE)
        hand.later(2_000)
        assert hand.journal.due()[2] == 1
