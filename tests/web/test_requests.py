"""What sessions ask people, over HTTP: answers, links that need no credential, the record."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jwt
import pytest

import web
from orchestrator.agent import Agent, App
from orchestrator.apikeys import mint
from orchestrator.approval import always
from orchestrator.auth import ApiKeys, Jwt
from orchestrator.channels import Channel, handle
from orchestrator.config import Settings
from orchestrator.core.delivery import Body, Part
from orchestrator.core.names import SessionId
from orchestrator.core.snapshot import Principal
from orchestrator.engine import Engine
from orchestrator.errors import DeliveryKeyReused, RequestUnknown, SessionNotActive
from orchestrator.models.scripted import Conversation, Reply, ScriptedModel, answers, asks
from orchestrator.tool import ask_question, tool
from tests.servers import Server, wait_for
from tests.web.issuer import AUDIENCE, claims
from tests.web.support import Http, Web, http_of

BOTH = pytest.mark.parametrize("base", ["/eve/v1", "/v1"])
SHOP, SECRET = "https://shop.example", "s" * 64
Headers = dict[str, str]


def user(name: str) -> Headers:
    token = jwt.encode(claims(SHOP, sub=name), SECRET, "HS256")
    return {"authorization": f"Bearer {token}"}


ANNA, BIRGIT = user("anna"), user("birgit")


class Till:
    """A shop whose agent pays back with leave. `paid` is what it really did."""

    def __init__(self, url: str, **scopes: str) -> None:
        self.url = url
        self.paid: list[int] = []
        made = {name: mint(name, given.split("+")) for name, given in scopes.items()}
        self.keys = {name: {"authorization": f"Bearer {key}"} for name, (key, _) in made.items()}
        entries = [entry for _, entry in made.values()]
        self.auth = [Jwt(issuer=SHOP, audience=AUDIENCE, secret=SECRET), ApiKeys(entries)] if scopes else []
        self.engine = self.another()
        self.http: Http = http_of(web.create_app(engine=self.engine))

    def another(self) -> Engine:
        """The engine of another process."""

        @tool(approval=always(prompt="Refund {cents} cents?"))
        def refund(cents: int) -> str:
            """Pay back."""
            self.paid.append(cents)
            return f"{cents} paid"

        def clerk(talk: Conversation) -> Reply:
            if talk.turn != "turn_0" or talk.step:
                return answers("Done.")
            if "ask" in talk.message:
                return asks("ask_question", question="Which colour?", options=["red", "green"])
            return (
                asks("refund", cents=500) & asks("refund", cents=700)
                if "two" in talk.message
                else asks("refund", cents=500)
            )

        app = App(
            agents=[Agent("clerk", model=ScriptedModel(clerk), tools=[refund, ask_question])],
            channels=[Channel("desk")],
            auth=self.auth,
        )
        return Engine(app, Settings(url=self.url, allow_anonymous="" if self.auth else "all"))

    def run(self, session: str) -> None:
        for _ in range(50):
            if self.engine.carry_on(SessionId(session)).how in ("parked", "idle", "ended", "gone"):
                return
        raise AssertionError(f"{session} comes to no rest")

    def begin(self, message: str = "Pay me", who: Headers | None = None, **body: Any) -> str:
        answer = self.http.post("/v1/session", json={"message": message, **body}, headers=who)
        assert answer.status_code == 202, answer.text
        self.run(answer.json["sessionId"])
        return str(answer.json["sessionId"])

    def asked(self, session: str, who: Headers | None = None, query: str = "") -> list[dict[str, Any]]:
        answer = self.http.get(f"/v1/session/{session}/requests{query}", headers=who)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json["requests"]
        return found

    def link(self, session: str) -> str:
        return str(self.asked(session)[0]["link"])

    def events(self, session: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.engine.reads.events(SessionId(session), 0, 10_000)]

    def types(self, session: str) -> list[str]:
        return [event["type"] for event in self.events(session)]

    def resolved(self, session: str) -> list[str]:
        batches = [event["data"]["resolutions"] for event in self.events(session) if event["type"] == "input.resolved"]
        return [one["outcome"] for batch in batches for one in batch]


@pytest.fixture
def till(url: str) -> Till:
    return Till(url)


@pytest.fixture
def shop(url: str) -> Till:
    return Till(url, service="read+send+answer", reader="read", sender="send")


# Answers ------------------------------------------------------------------------------------------------------------------


@BOTH
def test_an_answer_is_accepted_and_decides(till: Till, base: str) -> None:
    session = till.begin()
    [request] = till.asked(session)
    body = {"inputResponses": [{"requestId": request["requestId"], "optionId": "approve"}]}
    answer = till.http.post(f"{base}/session/{session}", json=body)
    assert answer.status_code == 202
    assert answer.json == {
        "ok": True,
        "sessionId": session,
        "status": "accepted",
        "deliveryId": answer.json["deliveryId"],
    }
    till.run(session)
    assert till.paid == [500]
    assert till.resolved(session) == ["approved"]


def test_a_refusal_may_have_a_text(till: Till) -> None:
    session = till.begin()
    [request] = till.asked(session)
    said = {"requestId": request["requestId"], "optionId": "cancel", "text": "Too much."}
    assert till.http.post(f"/v1/session/{session}", json={"inputResponses": [said]}).status_code == 202
    till.run(session)
    assert till.paid == []
    [result] = [event["data"] for event in till.events(session) if event["type"] == "action.result"]
    assert (result["status"], "Too much." in json.dumps(result)) == ("rejected", True)


@BOTH
def test_an_answer_with_a_delivery_key_is_one_answer_however_often_it_is_sent(till: Till, base: str) -> None:
    session = till.begin()
    [request] = till.asked(session)
    said = {"requestId": request["requestId"], "optionId": "approve"}
    body = {"inputResponses": [said], "deliveryKey": "k"}
    told = [till.http.post(f"{base}/session/{session}", json=body) for _ in range(3)]
    assert {(answer.status_code, answer.json["deliveryId"]) for answer in told} == {(202, told[0].json["deliveryId"])}
    other = till.http.post(
        f"{base}/session/{session}", json={**body, "inputResponses": [{**said, "optionId": "cancel"}]}
    )
    assert (other.status_code, other.json["code"]) == (409, "delivery_key_reused")
    till.run(session)
    assert till.paid == [500]
    again = till.http.post(f"{base}/session/{session}", json=body)
    assert again.json["deliveryId"] == told[0].json["deliveryId"]


def test_one_unknown_request_refuses_all_the_answers(till: Till) -> None:
    session = till.begin()
    [request] = till.asked(session)
    said = [{"requestId": request["requestId"], "optionId": "approve"}, {"requestId": "req_1", "optionId": "approve"}]
    answer = till.http.post(f"/v1/session/{session}", json={"inputResponses": said})
    assert (answer.status_code, answer.json["code"]) == (409, "request_unknown")
    till.run(session)
    assert till.paid == []


def test_requests_of_another_session_are_unknown_here(till: Till) -> None:
    [request] = till.asked(till.begin())
    body = {"inputResponses": [{"requestId": request["requestId"], "optionId": "approve"}]}
    assert till.http.post(f"/v1/session/{till.begin()}", json=body).json["code"] == "request_unknown"


def test_the_scope_answer_is_needed_and_users_answer_in_their_own_sessions(shop: Till) -> None:
    session = shop.begin(who=ANNA)
    [request] = shop.asked(session, ANNA)
    body = {"inputResponses": [{"requestId": request["requestId"], "optionId": "approve"}]}

    def told(who: Headers) -> tuple[int, str]:
        answer = shop.http.post(f"/v1/session/{session}", json=body, headers=who)
        return answer.status_code, answer.json.get("code", "")

    assert told(shop.keys["sender"]) == (403, "forbidden")
    assert told(BIRGIT) == (409, "session_not_active")
    # Whoever may send answers may do so; only the requester's count.
    assert told(shop.keys["service"]) == (202, "")
    shop.run(session)
    assert shop.paid == []
    assert told(ANNA) == (202, "")
    shop.run(session)
    assert shop.paid == [500]


# By address ---------------------------------------------------------------------------------------------------------------


def test_answers_reach_the_session_of_an_address(till: Till) -> None:
    session = till.http.post("/v1/channels/desk/a", json={"message": "Pay me"}).json["sessionId"]
    till.run(session)
    [request] = till.asked(session)
    body = {"inputResponses": [{"requestId": request["requestId"], "optionId": "approve"}]}
    answer = till.http.post("/v1/channels/desk/a", json=body)
    assert (answer.status_code, answer.json["sessionId"], answer.json["status"]) == (202, session, "accepted")
    assert answer.json["deliveryId"]
    till.run(session)
    assert till.paid == [500]


@pytest.mark.parametrize("by", ["address", "id"])
def test_handles_answer(till: Till, by: str) -> None:
    desk = handle(till.engine.app, "desk", till.engine)
    session = desk.from_("a").send("Pay me").session
    one = desk.from_("a") if by == "address" else desk.attach(session)
    till.run(session)
    [request] = till.asked(session)
    with pytest.raises(RequestUnknown):
        one.answer("req_1", option="approve")
    first = one.answer(request["requestId"], option="approve", delivery_key="k")
    again = one.answer(request["requestId"], option="approve", delivery_key="k")
    assert (first.session, first.again, again.again) == (session, False, True)
    with pytest.raises(DeliveryKeyReused):
        one.answer(request["requestId"], option="cancel", delivery_key="k")
    till.run(session)
    assert till.paid == [500]
    one.reset()
    with pytest.raises(SessionNotActive):
        one.answer("req_1", option="approve")


# Links --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [False, True], ids=["json", "form"])
def test_a_link_answers_its_request_without_any_other_credential(shop: Till, form: bool) -> None:
    session = shop.begin(who=ANNA)
    path = f"/v1/requests/{shop.asked(session, ANNA)[0]['link']}"
    shown = shop.http.get(path)
    assert shown.status_code == 200
    assert shown.json["state"] == "open"
    assert shown.json["request"]["prompt"] == "Refund 500 cents?"
    assert "link" not in shown.json["request"]
    said = {"optionId": "approve", "text": ""}
    answer = shop.http.post(path, **({"data": said} if form else {"json": said}))
    assert answer.status_code == 202
    assert answer.json == {
        "ok": True,
        "sessionId": session,
        "status": "accepted",
        "deliveryId": answer.json["deliveryId"],
    }
    shop.run(session)
    assert shop.paid == [500]
    [request] = shop.asked(session, ANNA)
    assert (request["state"], request["decidedBy"]["type"]) == ("approved", "link")


def test_a_link_is_used_up_by_its_first_answer(till: Till) -> None:
    session = till.begin()
    path = f"/v1/requests/{till.link(session)}"
    first, again = (till.http.post(path, json={"optionId": "cancel", "text": "No."}) for _ in range(2))
    assert (again.status_code, again.json) == (202, first.json)
    other = till.http.post(path, json={"optionId": "approve"})
    assert (other.status_code, other.json["code"]) == (409, "link_used")
    till.run(session)
    assert till.resolved(session) == ["denied"]
    assert till.http.get(path).json["state"] == "denied", "it still says what became of it"


@pytest.mark.parametrize("token", ["00" + "x" * 34, "zz", "ZZZZ", "%FF%00", "00" * 2000])
def test_a_link_that_leads_nowhere_is_404(till: Till, token: str) -> None:
    for answer in (
        till.http.get(f"/v1/requests/{token}"),
        till.http.post(f"/v1/requests/{token}", json={"optionId": "approve"}),
    ):
        assert (answer.status_code, answer.json["code"]) == (404, "link_unknown")
        assert token not in answer.text


@pytest.mark.parametrize(
    "given",
    [
        {"json": {}},
        {"json": {"optionId": ""}},
        {"json": {"optionId": 7}},
        {"json": {"text": "ü" * 8193}},
        {"json": {"text": "\ud800"}},
        {"data": b"["},
        {"data": b"optionId=%FF", "content_type": "application/x-www-form-urlencoded"},
        {"data": b"a=1&" * 30, "content_type": "application/x-www-form-urlencoded"},
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_is_no_answer_does_not_use_up_a_link(till: Till, given: dict[str, Any]) -> None:
    path = f"/v1/requests/{till.link(till.begin())}"
    answer = till.http.post(path, **given)
    assert (answer.status_code, answer.json["code"]) == (400, "bad_request")
    assert till.http.get(path).status_code == 200


def test_the_token_of_a_link_is_neither_on_the_stream_nor_in_a_log(
    valkey: Server, till: Till, caplog: pytest.LogCaptureFixture
) -> None:
    session = till.begin()
    token = till.link(session)
    with Web(valkey.url, "--access-logformat", '%(U)s "%(r)s"') as site:
        site.get(f"/eve/v1/requests/{token}")
        assert site.get(f"/v1/requests/{token}")[0] == 200
        assert site.post(f"/v1/requests/{token}")[0] == 400
        wait_for(lambda: site.log.count("POST /v1/requests/…") == 1, what="the access log")
        assert token not in site.log
    till.http.post(f"/v1/requests/{token}", json={"optionId": "approve"})
    till.run(session)
    assert token not in json.dumps(till.events(session))
    assert token not in caplog.text


def test_a_link_of_an_erased_session_leads_nowhere(till: Till) -> None:
    session = till.begin()
    token = till.link(session)
    till.engine.erase(SessionId(session))
    assert till.http.get(f"/v1/requests/{token}").status_code == 404
    assert till.http.post(f"/v1/requests/{token}", json={"optionId": "approve"}).status_code == 404


def test_an_answer_through_a_link_of_an_ended_session_is_not_accepted(till: Till) -> None:
    session = till.begin()
    token = till.link(session)
    till.http.post(f"/v1/session/{session}/reset", json={})
    answer = till.http.post(f"/v1/requests/{token}", json={"optionId": "approve"})
    assert (answer.status_code, answer.json["code"]) == (409, "session_not_active")


# The record ---------------------------------------------------------------------------------------------------------------


def test_the_record_says_what_was_asked_and_who_decided(shop: Till) -> None:
    session = shop.begin(who=ANNA)
    [waiting] = shop.asked(session, ANNA, "?open=1")
    assert waiting == shop.asked(session, ANNA)[0]
    assert (waiting["state"], waiting["decidedBy"], waiting["endedMs"], waiting["answers"]) == ("open", None, None, [])
    assert waiting["action"] == {
        "kind": "tool-call",
        "toolName": "refund",
        "callId": "call_0_0_0",
        "input": {"cents": 500},
    }
    assert waiting["digest"]
    assert waiting["turnId"] == "turn_0"
    assert waiting["requester"]["id"] == "anna"
    said = {"requestId": waiting["requestId"], "optionId": "cancel", "text": "Too much."}
    shop.http.post(f"/v1/session/{session}", json={"inputResponses": [said]}, headers=ANNA)
    shop.run(session)
    [decided] = shop.asked(session, ANNA)
    assert (decided["state"], decided["optionId"], decided["text"]) == ("denied", "cancel", "Too much.")
    assert decided["decidedBy"] == waiting["requester"]
    assert decided["endedMs"] >= waiting["askedMs"]
    assert [one["says"] for one in decided["answers"]] == ["denied"]
    assert "link" not in decided
    assert shop.asked(session, ANNA, "?open=1") == []


def test_links_are_for_those_who_may_answer(shop: Till) -> None:
    session = shop.begin(who=ANNA)
    assert "link" in shop.asked(session, ANNA)[0]
    assert "link" in shop.asked(session, shop.keys["service"])[0]
    assert "link" not in shop.asked(session, shop.keys["reader"])[0]
    # Somebody else's session is not there; one who takes part may read, and may not answer for another.
    path = f"/v1/session/{session}/requests"
    assert shop.http.get(path, headers=BIRGIT).status_code == 404
    assert shop.http.get(path, headers=shop.keys["sender"]).status_code == 403
    assert shop.http.get(path).status_code == 401
    birgit = Principal("jwt", "user", "birgit", SHOP)
    shop.engine.deliver(SessionId(session), Body((Part("text", "And I?"),)), principal=birgit, policy="queue")
    assert "link" not in shop.asked(session, BIRGIT)[0]


# Sessions that ask nobody -------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("said", "asks_somebody"), [({"requestInput": False}, False), ({"requestInput": True}, True), ({}, True)]
)
def test_a_session_may_be_made_that_asks_nobody(
    till: Till, base: str, said: dict[str, bool], asks_somebody: bool
) -> None:
    session = till.http.post(f"{base}/session", json={"message": "Pay me", "capabilities": said}).json["sessionId"]
    till.run(session)
    assert till.paid == []
    if asks_somebody:
        assert till.types(session)[-1] == "turn.waiting"
        return
    assert till.types(session)[-2:] == ["turn.completed", "session.waiting"]
    [result] = [event["data"] for event in till.events(session) if event["type"] == "action.result"]
    assert (result["status"], result["error"]["code"]) == ("rejected", "APPROVAL_UNAVAILABLE")
    assert till.asked(session) == []


def test_a_question_that_nobody_can_be_asked_is_answered_so(till: Till) -> None:
    session = till.begin("ask me", capabilities={"requestInput": False})
    [result] = [event["data"] for event in till.events(session) if event["type"] == "action.result"]
    assert (result["status"], result["result"]["output"]) == ("completed", {"status": "unavailable"})


# Many at once -------------------------------------------------------------------------------------------------------------


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What they answer, begun at the same moment."""
    start, found = threading.Barrier(len(calls)), list[Any]()

    def run(call: Callable[[], Any]) -> None:
        start.wait(30)
        found.append(call())

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert len(found) == len(calls)
    return found


@pytest.mark.parametrize("by", ["id", "link"])
def test_of_thirty_answers_at_once_one_decides(till: Till, by: str) -> None:
    session = till.begin()
    [request] = till.asked(session)
    other = till.another()
    sites = [web.create_app(engine=till.engine), web.create_app(engine=other)]

    def answer(number: int, option: str) -> Callable[[], tuple[int, str]]:
        def post() -> tuple[int, str]:
            http = http_of(sites[number % 2])
            said = {"optionId": option}
            if by == "link":
                told = http.post(f"/v1/requests/{request['link']}", json=said)
            else:
                body = {"inputResponses": [{"requestId": request["requestId"], **said}]}
                told = http.post(f"/v1/session/{session}", json=body)
            return told.status_code, told.json.get("code", "")

        return post

    workers = [lambda engine=engine: engine.carry_on(SessionId(session)).how for engine in (till.engine, other)]
    posts = [answer(number, "cancel" if number % 6 == 5 else "approve") for number in range(30)]
    found = at_once([*posts, *workers])
    till.run(session)
    wait_for(lambda: till.types(session)[-1] == "session.waiting", 10, what="the end of the turn")
    told = {one for one in found if isinstance(one, tuple)}
    assert told <= {(202, ""), (409, "link_used")} if by == "link" else told == {(202, "")}
    [outcome] = till.resolved(session)
    assert till.paid == {"approved": [500], "denied": []}[outcome]
    types = till.types(session)
    assert (types.count("turn.started"), types.count("approval.settled"), types.count("turn.completed")) == (1, 1, 1)
    assert len(till.asked(session)) == 1
    other.close()
