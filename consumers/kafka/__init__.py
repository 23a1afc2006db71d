"""Apache Kafka: configuration, group membership, reading, the ledger; and a log in memory."""
