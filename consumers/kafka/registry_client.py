"""Fetches schemas from a Schema Registry, with the client that comes with confluent-kafka.

That client supports the ways in which registries are deployed (several addresses, TLS, passwords,
proxies) and is maintained by the makers of the registry. Its errors are translated here, because
their texts name the requested schema, which is part of a record.

A record chooses the id of the schema. So an answer that may concern this id alone must not hold
anything up: if the schema is refused (403), not found or gone, or the answer is malformed, the
schema is unknown, and its messages are nulls. The service waits only if the registry as a whole
fails: no connection, no answer in time, missing authentication (401, 407), too many requests (429),
its own errors (5xx), and a "not found" without a registry's own code, which is how a wrong address
answers any request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError

from ..errors import RegistryAway
from ..protocols import RegisteredSchema

#: Codes of a registry that has no such subject, version or schema.
NOT_FOUND: Final = frozenset({40401, 40402, 40403})
#: The statuses below 500 that concern the client, not the requested schema.
OF_THE_WHOLE: Final = frozenset({401, 407, 408, 429})
#: Longest wait for an answer. The caller asks again and does other work in between, so the client
#: itself repeats nothing.
TIMEOUT_SECONDS: Final = 3.0
#: Real schemas do not refer to more others. References beyond this number are left out, so such a
#: schema cannot be used.
MOST_REFERENCES: Final = 256
#: Characters of a schema and of all that it refers to. Nothing is kept of a schema with more.
MOST_CHARACTERS: Final = 1 << 20
#: Answers that the client keeps; compiled schemas are kept elsewhere.
MOST_KEPT: Final = 5


class RegistryClient:
    """A `SchemaSource` over HTTP.

    Parameters
    ----------
    options
        Address, certificates and password, in the names of the client.
    protobuf
        Ask for Protobuf schemas, as descriptors; otherwise for Avro.
    """

    def __init__(self, options: Mapping[str, Any], *, protobuf: bool) -> None:
        self._format = "serialized" if protobuf else None
        self._client = SchemaRegistryClient(
            {**options, "timeout": TIMEOUT_SECONDS, "max.retries": 0, "cache.capacity": MOST_KEPT}
        )

    def schema(self, number: int) -> RegisteredSchema | None:
        try:
            return _Resolver(self._client, self._format).schema(number)
        except SchemaRegistryError as error:
            status = error.http_status_code
            no_registry = status == 404 and error.error_code not in NOT_FOUND
            if 400 <= status < 500 and status not in OF_THE_WHOLE and not no_registry:
                return None
            raise RegistryAway(f"the schema registry answers with status {status}") from None
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            return None  # the answer is not a schema
        except Exception as error:  # of the HTTP client: its text names the requested address
            raise RegistryAway(
                f"the schema registry does not answer ({type(error).__name__})"
            ) from None


class _Resolver:
    """Asks for one schema and for those that it refers to, each once."""

    def __init__(self, client: SchemaRegistryClient, format: str | None) -> None:
        self._client, self._format, self._characters = client, format, MOST_CHARACTERS
        self._asked: set[tuple[str, int]] = set()
        self._found: list[tuple[str, RegisteredSchema]] = []

    def schema(self, number: int) -> RegisteredSchema:
        self._add("", self._client.get_schema(number, fmt=self._format))
        *references, (_, schema) = self._found
        if self._characters < 0:
            return RegisteredSchema("", "")  # too large: it cannot be used
        return replace(schema, references=tuple(references))

    def _add(self, name: str, found: Any) -> None:
        """Add what a schema refers to, and then the schema itself."""
        text = found.schema_str or ""
        self._characters -= len(text)
        for reference in found.references or []:
            version = reference.subject, reference.version
            if version in self._asked:
                continue
            if len(self._asked) == MOST_REFERENCES or self._characters < 0:
                break
            self._asked.add(version)
            try:
                # A schema that was deleted later is still available to those that refer to it.
                named = self._client.get_version(*version, deleted=True, fmt=self._format)
            except SchemaRegistryError as error:
                if error.error_code in NOT_FOUND:  # permanently, so the schema cannot be used
                    continue
                raise
            self._add(str(reference.name), named.schema)
        kind = (found.schema_type or "AVRO").lower()
        self._found.append((name, RegisteredSchema(kind, text)))
