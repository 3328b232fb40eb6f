"""What the package offers, what it does not need, and that its two shells are one client."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import client
from orchestrator.client import errors
from orchestrator.client.errors import BY_STATUS, KINDS, ClientError, Refused, ServerAway, TookTooLong, refusal
from orchestrator.errors import OrchestratorError
from tests.test_layers import NOT_IN_CORE, imports, modules

PUBLIC = {
    *("Client", "Session", "Turn", "Address", "AsyncClient", "AsyncSession", "AsyncTurn", "AsyncAddress"),
    *("Outcome", "Event", "events", "Answer", "Request", "RequestRecord", "SessionRecord", "SessionSeen"),
    *("Failure", "Health", "Usage", "Patience"),
    *("ClientError", "Refused", "BadRequest", "Unauthorized", "Forbidden", "SessionNotFound", "SessionNotActive"),
    *("DeliveryKeyReused", "RequestUnknown", "AddressTaken", "InboxFull"),
    *("ServerAway", "StreamBroken", "TookTooLong", "NoAnswer"),
}
SHELLS = {"sync", "aio", "http"}
PURE = [name for name in modules() if re.fullmatch(r"orchestrator\.client\.\w+", name)]
PURE = sorted(name for name in PURE if name.rpartition(".")[2] not in SHELLS)


def test_the_package_offers_what_was_decided() -> None:
    assert set(client.__all__) == PUBLIC
    assert len(client.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_says_what_it_is(name: str) -> None:
    assert inspect.getdoc(getattr(client, name)), f"{name} has no docstring"


@pytest.mark.parametrize("kind", ["Client", "Session", "Turn", "Address"])
def test_the_shells_offer_the_same_in_the_same_words(kind: str) -> None:
    def offered(one: type) -> dict[str, str]:
        found = {}
        for name, thing in vars(one).items():
            if name.startswith("_") and name != "__init__":
                continue
            function: Any = thing.fget if isinstance(thing, property) else thing
            assert inspect.getdoc(function) or name == "__init__", f"{one.__name__}.{name} has no docstring"
            text = f"{inspect.signature(function)} {inspect.getdoc(function)}"
            found[name] = text.replace("Async", "")
        return found

    assert offered(getattr(client, kind)) == offered(getattr(client, f"Async{kind}"))


@pytest.mark.parametrize("name", PURE)
def test_what_decides_asks_nobody_for_the_time_or_for_luck_and_sends_nothing(name: str) -> None:
    allowed = {"urllib"}  # for quoting
    tops = {found.split(".")[0] for _, found in imports(name, modules()[name].read_text())}
    assert not tops & (NOT_IN_CORE - allowed | {"httpx2"})
    whole = {found for _, found in imports(name, modules()[name].read_text())}
    assert not any(found.startswith(f"orchestrator.client.{shell}") for found in whole for shell in SHELLS)


def test_what_decides_is_more_than_one_module() -> None:
    assert len(PURE) >= 8


# Errors -----------------------------------------------------------------------------------------------------------------


def every(kind: type[ClientError]) -> list[type[ClientError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in every(sub))]


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    drawn = re.findall(r"^[│ ]*[├└]── (\w+)", inspect.getdoc(errors) or "", re.MULTILINE)
    assert sorted(drawn) == sorted(kind.__name__ for kind in every(ClientError)[1:])
    assert {kind.__name__ for kind in every(ClientError)} <= PUBLIC


@pytest.mark.parametrize("code", sorted(KINDS))
def test_a_code_of_the_server_has_an_error_that_says_what_the_server_says(code: str) -> None:
    error = refusal(418, {"code": code, "error": "Do this."})
    assert (error.code, error.status) == (code, 418)
    assert "Do this." in str(error)


def test_a_refusal_of_another_server_is_never_taken_for_one_of_our_own() -> None:
    assert not any(issubclass(kind, OrchestratorError) for kind in every(ClientError))


@pytest.mark.parametrize("status", [400, 401, 403, 413, 404, 418, 500])
def test_an_answer_without_a_code_is_told_by_its_status(status: int) -> None:
    error = refusal(status, {})
    assert type(error) is BY_STATUS.get(status, Refused)
    assert "is the address of the server right" in str(error)


def test_errors_travel_between_processes() -> None:
    away = ServerAway(asked="it", seconds=3, reason="why", remedy="Wait.")
    late = TookTooLong(what="It", seconds=2.0)
    for error in (refusal(429, {"code": "inbox_full", "error": "Full."}, 3.0), away, late):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
        assert (type(again), str(again), again.facts) == (type(error), str(error), error.facts)
        assert again.code == error.code


def test_codes_of_tomorrow_are_refusals() -> None:
    error = refusal(409, {"code": "moon_not_full", "error": "Wait for it.", "phase": 3})
    assert type(error) is Refused
    assert str(error) == "The server refused this with 409 moon_not_full: Wait for it."
    assert error.body["phase"] == 3


def test_every_code_of_the_page_is_known_or_one_that_is_waited_out() -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    codes = {
        code for row in re.findall(r"^\| \d{3} \| (`[^|]+) \|", page, re.MULTILINE) for code in row.split("`")[1::2]
    }
    plain = {"addresses_full", "link_unknown", "link_used"}
    waited = {"issuer_away", "too_many_streams", "journal_away", "journal_full", "local_server_away"}
    assert codes - plain - waited == set(KINDS)
