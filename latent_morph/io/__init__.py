"""Files: atomic writing, records of runs, and model files that execute nothing when read."""
