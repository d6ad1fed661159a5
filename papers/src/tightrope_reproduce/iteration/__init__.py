"""Privacy Amplification by Iteration (2018)."""
