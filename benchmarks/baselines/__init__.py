"""The paper's other algorithms, for comparison and for direct use.

| algorithm                         | function             | in the paper                        |
|-----------------------------------|----------------------|-------------------------------------|
| Oja, not private                  | `oja`                | Algorithm 1                         |
| Private Oja with shuffling        | `private_oja`        | Algorithm 2, appendix "The analysis |
|                                   |                      | of Private Oja's Algorithm"         |
| amplification by shuffling        | `shuffling`          | Theorem "Privacy amplification"     |
| clipped minibatch Oja             | `clipped_oja`        | Eq. (6)                             |
| Gaussian mechanism, Analyze-Gauss | `analyze_gauss`      | section 2.4                         |
| noisy power method                | `noisy_power_method` | section 2.4                         |
| search for the step size          | `step_search`        | remark after Theorem "lower bound,  |
|                                   |                      | heavy tails"                        |

All take records as rows and return a `Fit`: the components and their guarantee. Adjacency is
"replace one record in place", the unit is a record, each record is in one slot; records that cannot
be used are nulls in their slots. Clips must be public numbers: taking them from the data would not
be private. With a `seed` the noise can be drawn again, and the result says `private=False`.
"""

from . import shuffling
from ._common import Fit
from .analyze_gauss import analyze_gauss
from .clipped_oja import clipped_oja
from .oja import oja
from .power_method import noisy_power_method
from .private_oja import clip_threshold, private_oja
from .step_search import Candidate, Runner, Search, candidates, step_search

__all__ = [
    "Candidate",
    "Fit",
    "Runner",
    "Search",
    "analyze_gauss",
    "candidates",
    "clip_threshold",
    "clipped_oja",
    "noisy_power_method",
    "oja",
    "private_oja",
    "shuffling",
    "step_search",
]
