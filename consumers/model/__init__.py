"""The model as the service keeps it: states, releases, and merging releases."""
