"""The only place where randomness enters: sources of noise, and the samplers behind them.

`sources` has the classes that the rest of the package uses, `sampler` the exact noise that is
drawn, `exact` the integer arithmetic that decides where floating point cannot.
"""

from .sources import Noise, SeededNoise, make_noise

__all__ = ["Noise", "SeededNoise", "make_noise"]
