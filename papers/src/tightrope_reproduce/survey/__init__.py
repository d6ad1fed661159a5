"""Privacy analyses of DP-SGD: the survey."""
