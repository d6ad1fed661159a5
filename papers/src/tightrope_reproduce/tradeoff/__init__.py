"""Trade-off functions as objects: closed, discrete and enclosed, with products and hulls."""
