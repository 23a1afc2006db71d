"""Settings of the connection to the brokers and to the Schema Registry."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr, field_validator

from .part import Part

#: Settings that login mechanisms need, if not a name and a password.
_NEEDED: Final = {"OAUTHBEARER": ("sasl_token_command",), "AWS_MSK_IAM": ("sasl_aws_region",)}


class ConnectionSettings(Part):
    """The connection to the brokers, limits of fetches, and the Schema Registry."""

    bootstrap_servers: str = "localhost:9092"
    """brokers to ask first, as host:port, separated by commas"""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """encryption (SSL) and login (SASL) of the connection"""
    ssl_cafile: Path | None = None
    """PEM file of the authorities to trust; default: those of the system"""
    ssl_certfile: Path | None = None
    """PEM file with the certificate of this client"""
    ssl_keyfile: Path | None = None
    """PEM file with the private key; default: in ssl_certfile"""
    ssl_password: SecretStr | None = None
    """password of the private key"""
    ssl_check_hostname: bool = True
    """refuse a broker whose certificate is for another host name"""
    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None
    ) = None
    """login mechanism; AWS_MSK_IAM is that of Amazon MSK"""
    sasl_username: str | None = None
    """user name of the login"""
    sasl_password: SecretStr | None = None
    """password of the login"""
    sasl_token_command: SecretStr | None = None
    """with OAUTHBEARER: command that prints a token, or JSON with access_token and expires_in"""
    sasl_aws_region: str | None = None
    """with AWS_MSK_IAM: region of the cluster, such as eu-central-1"""
    session_timeout_s: float = Field(10.0, ge=1, le=600)
    """silence after which a standby takes over, in seconds"""
    request_timeout_s: float = Field(30.0, ge=1, le=600)
    """maximum wait for the answer to a request, in seconds"""
    transaction_timeout_s: float = Field(60.0, ge=1, le=900)
    """age at which brokers abort a transaction, in seconds"""
    reader: Literal["confluent", "kafka-python"] = "confluent"
    """client that reads the input: confluent (librdkafka) is faster; kafka-python bounds the memory
    that a decompression bomb takes"""
    max_poll_records: int = Field(5000, ge=1)
    """maximum number of messages per read, which together hold at most 65,536 rows"""
    fetch_min_bytes: int = Field(1, ge=1)
    """bytes that a broker collects before it answers a fetch"""
    fetch_max_wait_ms: int = Field(200, ge=1)
    """maximum wait per fetch, in milliseconds"""
    fetch_max_bytes: int = Field(50 << 20, ge=1024)
    """maximum size of a fetch, in bytes"""
    max_partition_fetch_bytes: int = Field(4 << 20, ge=1024)
    """maximum size of one partition's share of a fetch, in bytes"""

    schema_registry_url: str | None = None
    """address of the Schema Registry, for format avro and protobuf; several are separated by
    commas"""
    schema_registry_username: str | None = None
    """user name of the Schema Registry"""
    schema_registry_password: SecretStr | None = None
    """password of the Schema Registry"""
    schema_registry_cafile: Path | None = None
    """PEM file of the authorities to trust for the Schema Registry; default: those of certifi"""

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, value: str) -> str:
        if not value.replace(",", " ").strip():
            raise ValueError("is empty, and must be addresses such as broker:9092")
        if "@" in value:
            raise ValueError(
                "must be addresses such as broker:9092; a user name and a password have settings "
                "of their own"
            )
        return value

    @field_validator("schema_registry_url")
    @classmethod
    def _without_password(cls, value: str | None) -> str | None:
        for address in (value or "").split(","):
            if value is not None and not re.fullmatch(r"\s*https?://[^@\s]+\s*", address):
                raise ValueError(
                    "must be an address such as https://registry:8081; a user name and a password "
                    "have settings of their own"
                )
        return value

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        needed = _NEEDED.get(self.sasl_mechanism or "", ("sasl_username", "sasl_password"))
        if self.security_protocol.startswith("SASL") and not (
            self.sasl_mechanism and all(getattr(self, name) for name in needed)
        ):
            named = " and ".join(f"`{name}`" for name in needed)
            yield f"SASL needs `sasl_mechanism`, and for that {named}"
        if (self.schema_registry_username is None) != (self.schema_registry_password is None):
            yield "`schema_registry_username` and `schema_registry_password` must be set together"
        self.ssl_context()  # raises if its files cannot be used

    def servers(self) -> list[str]:
        """Return the brokers to ask first."""
        return [s.strip() for s in self.bootstrap_servers.split(",") if s.strip()]

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of these settings; None without TLS."""
        if self.security_protocol not in ("SSL", "SASL_SSL"):
            return None
        try:
            context = ssl.create_default_context(
                cafile=str(self.ssl_cafile) if self.ssl_cafile else None
            )
            context.check_hostname = self.ssl_check_hostname
            if self.ssl_certfile:
                context.load_cert_chain(
                    self.ssl_certfile, self.ssl_keyfile, reveal(self.ssl_password)
                )
            return context
        except OSError as error:  # SSLError is one
            reason = type(error).__name__
            raise ValueError(
                f"`ssl_cafile`, `ssl_certfile` or `ssl_keyfile` cannot be used ({reason})"
            ) from None


def reveal(secret: SecretStr | None) -> str | None:
    """Return a secret in plain text, for the client that needs it."""
    return None if secret is None else secret.get_secret_value()
