"""Fetches schemas from a Schema Registry, with the client that comes with confluent-kafka.

That client knows the ways in which registries are deployed (several addresses, TLS, passwords,
proxies) and is kept by the makers of the registry. What it raises is turned into our errors here:
its texts name the schema that was asked for, which is part of a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from ..errors import ClusterError, Unavailable
from ..protocols import RegisteredSchema

__all__ = ["RegistryClient"]

#: Codes of a registry that has no such subject, version or schema. Any other answer with status
#: 404 does not say that: it may come from a proxy, or the address may be wrong.
NOT_FOUND: Final = frozenset({40401, 40402, 40403})
#: Longest wait for an answer. The task that asks is dropped and asks again, so few repetitions.
TIMEOUT_SECONDS: Final = 10.0
RETRIES: Final = 1
#: Schemas that refer to each other more deeply than this cannot be real.
MOST_DEPTH: Final = 32


class RegistryClient:
    """A `SchemaSource` over HTTP.

    Parameters
    ----------
    options
        Address, certificates and password, in the words of the client.
    protobuf
        Ask for Protobuf schemas, as descriptors; otherwise for Avro.
    """

    def __init__(self, options: Mapping[str, Any], *, protobuf: bool) -> None:
        self._format = "serialized" if protobuf else None
        self._client = SchemaRegistryClient(
            {
                **options,
                "timeout": TIMEOUT_SECONDS,
                "max.retries": RETRIES,
                "retries.wait.ms": 100,
            }
        )

    def schema(self, number: int) -> RegisteredSchema | None:
        try:
            return self._resolved(self._client.get_schema(number, fmt=self._format))
        except SchemaRegistryError as error:
            if error.error_code in NOT_FOUND:
                return None
            raise ClusterError(
                f"the schema registry answers with status {error.http_status_code}"
            ) from None
        except Exception as error:  # of the HTTP client: its text names the address asked for
            raise Unavailable(
                f"the schema registry does not answer ({type(error).__name__})"
            ) from None

    def _resolved(self, found: Any, depth: int = 0) -> RegisteredSchema:
        """A schema with those that it refers to."""
        references = []
        for reference in (found.references or []) if depth < MOST_DEPTH else []:
            try:  # one that was deleted later is still there for those that refer to it
                named = self._client.get_version(
                    reference.subject, reference.version, deleted=True, fmt=self._format
                )
            except SchemaRegistryError as error:
                if error.error_code in NOT_FOUND:  # for good, so the schema cannot be used
                    continue
                raise
            references.append((str(reference.name), self._resolved(named.schema, depth + 1)))
        kind = (found.schema_type or "AVRO").lower()
        return RegisteredSchema(kind, found.schema_str or "", tuple(references))
