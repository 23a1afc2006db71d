"""Settings of the service: flags win over environment variables (`DPPCA_*`), and these over a file.

There are five parts, and a command asks only for the parts that it needs:

| part | holds |
|---|---|
| `ModelSettings` | the model and its privacy guarantee |
| `TopicSettings` | the topics of records and releases, and the format of messages |
| `ConnectionSettings` | the connection to the brokers, and the limits of fetches |
| `OperationSettings` | planning, pages, log and time limits of a running process |
| `EngineSettings` | the engine that reads and adds up the records of a batch |

All names are flat: the setting `batch_size` is the flag `--batch-size`, the variable
`DPPCA_BATCH_SIZE` and the line `batch_size = ...` of the file, whatever part it belongs to. The
text below a setting is its entry in `stream-dppca serve --help` and in docs/service-reference.md.

Errors name the setting and the rule, never the value of a text, which may be a password.
"""

from .combined import (
    ClusterSettings,
    FileSettings,
    OnceSettings,
    PlanSettings,
    ScoreSettings,
    Settings,
    names_by_part,
)
from .connection import ConnectionSettings
from .engine import EngineSettings
from .load import load_part, load_settings, suggestion, unmatched_variables
from .model import ModelSettings
from .operation import OperationSettings
from .part import CONFIG_VARIABLE, PREFIX, Part
from .recipe import Recipe
from .rounds import MESSAGE_KEY, RoundRule
from .topics import TopicSettings
from .view import ViewSettings

__all__ = [
    "CONFIG_VARIABLE",
    "MESSAGE_KEY",
    "PREFIX",
    "ClusterSettings",
    "ConnectionSettings",
    "EngineSettings",
    "FileSettings",
    "ModelSettings",
    "OnceSettings",
    "OperationSettings",
    "Part",
    "PlanSettings",
    "Recipe",
    "RoundRule",
    "ScoreSettings",
    "Settings",
    "TopicSettings",
    "ViewSettings",
    "load_part",
    "load_settings",
    "names_by_part",
    "suggestion",
    "unmatched_variables",
]
