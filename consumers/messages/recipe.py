"""The recipe of the codecs of a topic: what the settings say about its messages."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass, replace
from typing import Final

from ..errors import ConfigurationError
from ..formats import ARRAY_FORMATS, PACKED_FORMATS, POINT_FORMATS
from ..protocols import SchemaSource
from ..settings import MESSAGE_KEY, ClusterSettings, Settings
from .codecs import Codec, JsonArrays, JsonObjects, Packed, SubjectCodec
from .gathered import Gathering, GroupedMessages, Grouping
from .long import Fields
from .paths import feature_tree
from .registered import RegisteredCodec

#: The modules whose `make_reader` compiles schemas. They are imported late: libraries are extras.
COMPILERS: Final = {"avro": "consumers.messages.avro", "protobuf": "consumers.messages.protobuf"}


@dataclass(frozen=True, repr=False)  # the registry may have a password
class MessageRecipe(Grouping):
    """Makes codecs where they are needed, in any process."""

    nested: bool = True  #: a dot in a feature's name leads into a nested object
    rows_per_message: int | None = None  #: rows that each message becomes; None if not given
    records: int = 1  #: rows of a subject that count
    places: int | None = None  #: subjects of a round
    registry: tuple[tuple[str, str], ...] = ()  #: options of the client of a Schema Registry

    @classmethod
    def of(cls, settings: ClusterSettings, features: tuple[str, ...] = ()) -> MessageRecipe:
        """The recipe of these settings, for these features if the settings have none."""
        given = "rows_per_message" in settings.model_fields_set
        recipe = cls(
            settings.format,
            features,
            settings.max_message_bytes,
            group_by=settings.group_by,
            fields=Fields(**settings.long_fields, text=settings.text_values),
            nested=settings.nested,
            rows_per_message=settings.rows_per_message if given else None,
            registry=settings.registry_options(),
        )
        if not isinstance(settings, Settings):
            return recipe
        return replace(
            recipe,
            features=settings.features,
            subject=settings.subject,
            records=settings.records if recipe.grouping is None else settings.parts,
            places=settings.places,
        )

    @property
    def grouping(self) -> Grouping | None:
        """The rule by which points become rows; None if messages hold rows."""
        return self if self.format in POINT_FORMATS else None

    def codec(self, registry: SchemaSource | None = None) -> Codec:
        """Make the codec for privacy per record.

        For packed formats the number of rows must be given: with any default, other rows would be
        ignored silently.
        """
        rows, format, width = self.rows_per_message, self.format, len(self.features)
        if self.grouping is not None:
            return GroupedMessages(self.grouping, rows or 1)
        if format in PACKED_FORMATS:
            if rows is None:
                raise ConfigurationError(
                    f"`rows_per_message` must be set with format {format}: the number of rows in "
                    "each message. A message with fewer rows leaves nulls; extra rows are ignored."
                )
            return Packed(width, f"<f{PACKED_FORMATS[format]}", self.max_bytes, rows)
        if rows not in (None, 1):
            raise ConfigurationError(
                f"`rows_per_message` must be 1 with format {format}: a message holds one row. "
                f"Found {rows}."
            )
        if format == "json-array":
            return JsonArrays(width, self.max_bytes)
        return self._named(registry)

    def subject_codec(self, registry: SchemaSource | None = None) -> SubjectCodec | Gathering:
        """Make the codec for privacy per subject, or the rule by which points become rows."""
        if self.subject is None:
            raise ConfigurationError("`subject` must be set with unit=subject")
        if self.grouping is not None:
            self.grouping.groups()  # which reads the features
            return Gathering(self.grouping, self.records, self.places)
        if self.subject == MESSAGE_KEY:
            codec = self.codec(registry)
            # A packed message has one subject, of which no more rows count.
            return SubjectCodec(codec.keeping(self.records) if isinstance(codec, Packed) else codec)
        if self.format in ARRAY_FORMATS:
            raise ConfigurationError(
                f"`subject` must be {MESSAGE_KEY}, the key of the message, with format "
                f"{self.format}: its messages have no fields that could hold an id"
            )
        return SubjectCodec(self._named(registry, self.subject))

    def _named(self, registry: SchemaSource | None, *id: str) -> Codec:
        """Make the codec of a format whose messages have names, one of which may be an id."""
        format, names, width = self.format, (*self.features, *id), len(self.features)
        tree = feature_tree(names, self.nested, bool(id))
        if format == "json":
            return JsonObjects(tree, width, self.max_bytes, bool(id))
        if registry is None:
            raise ConfigurationError(f"`schema_registry_url` must be set with format {format}")
        try:
            module = importlib.import_module(COMPILERS[format])
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"format {format} needs {error.name}: pip install 'stream-dppca[{format}]'"
            ) from None
        compile = functools.partial(module.make_reader, tree=tree, width=len(names))
        return RegisteredCodec(width, self.max_bytes, registry, compile, bool(id))
