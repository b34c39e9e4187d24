"""Measurements of speed: `python -m benchmarks NAME`; see `python -m benchmarks --help`.

Candidates of a comparison take turns in one process with the same number of threads, so that a
busy machine hurts all alike; ratios are what to read. Models are trained first, for some seconds.
"""
