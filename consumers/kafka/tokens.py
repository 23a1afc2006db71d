"""Tokens for brokers that ask for OAUTHBEARER: from a command, or signed for AWS MSK."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kafka.errors import SaslAuthenticationFailedError  # type: ignore[import-untyped]
from kafka.net.sasl.oauth import AbstractTokenProvider  # type: ignore[import-untyped]

from ..errors import ConfigurationError
from ..settings import ConnectionSettings
from ..settings.connection import reveal

#: Longest time that the command may take.
COMMAND_SECONDS: Final = 30.0
#: Lifetime of a token that does not say it.
UNKNOWN_SECONDS: Final = 300.0
#: Share of its lifetime after which a token is replaced.
USED_SHARE: Final = 0.8


class Token(NamedTuple):
    """A token, and the time at which it expires, in seconds since 1970."""

    text: str
    expires: float

    @staticmethod
    def parse(output: str, now: float) -> Token:
        """Read a token, or the JSON with `access_token` and `expires_in` that servers answer.

        Examples
        --------
        >>> Token.parse('{"access_token": "x", "expires_in": 60}', now=1000.0)
        Token(text='x', expires=1060.0)
        >>> Token.parse("opaque", now=1000.0).expires
        1300.0
        """
        text, seconds = output.strip(), UNKNOWN_SECONDS
        if text.startswith("{"):
            found = json.loads(text)
            text, seconds = str(found["access_token"]), float(found.get("expires_in", seconds))
        elif text.count(".") == 2:  # a JWT
            body = text.split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            return Token(text, float(claims.get("exp", now + seconds)))
        if not text or text.split() != [text]:
            raise ValueError("not a token")
        return Token(text, now + seconds)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Keeps a token as long as it is fresh; for both clients.

    No error says what a command has written: it may be a secret.
    """

    def __init__(self, fetch: Callable[[], Token]) -> None:
        super().__init__()
        self._fetch, self._lock = fetch, threading.Lock()
        self._token, self._replace_at = Token("", 0.0), 0.0

    def token(self) -> str:
        """The current token, for kafka-python."""
        return self._current().text

    def for_librdkafka(self, _: str) -> tuple[str, float]:
        """The current token and its expiry."""
        return self._current()

    def _current(self) -> Token:
        with self._lock:
            if time.time() >= self._replace_at:
                try:
                    self._token = self._fetch()
                except Exception as error:
                    raise SaslAuthenticationFailedError(
                        f"no token for OAUTHBEARER ({type(error).__name__})"
                    ) from None
                left = self._token.expires - time.time()
                self._replace_at = time.time() + USED_SHARE * left
            return self._token


def token_provider(settings: ConnectionSettings) -> TokenProvider:
    """Make the source of tokens that the settings name."""
    if settings.sasl_mechanism == "AWS_MSK_IAM":
        return TokenProvider(_signed(settings.sasl_aws_region or ""))
    words = shlex.split(reveal(settings.sasl_token_command) or "")

    def run() -> Token:
        done = subprocess.run(  # noqa: S603
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=True,
        )
        return Token.parse(done.stdout, time.time())

    return TokenProvider(run)


def _signed(region: str) -> Callable[[], Token]:
    """Sign tokens with the credentials of the environment, as AWS's own tools find them."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"`sasl_mechanism`: AWS_MSK_IAM needs {error.name}: pip install 'stream-dppca[msk]'"
        ) from None
    sign: Any = MSKAuthTokenProvider.generate_auth_token

    def fetch() -> Token:
        text, expires_ms = sign(region)
        return Token(text, expires_ms / 1000)

    return fetch
