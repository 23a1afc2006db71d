"""The model as the service keeps it: states and releases."""
