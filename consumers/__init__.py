"""The service and the command `stream-dppca` around `stream_dppca`: topics and files.

| room | content |
|---|---|
| `cli` | the command `stream-dppca` |
| `service` | the running service: the loop, its task, and what the task learns from |
| `files` | learning from files: formats, the state file, and the run |
| `scoring` | `stream-dppca score`: scores of single records, which are **not private** |
| `reading` | what is planned is read, message by message, here or in the tasks of an engine |
| `planning` | which offsets share a batch or a round, decided before any of their records is read |
| `monitoring` | metrics, probes, and a watchdog |
| `web` | a page that shows a model live, made of its published releases only |
| `kafka` | Apache Kafka: configuration, group membership, reading, the ledger |
| `model` | the model as the service keeps it: states and releases |
| `messages` | decoding of messages: formats, schemas, what a sample of them shows |
| `settings` | flags, environment variables and the file of settings |
"""
