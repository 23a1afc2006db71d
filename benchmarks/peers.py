"""diffprivlib and OpenDP, in an environment of their own: made once, in the user's cache."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import venv
from pathlib import Path

import numpy as np

from .real_data import Array

__all__ = ["LIBRARIES", "PACKAGES", "NoAnswer", "fit", "install"]

PACKAGES = (
    "diffprivlib==0.6.6",
    "opendp[scikit-learn]==0.16.0",
    "scikit-learn<1.6",  # diffprivlib cannot be imported with newer ones
)
LIBRARIES = ("diffprivlib", "OpenDP")
CODE = """
import sys, json, warnings
import numpy as np
warnings.simplefilter("ignore")
which, path, clip, epsilon = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
X = np.load(path)
if which == "diffprivlib":
    from diffprivlib.models import PCA
    pca = PCA(n_components=1, epsilon=epsilon, centered=True, data_norm=clip)
else:
    import opendp.prelude as dp
    dp.enable_features("contrib", "floating-point", "honest-but-curious", "idealized-numerics")
    pca = dp.sklearn.decomposition.PCA(
        epsilon=epsilon, row_norm=clip, n_samples=len(X), n_features=X.shape[1], n_components=1)
pca.fit(X)
print(json.dumps(np.asarray(pca.components_)[0].tolist()))
"""


class NoAnswer(Exception):
    """The library gave no component; the text says why."""


def install() -> Path:
    """Make the environment if it is not there, and return its interpreter."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stream-dppca-peers"
    python, done = cache / "bin" / "python", cache / "installed.txt"
    wanted = "\n".join(PACKAGES)
    if not done.exists() or done.read_text() != wanted:
        venv.create(cache, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "-q", *PACKAGES]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        done.write_text(wanted)
    return python


def fit(python: Path, which: str, X: Array, *, clip: float, epsilon: float, limit: int) -> Array:
    """The first component, d x 1, or `NoAnswer` after `limit` seconds of processor time."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        np.save(path, X)
        command = [str(python), "-c", CODE, which, str(path), repr(clip), repr(epsilon)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=20 * limit,  # of a busy machine
                preexec_fn=limited,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"did not return in {20 * limit} s") from None
    if done.returncode < 0:
        raise NoAnswer(f"did not return in {limit} s")
    if done.returncode:
        raise NoAnswer(f"failed: {done.stderr.strip().splitlines()[-1][:100]}")
    w = np.array(json.loads(done.stdout.splitlines()[-1]))
    return np.asarray(w[:, None] / np.linalg.norm(w))
