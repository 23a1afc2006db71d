"""Learning from files: formats, the state file, and the run."""
