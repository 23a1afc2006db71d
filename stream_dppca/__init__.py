"""Streaming, differentially private PCA.

>>> from stream_dppca import DPPCA
>>> pca = DPPCA(features=("cpu", "memory"), epsilon=1.0, delta=1e-6, batch_size=2000)
>>> pca.privacy.adjacency, pca.privacy.unit
('replace-one', 'record')
"""

from .anomaly import SubspaceDistance
from .errors import (
    BatchSizeError,
    DPPCAError,
    LooseBudgetWarning,
    NothingLearnedWarning,
    ParameterError,
    StateError,
)
from .estimator import DPPCA
from .oja import InverseTime, TheoremSchedule
from .planning import Plan, SubjectPlan, plan
from .projector import Projector
from .release import PrivacyStatement, Release, SubjectStatement
from .scaling import PublicScaler

__all__ = [
    "DPPCA",
    "BatchSizeError",
    "DPPCAError",
    "InverseTime",
    "LooseBudgetWarning",
    "NothingLearnedWarning",
    "ParameterError",
    "Plan",
    "PrivacyStatement",
    "Projector",
    "PublicScaler",
    "Release",
    "StateError",
    "SubjectPlan",
    "SubjectStatement",
    "SubspaceDistance",
    "TheoremSchedule",
    "plan",
]

__version__ = "0.1.0"
