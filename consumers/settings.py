"""The settings of the service: flags over environment (`DPPCA_*`) over a TOML file.

Each field's description is its entry in `stream-dppca serve --help` and in docs/service.md. Errors
name the setting and the rule, never the value: it may be a password.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import ssl
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from .errors import ConfigurationError
from .model.codecs import Format

__all__ = ["PREFIX", "Settings", "load_settings", "unmatched_variables"]

PREFIX = "DPPCA_"
#: Variables that are not settings: the name of the file with the settings.
OTHER_VARIABLES = frozenset({PREFIX + "CONFIG"})
TOPIC = r"^[A-Za-z0-9._-]{1,249}$"
Topic = Annotated[str, Field(pattern=TOPIC)]


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    # What to learn
    features: Annotated[tuple[str, ...], NoDecode] = Field(
        description="the features, with commas or as a JSON list; a.b leads into a nested object",
    )
    epsilon: float = Field(gt=0, description="the guarantee, for each record and the whole stream")
    delta: float = Field(gt=0, lt=1, description="the guarantee's small probability, e.g. 1e-6")
    batch_size: int = Field(ge=2, description="slots a batch; one release each")
    n_components: int = Field(1, ge=1, description="how many components")
    method: Literal["adaptive", "paper"] = Field("adaptive", description="how to learn")
    center: Literal["none", "pairs"] = Field(
        "none", description='"pairs" if the mean is not known to be zero'
    )
    scales: Annotated[tuple[float, ...], NoDecode] = Field(
        (), description="public scale of each feature, in their order: records are divided by them"
    )
    max_norm: float = Field(1e18, gt=0, description="public cap; a longer record is a null")
    paper_k: float = Field(4.0, gt=0, description="K of method=paper")
    paper_a: float = Field(1.0, ge=0, description="a of method=paper")
    paper_zeta: float = Field(0.01, gt=0, description="zeta of method=paper")
    paper_c1: float = Field(4.0, gt=0, description="C1 of method=paper")
    seed: int | None = Field(None, ge=0, description="for simulations: NOT PRIVATE, and says so")

    # Where from, where to
    bootstrap_servers: str = Field("localhost:9092", description="host:port, a list with commas")
    input_topic: Topic = Field(description="the topic to learn from")
    model: Topic = Field("", description="the model's name; default: the input topic's")
    group: Topic = Field("", description="consumer group; default: stream-dppca.<model>")
    output_topic: Topic = Field("", description="releases; default: <model>.components")
    state_topic: Topic = Field("", description="trusted; default: <model>.dppca-state")
    shards: int = Field(1, ge=1, le=1000, description="tasks that share the input partitions")
    create_topics: bool = Field(True, description="make the output and state topics")
    replication_factor: int = Field(-1, description="of the topics made; -1: as the brokers do")
    start: Literal["earliest", "latest"] = Field(
        "earliest", description="where a new model begins; one with a state goes on from it"
    )

    # Messages
    format: Format = Field("json", description="json, json-array, float32 or float64 (packed rows)")
    rows_per_message: int = Field(1, ge=1, description="of packed formats; must be set for them")
    nested: bool = Field(True, description="whether a dot in a feature leads into an object")
    max_message_bytes: int = Field(1 << 20, ge=1, description="a longer message is a null")

    # Kafka
    session_timeout_s: float = Field(
        10.0, ge=1, le=600, description="silence after which a standby takes over"
    )
    request_timeout_s: float = Field(30.0, ge=1, le=600, description="for one request")
    transaction_timeout_s: float = Field(60.0, ge=1, le=900, description="for one transaction")
    max_poll_records: int = Field(5000, ge=1, description="messages taken at once")
    fetch_min_bytes: int = Field(1, ge=1, description="what a fetch waits for")
    fetch_max_wait_ms: int = Field(200, ge=1, description="and how long")
    fetch_max_bytes: int = Field(50 << 20, ge=1024, description="most bytes a fetch")
    max_partition_fetch_bytes: int = Field(4 << 20, ge=1024, description="and a partition")
    reader: Literal["kafka-python", "confluent"] = Field(
        "kafka-python", description="what reads the input; confluent is faster, and an extra"
    )
    plan_interval_ms: int = Field(50, ge=1, description="how often to look for new messages")
    partition_refresh_s: float = Field(
        10.0, gt=0, description="how often to look for partitions, and at the lag"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="TLS and SASL"
    )
    ssl_cafile: Path | None = Field(None, description="whom to trust")
    ssl_certfile: Path | None = Field(None, description="our certificate")
    ssl_keyfile: Path | None = Field(None, description="its key")
    ssl_password: SecretStr | None = Field(None, description="the key's password")
    ssl_check_hostname: bool = Field(True, description="whether the name must match")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="how to log in"
    )
    sasl_username: str | None = Field(None, description="user")
    sasl_password: SecretStr | None = Field(None, description="password")

    # Operation
    http_host: str = Field("127.0.0.1", description="where /livez /readyz /metrics /component are")
    http_port: int = Field(8321, ge=0, le=65535, description="its port; 0: any free one")
    stall_timeout_s: float = Field(
        120.0, gt=0, description="a loop that stands still this long ends the process"
    )

    @field_validator("features", "scales", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("["):  # a JSON list: for names with commas in them
            return json.loads(value)
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("features")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value) or "" in value:
            raise ValueError("must name at least one feature, and none twice")
        return value

    @model_validator(mode="before")
    @classmethod
    def _names(cls, data: Any) -> Any:
        """The names that follow from others."""
        if not isinstance(data, dict):
            return data
        topic = _sound(data.get("input_topic"))
        model = _sound(data.get("model") or topic)
        names = {
            "model": topic,
            "group": f"stream-dppca.{model}",
            "output_topic": f"{model}.components",
            "state_topic": f"{model}.dppca-state",
        }
        return {**data, **{name: data.get(name) or names[name] for name in names}}

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if len({self.input_topic, self.output_topic, self.state_topic}) != 3:
            raise ValueError("input_topic, output_topic and state_topic must differ")
        if self.security_protocol.startswith("SASL") and not (
            self.sasl_mechanism and self.sasl_username and self.sasl_password
        ):
            raise ValueError("SASL needs sasl_mechanism, sasl_username and sasl_password")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = os.environ.get(PREFIX + "CONFIG")
        file = [TomlConfigSettingsSource(settings_cls, Path(path))] if path else []
        return (init_settings, env_settings, *file)

    # What others need of it

    def estimator(self) -> dict[str, Any]:
        """The parameters of `DPPCA`."""
        return {
            "features": self.features,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "batch_size": self.batch_size,
            "n_components": self.n_components,
            "method": self.method,
            "center": self.center,
            "seed": self.seed,
            "scales": self.scales or None,
            "max_norm": self.max_norm,
            "K": self.paper_k,
            "a": self.paper_a,
            "zeta": self.paper_zeta,
            "C1": self.paper_c1,
        }

    def connection(self) -> dict[str, Any]:
        """As kafka-python wants it."""
        servers = [s.strip() for s in self.bootstrap_servers.split(",") if s.strip()]
        found: dict[str, Any] = {
            "bootstrap_servers": servers,
            "security_protocol": self.security_protocol,
            "client_id": f"stream-dppca-{self.model}",
        }
        if self.security_protocol in ("SSL", "SASL_SSL"):
            found["ssl_context"] = self._ssl_context()
        if self.security_protocol.startswith("SASL"):
            found |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": _reveal(self.sasl_password),
            }
        return found

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(
                cafile=str(self.ssl_cafile) if self.ssl_cafile else None
            )
            context.check_hostname = self.ssl_check_hostname
            if self.ssl_certfile:
                password = _reveal(self.ssl_password)
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password)
            return context
        except (OSError, ssl.SSLError) as error:
            reason = type(error).__name__
            raise ConfigurationError(
                f"ssl_cafile, ssl_certfile or ssl_keyfile cannot be used ({reason})"
            ) from None

    def librdkafka(self) -> dict[str, Any] | None:
        """The connection as librdkafka wants it, if that is to read the input."""
        if self.reader != "confluent":
            return None
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigurationError(
                "`reader`: confluent needs the extra: pip install '.[confluent]'"
            )
        found = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            "client.id": f"stream-dppca-{self.model}",
            "ssl.ca.location": self.ssl_cafile,
            "ssl.certificate.location": self.ssl_certfile,
            "ssl.key.location": self.ssl_keyfile or self.ssl_certfile,
            "ssl.key.password": _reveal(self.ssl_password),
            "ssl.endpoint.identification.algorithm": "https" if self.ssl_check_hostname else "none",
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": _reveal(self.sasl_password),
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def fetch(self) -> dict[str, Any]:
        names = ("max_poll_records", "fetch_min_bytes", "fetch_max_wait_ms", "fetch_max_bytes",
                 "max_partition_fetch_bytes")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def shown(self) -> dict[str, Any]:
        """As plain values, secrets masked."""
        return self.model_dump(mode="json")


def _sound(name: Any) -> str:
    """A name, or one to go on with: a wrong one is said once, not of all that follow from it."""
    return name if isinstance(name, str) and re.fullmatch(TOPIC, name) else "-"


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def load_settings(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """The settings, or a `ConfigurationError` that says which one is wrong and how."""
    before = os.environ.get(PREFIX + "CONFIG")
    path = before if file is None else str(file)
    if path and not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path}")
    if file is not None:
        os.environ[PREFIX + "CONFIG"] = str(file)
    try:
        settings = Settings(**dict(flags or {}))
        settings.connection()
        return settings
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_input=False, include_url=False, include_context=False):
            name = ".".join(str(part) for part in problem["loc"]) or "settings"
            text = problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "missing":
                flag = "--" + name.replace("_", "-")
                text = f"must be set: {PREFIX}{name.upper()}, {flag}, or in the file"
            elif problem["type"] == "extra_forbidden":
                text = "is no setting"
            lines.append(f"`{name}`: {text}")
        raise ConfigurationError("\n".join(lines)) from None
    except SettingsError as error:
        raise ConfigurationError(str(error)) from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        where = f" at {place[1]}" if place else ""
        raise ConfigurationError(f"{path} cannot be read: it is no TOML{where}") from None
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{path} cannot be read ({type(error).__name__})") from None
    finally:
        if file is not None:
            if before is None:
                del os.environ[PREFIX + "CONFIG"]
            else:
                os.environ[PREFIX + "CONFIG"] = before


def unmatched_variables() -> list[str]:
    """Variables that look like settings and are none: mistyped, most likely."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | OTHER_VARIABLES
    return sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
