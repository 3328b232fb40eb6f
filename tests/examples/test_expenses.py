"""Receipts come in as files, small sums are paid at once, large ones when a person says so, and each of them once."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.caller import Answer, Caller
from tests.examples.conftest import House
from tests.servers import wait_for
from tests.tasks.workers import ROOT

HOTEL = "what,eur\nroom,129.00\nbreakfast,14.50\n"
TRAIN = "what,eur\nthere,18.20\nback,18.20\n"


def parts(text: str, **files: str) -> list[dict[str, str]]:
    """A message with files."""
    return [
        {"type": "text", "text": text},
        *(
            {
                "type": "file",
                "mediaType": "text/csv",
                "filename": f"{name}.csv",
                "data": base64.b64encode(content.encode()).decode(),
            }
            for name, content in files.items()
        ),
    ]


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """Where the payments are written down."""
    return tmp_path / "bank"


@pytest.fixture
def caller(house: House, bank: Path) -> Caller:
    house.runs("examples.expenses:app", EXPENSES_BANK=str(bank))
    return house.web()


def payments(bank: Path) -> list[str]:
    return [json.loads(line)["eur"] for line in bank.read_text().splitlines()] if bank.exists() else []


def sent(caller: Caller, message: list[dict[str, str]]) -> str:
    told: Answer = caller.post("/session", {"message": message})
    assert told.status == 202, told
    return str(told.body["sessionId"])


def last_words(caller: Caller, session: str) -> str:
    said = [event["data"]["message"] for event in caller.events(session) if event["type"] == "message.completed"]
    return str(said[-1])


def request(caller: Caller, session: str) -> dict[str, Any]:
    """The one thing that the session asks, as soon as it does."""
    open_ones = f"/session/{session}/requests?open=1"
    wait_for(lambda: caller.get(open_ones).body["requests"], 20, what="a request")
    (only,) = caller.get(open_ones).body["requests"]
    return dict(only)


def decides(caller: Caller, session: str, option: str) -> None:
    answers = [{"requestId": request(caller, session)["requestId"], "optionId": option}]
    assert caller.post(f"/session/{session}", {"inputResponses": answers}).status == 202


def test_a_small_sum_is_paid_at_once(house: House, caller: Caller, bank: Path) -> None:
    house.worker()
    session = sent(caller, parts("Day trip", train=TRAIN))
    assert caller.ended(session) == ["turn.completed"]
    assert last_words(caller, session) == "36.40 EUR were paid."
    assert payments(bank) == ["36.40"]
    assert "129" not in json.dumps(caller.events(session))


@pytest.mark.acceptance
def test_a_large_sum_waits_for_a_person_while_everything_is_restarted(house: House, caller: Caller, bank: Path) -> None:
    worker = house.worker()
    session = sent(caller, parts("Book fair", train=TRAIN, hotel=HOTEL))
    asked = request(caller, session)
    assert asked["prompt"] == "Pay 179.90 EUR for Book fair?"
    assert payments(bank) == []
    worker.signal()
    worker.ends()
    decides(caller, session, "approve")
    house.worker()
    assert caller.ended(session) == ["turn.completed"]
    assert payments(bank) == ["179.90"]
    assert caller.types(session).count("turn.started") == 1


def test_what_a_person_refuses_is_not_paid(house: House, caller: Caller, bank: Path) -> None:
    house.worker()
    session = sent(caller, parts("Book fair", hotel=HOTEL))
    decides(caller, session, "cancel")
    assert caller.ended(session) == ["turn.completed"]
    assert last_words(caller, session) == "A person refused this call."
    assert payments(bank) == []


def test_a_very_large_sum_is_not_even_asked_for(house: House, caller: Caller, bank: Path) -> None:
    house.worker()
    session = sent(caller, parts("World tour", tour="what,eur\ntickets,9000\n"))
    assert caller.ended(session) == ["turn.completed"]
    assert "accounts department" in last_words(caller, session)
    assert "input.requested" not in caller.types(session)
    assert payments(bank) == []


def test_what_is_no_receipt_is_refused_or_told_to_the_model(house: House, caller: Caller, bank: Path) -> None:
    house.worker()
    picture = [{"type": "file", "mediaType": "image/png", "filename": "me.png", "data": "aGVsbG8="}]
    refused = caller.post("/session", {"message": picture})
    assert (refused.status, refused.body["code"]) == (415, "file_type_refused")
    session = sent(caller, parts("Odd", odd="what,usd\nroom,12.00\n"))
    assert caller.ended(session) == ["turn.completed"]
    assert "odd.csv is no receipt" in last_words(caller, session)
    assert payments(bank) == []


def test_its_program_asks_at_the_keyboard(house: House, caller: Caller, bank: Path, tmp_path: Path) -> None:
    house.worker()
    (tmp_path / "hotel.csv").write_text(HOTEL)
    said = subprocess.run(
        [sys.executable, "-m", "examples.expenses", str(tmp_path / "hotel.csv")],
        env={**house.environment, "WEB_URL": f"http://127.0.0.1:{caller.port}"},
        input="y\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout == "Pay 143.50 EUR for My journey to the book fair? [y/N] 143.50 EUR were paid.\n"
    assert payments(bank) == ["143.50"]
