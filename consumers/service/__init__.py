"""The running service: the loop, its tasks, the plan of batches and rounds, and its metrics."""
