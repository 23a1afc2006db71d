"""The recipe of the codecs of a topic: what the settings say about its messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import ConfigurationError
from ..formats import POINT_FORMATS
from ..protocols import SchemaSource
from ..settings import ClusterSettings, Settings
from .codecs import Codec, SubjectCodec, make_codec, make_subject_codec
from .gathered import Gathering, GroupedMessages, Grouping
from .long import Fields


@dataclass(frozen=True)
class MessageRecipe(Grouping):
    """Makes codecs where they are needed, in any process."""

    nested: bool = True
    rows_per_message: int | None = None
    records: int = 1  #: rows of a subject that count
    places: int | None = None  #: subjects of a round

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
        )
        if not isinstance(settings, Settings):
            return recipe
        records = settings.parts if recipe.format in POINT_FORMATS else settings.records
        return replace(
            recipe,
            features=settings.features,
            subject=settings.subject,
            records=records,
            places=settings.places,
        )

    @property
    def grouping(self) -> Grouping | None:
        """The rule by which points become rows; None if messages hold rows."""
        return self if self.format in POINT_FORMATS else None

    def codec(self, registry: SchemaSource | None) -> Codec:
        """Make the codec for privacy per record."""
        if self.grouping is not None:
            return GroupedMessages(self.grouping, self.rows_per_message or 1)
        return make_codec(
            self.format, self.features, self.max_bytes, self.nested, self.rows_per_message, registry
        )

    def subject_codec(self, registry: SchemaSource | None) -> SubjectCodec | Gathering:
        """Make the codec for privacy per subject, or the rule by which points become rows."""
        if self.subject is None:
            raise ConfigurationError("`subject` must be set with unit=subject")
        if self.grouping is not None:
            self.grouping.groups()  # which reads the features
            return Gathering(self.grouping, self.records, self.places)
        return make_subject_codec(
            self.format,
            self.features,
            self.max_bytes,
            self.nested,
            self.rows_per_message,
            registry,
            subject=self.subject,
            records=self.records,
        )
