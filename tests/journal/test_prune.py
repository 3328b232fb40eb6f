"""Old deltas become stubs; a reader sees the same indices, ids and coordinates, and no text that `completed` has as well."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from orchestrator.core.event import Event, line
from orchestrator.core.names import DeliveryId
from orchestrator.ids import ulid
from orchestrator.journal.stubs import restore, stub
from orchestrator.journal.tidying import tidy
from tests.journal.test_ownership import busy
from tests.journal.world import Hand, Owner, a_delta, an_event, changed


def closing(hand: Hand, kind: str = "step.completed", *, step: int = 0) -> str:
    data = {"turnId": "turn_0", "sequence": 0, "stepIndex": step}
    return line(Event(kind, data), f"evt_{ulid(hand.now)}", "2027-01-15T08:00:00.000Z", (), 1)


def superseding(hand: Hand, first: int, last: int) -> str:
    data = {"turnId": "turn_0", "sequence": 0, "stepIndex": 0, "from": first, "to": last}
    return line(Event("step.superseded", data), f"evt_{ulid(hand.now)}", "2027-01-15T08:00:00.000Z", (), 1)


def talk(hand: Hand, *lines: str) -> Owner:
    owner = busy(hand)
    owner.commit(lines=lines, tidy=True)
    return owner


def stream(hand: Hand, owner: Owner) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", json.loads(text)) for text in hand.reads.events(owner.session, 0, 10_000)]


def stored(hand: Hand, owner: Owner) -> list[bytes]:
    return cast("list[bytes]", hand.client.lrange(hand.journal.keys(owner.session).evt, 0, -1))


def test_a_stub_reads_as_the_event_with_an_empty_delta(hand: Hand) -> None:
    for kind, name in (("message", "messageDelta"), ("reasoning", "reasoningDelta")):
        data = {"turnId": "turn_12", "sequence": 12, "stepIndex": 34, name: "text"}
        text = line(Event(f"{kind}.appended", data), f"evt_{ulid(hand.now)}", "…", (DeliveryId("dlv_1"),), 2)
        event, again = json.loads(text), json.loads(restore((stub(text.encode()) or "").encode()))
        assert again["data"] == {**event["data"], name: ""}
        assert (again["type"], again["meta"]["id"]) == (event["type"], event["meta"]["id"])
        assert again["meta"]["at"].endswith("Z")


def test_only_deltas_have_a_stub(hand: Hand) -> None:
    for text in (an_event(hand.now, 0), closing(hand), '{"type":"message.completed"}', '{"type":"action.partial"}', ""):
        assert stub(text.encode()) is None


def test_deltas_of_a_closed_step_become_stubs_after_ten_minutes(hand: Hand) -> None:
    owner = talk(hand, a_delta(hand.now, "a"), a_delta(hand.now, "b"), closing(hand), an_event(hand.now, 9))
    before, lines = stream(hand, owner), stored(hand, owner)
    hand.later(599_999)
    assert hand.journal.tidy(hand.now) == []
    hand.later(2)
    assert hand.journal.tidy(hand.now) == [owner.session]
    assert tidy(hand.journal, owner.session, hand.now) == 2
    assert hand.journal.tidy(hand.now + 10**9) == [], "nothing is left to do"
    after, now_stored = stream(hand, owner), stored(hand, owner)
    assert [event["meta"]["id"] for event in after] == [event["meta"]["id"] for event in before]
    assert [event["type"] for event in after] == [event["type"] for event in before]
    assert [place for place, text in enumerate(lines) if now_stored[place] != text] == [1, 2]
    assert [event["data"].get("messageDelta") for event in after[1:3]] == ["", ""]
    assert hand.fields(owner.session)["events"] == str(len(after))


def test_tidying_twice_changes_nothing(hand: Hand) -> None:
    owner = talk(hand, a_delta(hand.now, "a"), closing(hand))
    hand.later(600_001)
    assert tidy(hand.journal, owner.session, hand.now) == 1
    before = hand.everything()
    assert tidy(hand.journal, owner.session, hand.now) == 0
    assert changed(before, hand.everything()) == set()


def test_two_keepers_that_tidy_at_once_do_it_once(hand: Hand) -> None:
    owner = talk(hand, a_delta(hand.now, "a"), a_delta(hand.now, "b"), closing(hand))
    hand.later(600_001)
    tidy(hand.journal, owner.session, hand.now)
    pruned = hand.said[-1]
    assert hand.again(pruned, now=hand.now + 5_000) == [b"done", 0]


def test_an_open_step_keeps_its_text(hand: Hand) -> None:
    owner = talk(hand, a_delta(hand.now, "a"), closing(hand), a_delta(hand.now, "b", step=1))
    hand.later(600_001)
    assert tidy(hand.journal, owner.session, hand.now) == 1
    assert [event["data"].get("messageDelta") for event in stream(hand, owner)[1:]] == ["", None, "b"]
    assert hand.fields(owner.session)["pruned"] == "3", "the next pass begins at the first delta that is left"
    assert hand.journal.tidy(hand.now + 600_000) == [owner.session]
    owner.commit(lines=[closing(hand, step=1)])
    hand.later(600_001)
    assert tidy(hand.journal, owner.session, hand.now) == 1


def test_superseded_deltas_go_and_those_of_the_new_attempt_stay_until_it_is_closed(hand: Hand) -> None:
    owner = talk(
        hand, a_delta(hand.now, "old"), a_delta(hand.now, "old"), superseding(hand, 1, 2), a_delta(hand.now, "new")
    )
    hand.later(600_001)
    assert tidy(hand.journal, owner.session, hand.now) == 2
    assert [event["data"].get("messageDelta") for event in stream(hand, owner)[1:]] == ["", "", None, "new"]


def test_a_stream_that_has_grown_meanwhile_is_looked_at_again(hand: Hand) -> None:
    owner = talk(hand, a_delta(hand.now, "a"), closing(hand))
    hand.later(600_001)
    assert hand.journal.prune(owner.session, 3, 0, [], seen=2) == 0
    assert hand.journal.tidy(hand.now + 599_999) == []
    assert hand.journal.tidy(hand.now + 600_000) == [owner.session]


@pytest.mark.parametrize("place", [0, 2, 3, -1, 99])
def test_a_stub_replaces_nothing_but_its_own_line(hand: Hand, place: int) -> None:
    mine = a_delta(hand.now, "mine")
    owner = talk(hand, mine, a_delta(hand.now, "other"), closing(hand))
    before = stored(hand, owner)
    assert hand.journal.prune(owner.session, 0, 0, [(place, stub(mine.encode()) or "")]) == 0
    assert stored(hand, owner) == before


def test_more_deltas_than_a_page_are_pruned(hand: Hand) -> None:
    owner = talk(hand, *(a_delta(hand.now, "text") for _ in range(1_500)), closing(hand))
    ids = [event["meta"]["id"] for event in stream(hand, owner)]
    hand.later(600_001)
    assert tidy(hand.journal, owner.session, hand.now) == 1_500
    assert [event["meta"]["id"] for event in stream(hand, owner)] == ids
    assert hand.journal.tidy(hand.now + 10**9) == []
