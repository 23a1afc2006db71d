"""TLS, client certificates, PLAIN and SCRAM, with a broker that requires them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion

from demo.broker.base import BrokerUnavailable
from demo.broker.local import LocalBroker
from demo.broker.node import broker_settings, free_port

from ..support.harness import BATCH, READERS, model
from .conftest import refuse

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("broker-secured")]

USER, PASSWORD = "dppca", "correct-horse-battery"
#: Prints a token without a signature, which is what Kafka's own validator for tests asks for.
SCRIPT = """
import base64, json, sys, time
def part(claims): return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
now = time.time()
claims = {"sub": "dppca", "iat": now, "exp": now + float(sys.argv[1])}
print(part({"alg": "none"}) + "." + part(claims) + ".")
"""


@dataclass(frozen=True)
class Secured:
    """A broker with three listeners, and the credentials for them."""

    plain: str
    tls: str
    sasl: str
    authority: Path
    certificate: Path
    stranger: Path  #: an authority that has signed nothing here

    def settings(self, way: str) -> dict[str, str]:
        if way == "certificate":
            return {
                "DPPCA_BOOTSTRAP_SERVERS": self.tls,
                "DPPCA_SECURITY_PROTOCOL": "SSL",
                "DPPCA_SSL_CAFILE": str(self.authority),
                "DPPCA_SSL_CERTFILE": str(self.certificate),
            }
        login = {"DPPCA_SASL_USERNAME": USER, "DPPCA_SASL_PASSWORD": PASSWORD}
        if way == "OAUTHBEARER":
            login = {"DPPCA_SASL_TOKEN_COMMAND": f"{sys.executable} -c '{SCRIPT}' 3600"}
        return {
            "DPPCA_BOOTSTRAP_SERVERS": self.sasl,
            "DPPCA_SECURITY_PROTOCOL": "SASL_SSL",
            "DPPCA_SSL_CAFILE": str(self.authority),
            "DPPCA_SASL_MECHANISM": way,
            **login,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, client, stranger = folder / "ca.pem", folder / "client.pem", folder / "other.pem"
    ca = trustme.CA()
    ca.cert_pem.write_to_path(authority)
    trustme.CA().cert_pem.write_to_path(stranger)
    ca.issue_cert("dppca").private_key_and_cert_chain_pem.write_to_path(client)
    server = folder / "server.pem"
    server.write_bytes(as_kafka_reads_it(ca.issue_cert("127.0.0.1")))

    port, controller, tls, sasl = (free_port() for _ in range(4))
    settings = broker_settings(port, controller)
    doors = f"TLS://127.0.0.1:{tls},LOGIN://127.0.0.1:{sasl}"
    settings |= {
        "listeners": f"{settings['listeners']},{doors}",
        "advertised.listeners": f"{settings['advertised.listeners']},{doors}",
        "listener.security.protocol.map": (
            f"{settings['listener.security.protocol.map']},TLS:SSL,LOGIN:SASL_SSL"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.login.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.login.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{USER}="{PASSWORD}";'
        ),
        "listener.name.login.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    try:
        with LocalBroker(port=port, settings=settings) as broker:
            admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, "SCRAM-SHA-512", PASSWORD)]
            )
            admin.close()
            yield Secured(
                broker.bootstrap_servers,
                f"127.0.0.1:{tls}",
                f"127.0.0.1:{sasl}",
                authority,
                client,
                stranger,
            )
    except BrokerUnavailable as error:
        refuse(str(error))


def as_kafka_reads_it(issued: trustme.LeafCert) -> bytes:
    """The key in PKCS 8, then the certificates."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pkcs8 + b"".join(part.bytes() for part in issued.cert_chain_pems)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", ["certificate", "PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_the_service_behind_locked_doors(
    secured: Secured, way: str, reader: str, fresh_name: Callable[[str], str]
) -> None:
    settings = {"reader": reader, "session_timeout_s": 6}
    with model(secured.plain, fresh_name("secured"), **settings) as m:
        m.produce(2 * BATCH)
        instance = m.start(**secured.settings(way))
        m.finish(instance)
        assert m.check() == 2
        assert PASSWORD not in instance.text


@pytest.mark.parametrize(
    "way, changed, said",
    [
        ("PLAIN", {"DPPCA_SASL_PASSWORD": "wrong-password"}, "uthentication"),
        ("SCRAM-SHA-512", {"DPPCA_SASL_PASSWORD": "wrong-password"}, "uthentication"),
        ("OAUTHBEARER", {"DPPCA_SASL_TOKEN_COMMAND": "echo wrong-password"}, "no broker answers"),
        ("OAUTHBEARER", {"DPPCA_SASL_TOKEN_COMMAND": "false wrong-password"}, "no token"),
        ("PLAIN", {"DPPCA_SSL_CAFILE": "stranger"}, "CERTIFICATE_VERIFY_FAILED"),
        ("certificate", {"DPPCA_SSL_CERTFILE": ""}, "certificate"),
    ],
)
def test_the_wrong_key(
    secured: Secured, way: str, changed: dict[str, str], said: str, fresh_name: Callable[[str], str]
) -> None:
    """`check-config` names the problem in time; `serve` waits; neither reveals a secret."""
    settings = secured.settings(way)
    for name, value in changed.items():
        settings[name] = str(secured.stranger) if value == "stranger" else value
    if settings.get("DPPCA_SSL_CERTFILE") == "":
        del settings["DPPCA_SSL_CERTFILE"]
    with model(secured.plain, fresh_name("refused"), session_timeout_s=6) as m:
        for timeout_s in ("3", "60", "60", "60"):  # a busy machine may need more
            settings["DPPCA_REQUEST_TIMEOUT_S"] = timeout_s
            done = subprocess.run(
                [sys.executable, "-m", "consumers.cli", "check-config"],
                env={**os.environ, **m.environment, **settings},
                capture_output=True,
                text=True,
            )
            text = done.stdout + done.stderr
            # A broker that knows the password is wrong may hang up before we have read that.
            hung_up = "wrong-password" in changed.values() and "socket disconnected" in text
            if said in text or hung_up:
                break
        assert done.returncode == 1 and (said in text or hung_up), text
        assert PASSWORD not in text and "wrong-password" not in text
        instance = m.start(**settings)
        instance.wait_for("waiting_for_brokers")
        assert PASSWORD not in instance.text and "wrong-password" not in instance.text
