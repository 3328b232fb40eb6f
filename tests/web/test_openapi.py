"""The OpenAPI document is true: it has the routes that there are, and no request it can think of makes the server fail."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
import pytest
import redis
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import web
from orchestrator import Agent, App, Channel, Engine, ScriptedModel, Settings, always, answers, asks, tool
from orchestrator.apikeys import mint
from orchestrator.channels import Request, handle
from orchestrator.core.names import SessionId
from tests.servers import Server
from tests.web.support import Http, http_of
from web.openapi import OPERATIONS, document

ROOT = Path(__file__).parents[2]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
METHODS = {"GET", "POST", "DELETE"}
SCHEMA = schemathesis.openapi.from_dict(document())


@tool(approval=always())
def pay(amount: int) -> str:
    """Pay."""
    return f"{amount} paid"


class OpenDoor(Channel):
    """Lets every webhook in."""

    def verify(self, request: Request) -> None:
        """Nobody is asked who they are."""


class People:
    """A server with sessions in all kinds of states, and somebody who may do everything there."""

    def __init__(self, url: str) -> None:
        key, entry = mint("tester", ["admin"])
        model = ScriptedModel(lambda talk: asks("pay", amount=7) if not talk.results else answers("Done."))
        self.app = App([Agent("payer", model=model, tools=[pay])], channels=[OpenDoor("door"), Channel("desk")])
        # No server ends these requests, so a reader keeps its place until it is collected.
        self.engine = Engine(self.app, Settings(url=url, api_keys=entry, streams=10_000))
        self.flask = web.create_app(engine=self.engine)
        self.headers = {"authorization": f"Bearer {key}"}
        self.names: dict[str, list[str]] = {
            "session": [
                self.fresh(),
                self.asked(),
                self.asked(),
                self.asked(),
                self.ended(),
                self.engine.create().session,
            ],
            "token": [link for name in (self.asked(), self.asked()) if (link := self.link(name))],
            "channel": ["door", "desk"],
            "address": ["ticket-1", "a/b", "é?"],
        }
        handle(self.app, "desk", self.engine).from_("ticket-1").send("Hello")

    def fresh(self) -> SessionId:
        return self.engine.create("Pay him").session

    def asked(self) -> SessionId:
        session = self.fresh()
        while self.engine.carry_on(session).how != "parked":
            pass
        return session

    def ended(self) -> SessionId:
        session = self.asked()
        self.engine.control(session, "reset")
        return session

    def link(self, session: SessionId) -> str:
        (note,) = self.engine.requests(session)
        return str(note["link"])

    def instead(self, place: str, made_up: str, *, ends: bool) -> str:
        """A name that leads somewhere in place of one that was made up; now and then that one itself.

        What `ends` a session gets one of its own.
        """
        real = [self.fresh()] if ends and place == "session" else self.names.get(place, [])
        chosen = zlib.crc32(made_up.encode("utf-8", "replace")) % (len(real) + 1)
        return ([made_up] + [quote(name, safe="") for name in real])[chosen]


@pytest.fixture(scope="module")
def people(valkey: Server) -> Iterator[People]:
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    made = People(valkey.url)
    yield made
    made.engine.close()


@SCHEMA.parametrize()
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_no_request_makes_the_server_fail(case: schemathesis.Case[Any], people: People) -> None:
    ends = case.method == "DELETE" or case.path.endswith("/reset")
    given = case.path_parameters or {}
    case.path_parameters = {name: people.instead(name, str(text), ends=ends) for name, text in given.items()}
    headers = people.headers if case.operation.definition.raw["security"] else {}
    answer = case.call(app=people.flask, headers=headers)
    case.validate_response(answer, checks=CHECKS)


@pytest.fixture
def http(people: People) -> Http:
    return http_of(people.flask)


def operations(found: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in found["paths"].items():
        for method, about in methods.items():
            yield method.upper(), path, about


def test_it_has_every_route_that_there_is_and_no_other(people: People) -> None:
    routes = {
        (method, re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule))
        for rule in people.flask.url_map.iter_rules()
        for method in (rule.methods or set()) & METHODS
    }
    assert {(method, path) for method, path, _ in operations(document())} == routes


def test_an_operation_has_one_entry_for_each_route() -> None:
    routes = [(one.method, where + one.path) for one in OPERATIONS for where in one.on]
    assert len(routes) == len(set(routes))
    names = [about["operationId"] for _, _, about in operations(document())]
    assert len(names) == len(set(names))


def test_the_file_in_docs_is_the_document_that_is_served(http: Http) -> None:
    said = "Write it again: python -m web > docs/openapi.json"
    assert json.loads((ROOT / "docs" / "openapi.json").read_text()) == document(), said
    answer = http.get("/v1/openapi.json")
    assert answer.status_code == 200
    assert answer.get_json() == document()


def test_it_says_where_its_routes_are_mounted(people: People) -> None:
    flask = Flask("theirs")
    flask.register_blueprint(web.blueprint(people.app, people.engine), url_prefix="/agents")
    answer = http_of(flask).get("/agents/v1/openapi.json", base_url="http://localhost/below")
    assert answer.get_json()["servers"] == [{"url": "/below/agents"}]


def test_its_schemas_are_json_schemas_and_its_references_lead_somewhere() -> None:
    found = document()
    for shape in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(shape)
    for section, name in re.findall(r'"#/components/(\w+)/(\w+)"', json.dumps(found)):
        assert name in found["components"][section]
    for name in found["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in json.dumps(found) or name == "Event", f"nothing uses {name}"
    ids = {about["operationId"] for _, _, about in operations(found)}
    assert set(re.findall(r'"links": .*?"operationId": "(\w+)"', json.dumps(found))) <= ids


@pytest.mark.parametrize(
    ("method", "path", "about"),
    [pytest.param(*one, id=f"{one[0]} {one[1]}") for one in operations(document())],
)
def test_what_needs_a_credential_is_refused_without_one(
    http: Http, people: People, method: str, path: str, about: Mapping[str, Any]
) -> None:
    names = {name: quote(real[0], safe="") for name, real in people.names.items()}
    answer = http.open(path.format(**names), method=method, headers={"content-type": "application/json"})
    assert (answer.status_code == 401) == bool(about["security"]), answer.get_data(as_text=True)
    assert bool(about["security"]) == ("403" in about["responses"])


@pytest.mark.parametrize("scope", ["read", "send", "answer", "control", "erase"])
def test_the_scopes_that_it_names_are_those_that_are_asked_for(people: People, scope: str) -> None:
    key, entry = mint("narrow", [scope])
    flask = web.create_app(engine=Engine(people.app, Settings(url=people.engine.settings.url, api_keys=entry)))
    http = http_of(flask)
    names = {**{name: quote(real[0], safe="") for name, real in people.names.items()}, "session": people.fresh()}
    for method, path, about in operations(document()):
        if about["security"]:
            named = {role for one in about["security"] for role in one.get("bearer", [])}
            body = {"inputResponses": [{"requestId": "r"}]} if scope == "answer" else {"message": "Hello"}
            data = json.dumps(body) if "send" in named and method == "POST" else None
            answer = http.open(
                path.format(**names), method=method, data=data, headers={"authorization": f"Bearer {key}"}
            )
            assert (answer.status_code == 403) == (scope not in named), f"{method} {path}"
