"""Trade-off functions (f-DP): closed forms, discrete ones, and the operations on them."""
