"""What a signed channel lets in. All of it is decided before anything is stored."""

from collections.abc import Mapping

import pytest

from orchestrator.channels import Request, StandardWebhook
from orchestrator.channels.channel import Headers
from orchestrator.errors import ConfigError, Unauthorized
from tests.channels.signing import GOOD, secret, signed

BODY = b'{"address": "ticket-1", "message": "Where is it?"}'


def request(headers: Mapping[str, str], body: bytes = BODY) -> Request:
    return Request("POST", Headers(headers), body)


@pytest.fixture
def channel() -> StandardWebhook:
    return StandardWebhook("tickets", secrets=[GOOD])


def test_a_good_signature_comes_in(channel: StandardWebhook) -> None:
    channel.verify(request(signed(BODY)))


def test_header_names_may_be_in_any_case(channel: StandardWebhook) -> None:
    channel.verify(request({name.title(): text for name, text in signed(BODY).items()}))


@pytest.mark.parametrize("ago_seconds", [290, -290])
def test_a_timestamp_within_five_minutes_comes_in(channel: StandardWebhook, ago_seconds: float) -> None:
    channel.verify(request(signed(BODY, ago_seconds=ago_seconds)))


@pytest.mark.parametrize("ago_seconds", [310, -310])
def test_an_older_or_a_newer_one_does_not(channel: StandardWebhook, ago_seconds: float) -> None:
    with pytest.raises(Unauthorized):
        channel.verify(request(signed(BODY, ago_seconds=ago_seconds)))


def test_another_secret_does_not_come_in(channel: StandardWebhook) -> None:
    with pytest.raises(Unauthorized):
        channel.verify(request(signed(BODY, by=secret("x"))))


def test_during_a_change_both_secrets_do() -> None:
    channel = StandardWebhook("tickets", secrets=[secret("n"), secret("o")])
    channel.verify(request(signed(BODY, by=secret("o"))))
    channel.verify(request(signed(BODY, by=secret("n"))))
    with pytest.raises(Unauthorized):
        channel.verify(request(signed(BODY, by=GOOD)))


def test_one_of_several_signatures_is_enough(channel: StandardWebhook) -> None:
    headers = dict(signed(BODY))
    other = signed(BODY, by=secret("x"))["webhook-signature"]
    headers["webhook-signature"] = f"v9,AAAA {other} {headers['webhook-signature']}"
    channel.verify(request(headers))


@pytest.mark.parametrize("body", [BODY + b" ", BODY.replace(b"ticket-1", b"ticket-2"), b"", b"\xff\xfe"])
def test_a_body_that_was_tampered_with_does_not_come_in(channel: StandardWebhook, body: bytes) -> None:
    with pytest.raises(Unauthorized):
        channel.verify(request(signed(BODY), body))


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("text", [None, "", "other", "v1", "v1,", "v1,%%%", ",,,", "nan", "1e400", "ü"])
def test_a_header_that_is_missing_or_rubbish_does_not_come_in(
    channel: StandardWebhook, name: str, text: str | None
) -> None:
    headers = dict(signed(BODY))
    if text is None:
        del headers[name]
    else:
        headers[name] = text
    with pytest.raises(Unauthorized) as told:
        channel.verify(request(headers))
    assert str(told.value) == "This request could not be verified."


def test_the_id_is_signed_too(channel: StandardWebhook) -> None:
    with pytest.raises(Unauthorized):
        channel.verify(request({**signed(BODY), "webhook-id": "msg_2"}))


@pytest.mark.parametrize("secrets", [[], [""], ["whsec_"], ["whsec_ü"], ["whsec_a"], ["not a secret!!"]])
def test_what_is_no_secret_is_refused_at_the_start(secrets: list[str]) -> None:
    with pytest.raises(ConfigError) as told:
        StandardWebhook("tickets", secrets=secrets)
    assert "whsec_ü" not in str(told.value)
