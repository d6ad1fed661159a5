"""(epsilon, delta) guarantees: composition, group privacy, subsampling, trade-off function."""
