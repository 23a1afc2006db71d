"""The only place where randomness enters: sources of noise, and the samplers behind them.

`sources` has the classes that the rest of the package uses, `sampler` the exact noise that is drawn
by default, `exact` the integer arithmetic that decides where floating point cannot.
"""

from .sources import Noise, OpenDPNoise, Sampler, SecureNoise, SeededNoise, make_noise

__all__ = ["Noise", "OpenDPNoise", "Sampler", "SecureNoise", "SeededNoise", "make_noise"]
