"""Java and the jars of Apache Kafka, which Maven fetches."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import base
from .base import BrokerUnavailable, Progress


def find_java() -> str:
    """Return a `java` command that is new enough; the one of `JAVA_HOME` first."""
    if os.name != "posix":
        raise BrokerUnavailable("a local broker needs a POSIX system")
    home = os.environ.get("JAVA_HOME")
    java = (home and shutil.which("java", path=f"{home}/bin")) or shutil.which("java")
    if not java:
        raise BrokerUnavailable(f"no java command (a JRE of version {base.JAVA_VERSION} or newer)")
    said = base.run([java, "-version"], 30.0).stdout
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < base.JAVA_VERSION:
        first = said.strip().splitlines()[:1]
        raise BrokerUnavailable(f"{java} is not Java {base.JAVA_VERSION} or newer: {first}")
    return java


def jar_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "stream-dppca" / f"kafka-{base.KAFKA_VERSION}"


def ensure_jars(progress: Progress | None = None) -> Path:
    """Return the folder with Kafka's jars; Maven fills it if it is not there.

    The folder appears whole or not at all, and only one of several processes downloads.
    """
    tell: Progress = progress or (lambda _: None)
    folder = jar_folder()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock"), tell):
        if folder.is_dir():
            return folder
        for left in folder.parent.glob(f"{folder.name}.part-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        mvn = shutil.which("mvn")
        if not mvn:
            raise BrokerUnavailable(f"no mvn command to fetch Kafka's jars with, and no {folder}")
        with tempfile.TemporaryDirectory(prefix=folder.name + ".part-", dir=folder.parent) as part:
            jars = Path(part) / "jars"
            _download(mvn, Path(part), jars, tell)
            if not (jars / f"kafka_2.13-{base.KAFKA_VERSION}.jar").is_file():
                raise BrokerUnavailable("Maven succeeded but did not fetch Kafka")
            jars.rename(folder)
    return folder


_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>stream-dppca</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{base.KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>{base.LOG4J_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


def _download(mvn: str, work: Path, jars: Path, tell: Progress) -> None:
    """Let Maven copy Kafka and what it needs at base.run time into `jars`."""
    (work / "pom.xml").write_text(_POM, encoding="utf-8")
    command = [
        *(mvn, "--batch-mode", "--strict-checksums", "--file", str(work / "pom.xml")),
        "dependency:copy-dependencies",
        *("-DincludeScope=runtime", f"-DoutputDirectory={jars}"),
    ]
    tell(f"fetching Apache Kafka {base.KAFKA_VERSION} with Maven (45 MB, once)")
    done = base.run(command, base.DOWNLOAD_SECONDS)
    if done.returncode:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if line.startswith("[ERROR]")] or lines[-5:]
        raise BrokerUnavailable("Maven could not fetch Kafka's jars:\n" + "\n".join(errors[:5]))
    tell(f"Apache Kafka {base.KAFKA_VERSION} is in the cache")


@contextlib.contextmanager
def _locked(path: Path, tell: Progress) -> Iterator[None]:
    """Hold the lock file; the system releases it if this process dies."""
    import fcntl  # not on every system, but on every one that `find_java` accepts

    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is fetching Kafka's jars: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
