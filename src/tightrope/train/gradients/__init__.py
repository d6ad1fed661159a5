"""Per-example gradients of a proved program: their forms, norms, clipped sums and rounding."""
