"""Where a run is stored: its folder, its journal, its snapshots."""
