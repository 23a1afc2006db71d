"""The model as the service keeps it: messages in, states, releases, and merging releases."""
