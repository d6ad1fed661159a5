"""Several processes as one mechanism."""
