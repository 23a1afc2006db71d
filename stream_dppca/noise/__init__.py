"""The only place where randomness enters: sources of noise, and the samplers behind them.

`sources` has what the rest of the package uses, `sampler` the exact noise that is drawn by default,
`exact` the integer arithmetic with which it decides what floating point cannot.
"""

from .sources import Noise, OpenDPNoise, Sampler, SecureNoise, SeededNoise, make_noise

__all__ = ["Noise", "OpenDPNoise", "Sampler", "SecureNoise", "SeededNoise", "make_noise"]
