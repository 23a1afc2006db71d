"""diffprivlib and OpenDP, in an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .streams import Spiked, sine

__all__ = ["peers"]

PEER_PACKAGES = (
    "diffprivlib==0.6.6",
    "opendp[scikit-learn]==0.16.0",
    "scikit-learn<1.6",  # diffprivlib cannot be imported with newer ones
)
PEER_CELLS = ((5, 20_000), (10, 20_000), (10, 100_000), (50, 20_000))
PEER_CODE = """
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
    dp.enable_features("contrib", "floating-point", "honest-but-curious")
    pca = dp.sklearn.decomposition.PCA(
        epsilon=epsilon, row_norm=clip, n_samples=len(X), n_features=X.shape[1], n_components=1)
pca.fit(X)
print(json.dumps(np.asarray(pca.components_)[0].tolist()))
"""


def peers(limit: float, seeds: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Run with pure epsilon 1, the best of two free norm bounds, and a time limit for each fit."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stream-dppca-peers"
    python = cache / "bin" / "python"
    rows: list[dict[str, Any]] = []
    try:
        installed, wanted = cache / "installed.txt", "\n".join(PEER_PACKAGES)
        if not installed.exists() or installed.read_text() != wanted:
            venv.create(cache, with_pip=True, clear=True)
            install = [str(python), "-m", "pip", "install", "-q", *PEER_PACKAGES]
            subprocess.run(install, check=True, capture_output=True, timeout=600)
            installed.write_text(wanted)
    except (subprocess.SubprocessError, OSError) as error:
        detail = getattr(error, "stderr", b"") or b""
        return [{"peer": "all", "result": f"cannot be installed: {error} {detail[-200:]!r}"}]
    with tempfile.TemporaryDirectory() as folder:
        for which in ("diffprivlib", "OpenDP"):
            for d, n in PEER_CELLS:
                best: dict[float, list[float]] = {}
                failures: list[str] = []
                for seed in range(seeds):
                    stream = Spiked(d).stream(seed)
                    X = stream.draw(n)
                    np.save(Path(folder) / "X.npy", X)
                    for q in (0.7, 0.97):
                        clip = float(np.quantile(np.linalg.norm(X, axis=1), q))
                        command = [str(python), "-c", PEER_CODE, which]
                        command += [str(Path(folder) / "X.npy"), str(clip), "1.0"]
                        try:
                            done = subprocess.run(
                                command, capture_output=True, timeout=limit, text=True, check=True
                            )
                            w = np.array(json.loads(done.stdout.splitlines()[-1]))
                            found = sine(w[:, None] / np.linalg.norm(w), stream.components)
                            best.setdefault(q, []).append(found)
                        except subprocess.TimeoutExpired:
                            failures.append(f"not back after {limit:g} s")
                        except subprocess.CalledProcessError as error:
                            failures.append(error.stderr.strip().splitlines()[-1][:120])
                    if len(failures) >= 2 and not best:
                        break  # the first seed failed with both bounds: so will the others
                tick()
                rows.append(
                    {
                        "peer": which,
                        "d": d,
                        "n": n,
                        "median": min((float(np.median(e)) for e in best.values()), default=None),
                        "returned": sum(map(len, best.values())),
                        "failed": len(failures),
                        "why": sorted(set(failures)),
                    }
                )
    return rows
