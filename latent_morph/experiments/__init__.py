"""The runs behind `run_models.py`: tasks, presets, records, figures and the command line."""
