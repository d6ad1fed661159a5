"""Ways to run a proved program, each with the same interface; and two that need no proof."""

from __future__ import annotations
