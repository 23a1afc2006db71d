"""Apache Kafka: configuration, group membership, reading, the ledger."""
