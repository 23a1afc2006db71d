"""The demonstration: simulated telemetry, a broker of its own, and a live view."""
