"""Streaming, differentially private PCA.

>>> from stream_dppca import DPPCA
>>> pca = DPPCA(features=("cpu", "memory"), epsilon=1.0, delta=1e-6, batch_size=2000)
>>> pca.privacy.adjacency, pca.privacy.unit
('replace-one', 'record')
"""

from .anomaly import SubspaceDistance, SubspaceT2
from .errors import (
    BatchSizeError,
    DPPCAError,
    LooseBudgetWarning,
    NothingLearnedWarning,
    ParameterError,
    StateError,
)
from .estimator import DPPCA
from .paper import InverseTime, PaperDPPCA
from .participation import PerSubject
from .planning import Plan, plan
from .projector import Projector
from .release import Limit, PrivacyStatement, Release, SubjectStatement
from .subjects.planning import SubjectPlan, plan_subjects

__all__ = [
    "DPPCA",
    "BatchSizeError",
    "DPPCAError",
    "InverseTime",
    "Limit",
    "LooseBudgetWarning",
    "NothingLearnedWarning",
    "PaperDPPCA",
    "ParameterError",
    "PerSubject",
    "Plan",
    "PrivacyStatement",
    "Projector",
    "Release",
    "StateError",
    "SubjectPlan",
    "SubjectStatement",
    "SubspaceDistance",
    "SubspaceT2",
    "plan",
    "plan_subjects",
]

__version__ = "0.1.0"
