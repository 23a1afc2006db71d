"""The running service: the loop, its tasks, and what is seen of it from outside."""
