"""Experiments of `run_models.py`: tasks, presets, records, figures and the command line."""
