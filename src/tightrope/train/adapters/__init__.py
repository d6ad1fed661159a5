"""Private training inside other people's loops. Each module imports its own framework only."""
