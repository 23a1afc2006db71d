"""The running service: the loop, its tasks, its metrics and its pages."""
