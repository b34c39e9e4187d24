"""Files: written whole or not at all, and never executed when read."""
