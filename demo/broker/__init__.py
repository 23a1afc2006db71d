"""A real Kafka broker for development and tests, of whatever kind this machine can have.

`provide_broker` tries, in this order:

1. the address in `KAFKA_BOOTSTRAP_SERVERS`, if set (then nothing else is tried);
2. Docker, if an engine answers and an image is there or can be pulled;
3. Apache Kafka on the local JVM, its jars from Maven (once, then cached).

A broker that is started here is one KRaft node. It listens on loopback only, without
authentication, and ends with the process that started it, however that process ends. Data that must
last or stay secret does not belong there.

    python -m demo.broker         # start one, print its address, stop it on Ctrl-C
    python -m demo.broker jars    # fill the cache of jars, print where it is

The service itself uses nothing of this.
"""
