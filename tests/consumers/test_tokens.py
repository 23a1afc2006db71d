"""Tokens for OAUTHBEARER: where they come from, and how long they are used."""

from __future__ import annotations

import base64
import json
import sys
import time
from typing import Any

import pytest
from kafka.errors import SaslAuthenticationFailedError

from consumers.errors import ConfigurationError
from consumers.kafka import tokens
from consumers.kafka.configure import kafka_config
from consumers.kafka.tokens import Token, TokenProvider, token_provider
from consumers.settings import ClusterSettings, load_part


def settings(**given: Any) -> ClusterSettings:
    return load_part(
        ClusterSettings, {"input_topic": "in", "security_protocol": "SASL_PLAINTEXT", **given}
    )


def test_a_jwt_says_when_it_expires() -> None:
    body = base64.urlsafe_b64encode(json.dumps({"exp": 5000}).encode()).decode().rstrip("=")
    assert Token.parse(f" e30.{body}.\n", 1000.0) == Token(f"e30.{body}.", 5000.0)


@pytest.mark.parametrize("output", ["", " \n", "two words", "{}", "{", "a.b.c", '{"access": "x"}'])
def test_what_is_not_a_token_is_refused(output: str) -> None:
    def fetch() -> Token:
        return Token.parse(output, 0.0)

    with pytest.raises(SaslAuthenticationFailedError) as raised:
        TokenProvider(fetch).token()
    assert "no token for OAUTHBEARER" in str(raised.value)


def test_a_token_is_replaced_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(tokens.time, "time", lambda: now)
    numbers = iter(range(10))
    provider = TokenProvider(lambda: Token(f"t{next(numbers)}", now + 100))
    assert provider.token() == provider.token() == "t0"
    now = 1079.0
    assert provider.for_librdkafka("") == ("t0", 1100.0)
    now = 1081.0
    assert provider.for_librdkafka("") == ("t1", 1181.0)


def test_a_token_from_a_command() -> None:
    script = 'import json; print(json.dumps({"access_token": "secret", "expires_in": 60}))'
    command = f"{sys.executable} -c '{script}'"
    given = settings(sasl_mechanism="OAUTHBEARER", sasl_token_command=command)
    assert token_provider(given).token() == "secret"
    config = kafka_config(given)
    assert config.connection["sasl_mechanism"] == "OAUTHBEARER"
    assert config.librdkafka is not None
    assert config.librdkafka["oauth_cb"]("")[0] == "secret"
    assert "secret" not in repr(config) and script not in repr(given)
    for wrong in ("false", "no-such-command-here", f"{sys.executable} -c 'print(1, 2)'"):
        broken = settings(sasl_mechanism="OAUTHBEARER", sasl_token_command=wrong)
        with pytest.raises(SaslAuthenticationFailedError):
            token_provider(broken).token()


def test_a_token_that_is_signed_for_msk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-real-key")
    given = settings(sasl_mechanism="AWS_MSK_IAM", sasl_aws_region="eu-central-1")
    text, expires = token_provider(given).for_librdkafka("")
    signed = base64.urlsafe_b64decode(text + "==").decode()
    assert "kafka.eu-central-1.amazonaws.com" in signed and "AKIDEXAMPLE" in signed
    assert "not-a-real-key" not in signed
    assert 60 < expires - time.time() <= 900


@pytest.mark.parametrize(
    "given, named",
    [
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_token_command"),
        ({"sasl_mechanism": "AWS_MSK_IAM"}, "sasl_aws_region"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_username"),
        ({}, "sasl_mechanism"),
    ],
)
def test_what_a_mechanism_needs(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{named}`"):
        settings(**given)
