"""The runs behind `run_models.py`: data sets, presets, progress and what is written down."""
