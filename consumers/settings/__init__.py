"""Settings of the service: flags win over environment variables (`DPPCA_*`), and these over a file.

There are five parts (`PARTS`), and a command asks only for the parts that it needs:

| part | holds |
|---|---|
| `model.ModelSettings` | the model and its privacy guarantee |
| `topics.TopicSettings` | the topics of records and releases, and the format of messages |
| `connection.ConnectionSettings` | the connection to the brokers, and the limits of fetches |
| `operation.OperationSettings` | planning, pages, log and time limits of a running process |
| `operation.EngineSettings` | the engine that reads and adds up the records of a batch |

All names are flat: the setting `batch_size` is the flag `--batch-size`, the variable
`DPPCA_BATCH_SIZE` and the line `batch_size = ...` of the file, whatever part it belongs to. The
text below a setting is its entry in `stream-dppca serve --help` and in docs/service-reference.md.

Errors name the setting and the rule, never the value of a text, which may be a password.
"""

from .combined import PARTS as PARTS
from .combined import ClusterSettings as ClusterSettings
from .combined import FileSettings as FileSettings
from .combined import OnceSettings as OnceSettings
from .combined import PlanSettings as PlanSettings
from .combined import ScoreSettings as ScoreSettings
from .combined import Settings as Settings
from .connection import ConnectionSettings as ConnectionSettings
from .load import load_part as load_part
from .load import load_settings as load_settings
from .load import suggestion as suggestion
from .load import unmatched_variables as unmatched_variables
from .model import EstimatorRecipe as EstimatorRecipe
from .model import ModelSettings as ModelSettings
from .part import CONFIG_VARIABLE as CONFIG_VARIABLE
from .part import PREFIX as PREFIX
from .part import Part as Part
from .rounds import MESSAGE_KEY as MESSAGE_KEY
from .rounds import RoundRule as RoundRule
from .topics import TopicSettings as TopicSettings
from .topics import ViewSettings as ViewSettings
