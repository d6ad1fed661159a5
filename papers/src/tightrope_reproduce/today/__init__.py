"""What the same epsilon buys today, beyond the papers."""
