"""What to do where ball arithmetic gives up."""

__all__ = ["TOO_SLOW"]

TOO_SLOW = (
    "this law spreads too little mass over too many places for sums of balls, as with few steps, a "
    "small rate and little noise together. The two floating-point methods of `tightrope verify` "
    "still check the claim. To have it proved as well, claim a larger epsilon or delta, or run "
    "more steps with more noise"
)
