"""`app.channel(name)`: what a program says to a conversation, by its address or to one session by its id."""

from typing import Any, cast

import pytest
import redis

from orchestrator import Agent, App, Channel, ConfigError, ScriptedModel, SessionNotActive, Settings
from orchestrator.channels import handle
from orchestrator.channels.handles import desk_of
from orchestrator.core.snapshot import Principal
from orchestrator.errors import AddressesFull, AddressTaken, BadRequest, DeliveryKeyReused, RequestUnknown
from orchestrator.models.scripted import delivers
from tests.channels.conftest import MakeSite, Site, an_app, at_once
from tests.conftest import MakeServer

ADA = Principal("basic", "user", "ada")


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site(Channel("support", turn_policy="queue"))


def test_a_message_begins_a_session_and_the_next_one_finds_it(site: Site) -> None:
    support = site.channel("support")
    first = support.from_("t-1").send("Hi", principal=ADA)
    assert first.started
    assert not first.again
    second = support.from_("t-1").send([{"type": "text", "text": "And now?"}], principal=ADA)
    assert second.session == first.session
    assert not second.started
    assert support.resolve("t-1") == support.from_("t-1").resolve() == first.session
    assert support.resolve("t-2") is None
    assert site.engine.takes_part(first.session, ADA)
    assert site.said(first.session) == ["Hi", "And now?"]


def test_a_key_is_one_message_and_a_second_text_under_it_is_refused(site: Site) -> None:
    talk = site.channel("support").from_("t-1")
    first = talk.send("Hi", delivery_key="k")
    again = talk.send("Hi", delivery_key="k")
    assert again.again
    assert (again.session, again.delivery) == (first.session, first.delivery)
    with pytest.raises(DeliveryKeyReused):
        talk.send("Ho", delivery_key="k")
    by_id = site.channel("support").attach(first.session)
    one = by_id.send("By id", delivery_key="k")
    assert by_id.send("By id", delivery_key="k").delivery == one.delivery
    assert site.said(first.session) == ["Hi", "By id"]


def test_context_and_the_shape_of_the_result_come_with_the_message(url: str) -> None:
    model = ScriptedModel(lambda talk: delivers(talk.context))
    site = Site(App([Agent("helper", model=model)]), Settings(url=url))
    listed = {"type": "array", "items": {"type": "string"}}
    support = site.channel("support")
    session = support.from_("t-1").send("Hi", context=["It rains.", "It is noon."], output=listed).session
    site.run(session)
    support.attach(session).send("Ho", context={"day": 2}, output=listed)
    site.run(session)
    told = [event["data"]["result"] for event in site.events(session) if event["type"] == "result.completed"]
    assert told == [["It rains.", "It is noon."], ['{"day":2}']]
    with pytest.raises(BadRequest):
        support.from_("t-1").send("Hi", output={"type": 1})


def test_controls_say_which_session_they_told(site: Site) -> None:
    talk = site.channel("support").from_("t-1")
    assert [talk.cancel(), talk.clear(), talk.compact(), talk.reset()] == [None] * 4
    session = talk.send("Hi").session
    assert [talk.cancel(), talk.clear(), talk.compact(), talk.reset()] == [session] * 4
    assert talk.resolve() is None
    assert talk.send("Anew").session != session


def test_by_id_it_is_that_session_or_none(site: Site) -> None:
    support = site.channel("support")
    one = support.attach(support.from_("t-1").send("Hi").session)
    assert [one.cancel(), one.clear(), one.compact(), one.reset()] == [one.session] * 4
    assert [one.cancel(), one.clear(), one.compact(), one.reset()] == [None] * 4
    with pytest.raises(SessionNotActive):
        one.send("Hi")
    with pytest.raises(SessionNotActive):
        one.alias("t-2")
    assert support.resolve("t-1") is None


def test_what_nobody_asked_cannot_be_answered(site: Site) -> None:
    talk = site.channel("support").from_("t-1")
    with pytest.raises(SessionNotActive):
        talk.answer("req_1", option="yes")
    session = talk.send("Hi").session
    with pytest.raises(RequestUnknown):
        talk.answer("req_1", option="yes")
    with pytest.raises(RequestUnknown):
        site.channel("support").attach(session).answer("req_1", text="yes")


@pytest.mark.parametrize("address", ["", "x" * 1025, "\ud800", 7])
def test_what_is_no_address_is_refused(site: Site, address: str) -> None:
    with pytest.raises(BadRequest):
        site.channel("support").from_(address)


@pytest.mark.parametrize("name", ["", "Support", "a/b"])
def test_what_is_no_channel_is_refused(site: Site, name: str) -> None:
    with pytest.raises(ConfigError):
        site.channel(name)


# Aliases ------------------------------------------------------------------------------------------------------------------


def test_an_alias_leads_to_the_same_session(site: Site) -> None:
    support = site.channel("support")
    first = support.from_("t-1").send("Hi")
    for place in range(20):  # some of them live in other shards
        support.attach(first.session).alias(f"mail-{place}")
        support.attach(first.session).alias(f"mail-{place}")
    site.channel("phone").attach(first.session).alias("+49 30 1")
    assert {support.from_(f"mail-{place}").send(f"{place}").session for place in range(20)} == {first.session}
    assert site.channel("phone").from_("+49 30 1").send("Hello").session == first.session
    assert support.resolve("t-1") == first.session
    assert site.said(first.session) == ["Hi", *map(str, range(20)), "Hello"]


def test_an_alias_of_another_live_session_is_refused_until_that_has_ended(site: Site) -> None:
    support = site.channel("support")
    one, two = (support.attach(support.from_(name).send("Hi").session) for name in ("t-1", "t-2"))
    with pytest.raises(AddressTaken):
        two.alias("t-1")
    assert support.resolve("t-1") == one.session
    one.reset()
    two.alias("t-1")
    assert support.resolve("t-1") == two.session


def test_a_session_has_no_more_than_256_addresses(site: Site) -> None:
    support = site.channel("support")
    one = support.attach(support.from_("t-1").send("Hi").session)
    for place in range(255):
        one.alias(f"a-{place}")
    with pytest.raises(AddressesFull):
        one.alias("one more")
    one.drop("a-0")
    one.alias("one more")


def test_what_was_dropped_is_free(site: Site) -> None:
    support = site.channel("support")
    one = support.attach(support.from_("t-1").send("Hi").session)
    one.alias("t-2")
    one.drop("t-2")
    one.drop("t-2")
    one.drop("never had it")
    assert support.resolve("t-2") is None
    assert support.from_("t-2").send("Hi").session != one.session
    assert support.resolve("t-1") == one.session


def test_a_drop_leaves_what_is_anothers_alone(site: Site) -> None:
    support = site.channel("support")
    one, two = (support.attach(support.from_(name).send("Hi").session) for name in ("t-1", "t-2"))
    one.drop("t-2")
    assert support.resolve("t-2") == two.session


def test_all_addresses_are_free_after_a_reset(site: Site) -> None:
    support = site.channel("support")
    one = support.attach(support.from_("t-1").send("Hi").session)
    names = ["t-1", *(f"a-{place}" for place in range(8))]
    for name in names[1:]:
        one.alias(name)
    one.reset()
    assert [support.resolve(name) for name in names] == [None] * 9
    fresh = {support.from_(name).send("Hi").session for name in names}
    assert len(fresh) == 9
    site.run(one.session)
    assert {support.resolve(name) for name in names} == fresh


def test_messages_race_a_reset_and_none_is_lost(site: Site) -> None:
    talk = site.channel("support").from_("t-1")
    first = talk.send("Hi").session
    calls = [lambda place=place: talk.send(f"{place}") if place != 10 else talk.reset() for place in range(20)]
    found = [one for one in at_once(*calls) if not isinstance(one, str)]
    sessions = {one.session for one in found}
    assert len(found) == 19
    assert len(sessions) <= 2
    for session in sessions:
        site.run(session)
    later = sessions - {first}
    heard = [text for session in later for text in site.said(session)]
    assert len(heard) == len([one for one in found if one.session != first])


# Whose engine -------------------------------------------------------------------------------------------------------------


def test_handles_of_an_app_share_an_engine_that_the_environment_describes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_URL", url)
    app = an_app(Channel("support"))
    sent = app.channel("support").from_("t-1").send("Hi")
    assert handle(app, "support").resolve("t-1") == sent.session
    assert desk_of(app) is desk_of(app)
    assert desk_of(an_app()) is not desk_of(app)


def test_many_threads_make_one_engine(url: str) -> None:
    app = an_app(settings=Settings(url=url))
    assert len({id(found) for found in at_once(*[lambda: desk_of(app)] * 8)}) == 1


def test_where_the_broker_is_another_server_wakes_are_published_there_and_the_app_is_ours(
    url: str, make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCHESTRATOR_APP", raising=False)
    other = make_server("valkey")
    app = an_app(Channel("support"), settings=Settings(url=url, broker_url=other.url))
    engine = cast(Any, desk_of(app))
    assert engine.app is app
    app.channel("support").from_("t-1").send("Hi")
    assert redis.Redis.from_url(other.url).llen("orc.default") == 1
    engine.close()


def test_the_settings_of_an_app_are_those_of_its_handles(url: str) -> None:
    app = an_app(settings=Settings(url=url))
    assert app.channel("any").from_("a").send("Hi").started
