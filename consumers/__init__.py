"""The service and the command `stream-dppca` around `stream_dppca`: topics and files.

| room | content |
|---|---|
| `cli` | the command `stream-dppca` |
| `service` | the running service: the loop, its tasks, the plan of batches and rounds, metrics |
| `kafka` | Apache Kafka: configuration, group membership, reading, the ledger |
| `files` | learning from files: formats, the state file, the run |
| `messages` | decoding of messages: formats, schemas, what a sample of them shows |
| `model` | the model as the service keeps it: states and releases |
| `settings` | flags, environment variables and the file of settings |
| `web` | a page that shows a model live, made of its published releases only |
"""
