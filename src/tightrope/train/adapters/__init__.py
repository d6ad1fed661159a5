"""Private runs under the trainers of other libraries. Each module imports its own only."""
