"""Methods on a convex loss that release nothing but their last iterate."""
