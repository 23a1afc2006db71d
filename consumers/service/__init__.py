"""The running service: the loop, its task, and what the task learns from."""
