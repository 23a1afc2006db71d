"""The Kafka service around `stream_dppca`."""
