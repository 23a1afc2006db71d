"""Builds the configuration of all Kafka clients from the settings."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ..settings import ClusterSettings, ConnectionSettings, ViewSettings
from ..settings.connection import reveal
from .config import READ_ROWS, KafkaConfig, TaskConnection
from .tokens import TokenProvider, token_provider

#: Most that a task of an engine fetches at once.
TASK_FETCH_BYTES: Final = 4 << 20

#: Login mechanisms whose proof is a token.
_WITH_TOKENS: Final = ("OAUTHBEARER", "AWS_MSK_IAM")
_FETCH: Final = (
    "max_poll_records",
    "fetch_min_bytes",
    "fetch_max_wait_ms",
    "fetch_max_bytes",
    "max_partition_fetch_bytes",
)


def kafka_config(settings: ClusterSettings | ViewSettings, client_id: str = "") -> KafkaConfig:
    """Return the configuration of all clients of a model.

    Parameters
    ----------
    settings
        The connection, and the topics and the group of the model.
    client_id
        The name that brokers see; by default it follows from the name of the model.
    """
    client_id = client_id or f"stream-dppca-{settings.model}"
    fetch = {name: getattr(settings, name) for name in _FETCH}
    tokens = None
    if settings.security_protocol.startswith("SASL") and settings.sasl_mechanism in _WITH_TOKENS:
        tokens = token_provider(settings)
    more: dict[str, Any] = {}
    if not isinstance(settings, ViewSettings):  # which reads releases, not records
        messages = max(1, READ_ROWS // settings.rows_per_message)
        fetch["max_poll_records"] = min(settings.max_poll_records, messages)
        more["max_message_bytes"] = settings.max_message_bytes
        more["again"] = partial(kafka_config, _needed(settings), client_id)
    return KafkaConfig(
        connection=_kafka_python(settings, client_id, tokens),
        group=settings.group,
        input_topic=settings.input_topic,
        state_topic=settings.state_topic,
        output_topic=settings.output_topic,
        session_timeout_s=settings.session_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        transaction_timeout_s=settings.transaction_timeout_s,
        fetch=fetch,
        librdkafka=_librdkafka(settings, client_id, tokens)
        if settings.reader == "confluent"
        else None,
        **more,
    )


def _kafka_python(
    settings: ConnectionSettings, client_id: str, tokens: TokenProvider | None
) -> dict[str, Any]:
    """Return the connection in the names of kafka-python."""
    found: dict[str, Any] = {
        "bootstrap_servers": settings.servers(),
        "security_protocol": settings.security_protocol,
        "client_id": client_id,
    }
    if (context := settings.ssl_context()) is not None:
        found["ssl_context"] = context
    if tokens is not None:
        found |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens}
    elif settings.security_protocol.startswith("SASL"):
        found |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": reveal(settings.sasl_password),
        }
    return found


def task_connection(settings: ClusterSettings) -> TaskConnection:
    """Return the connection for tasks of an engine."""
    return TaskConnection(uuid.uuid4().hex, partial(_task_config, _needed(settings)))


def _needed(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings that other processes need, and no other secret of the service."""
    own = {name: getattr(settings, name) for name in ClusterSettings.model_fields}
    return ClusterSettings.model_construct(**own)


def _task_config(settings: ClusterSettings) -> KafkaConfig:
    """Return the configuration in a task, which reads up to given offsets and no further."""
    found = kafka_config(settings)
    fetch = {
        **found.fetch,
        # Messages beyond the ranges of a task are fetched for nothing.
        "fetch_max_bytes": min(settings.fetch_max_bytes, TASK_FETCH_BYTES),
        # A fetch that waits for new messages at the end of a log delays the next task.
        "fetch_max_wait_ms": 10,
    }
    return replace(found, fetch=fetch)


def _librdkafka(
    settings: ConnectionSettings, client_id: str, tokens: TokenProvider | None
) -> dict[str, Any]:
    """Return the connection in the names of librdkafka."""
    found = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        "client.id": client_id,
        "ssl.ca.location": settings.ssl_cafile,
        "ssl.certificate.location": settings.ssl_certfile,
        "ssl.key.location": settings.ssl_keyfile or settings.ssl_certfile,
        "ssl.key.password": reveal(settings.ssl_password),
        "ssl.endpoint.identification.algorithm": "https" if settings.ssl_check_hostname else "none",
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": reveal(settings.sasl_password),
    }
    if tokens is not None:
        found |= {"sasl.mechanism": "OAUTHBEARER"}
    texts: dict[str, Any] = {k: str(value) for k, value in found.items() if value is not None}
    return texts if tokens is None else {**texts, "oauth_cb": tokens.for_librdkafka}
