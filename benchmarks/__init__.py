"""Benchmarks: `python -m benchmarks NAME`; see `python -m benchmarks --help`.

The candidates of a comparison take turns in one process with the same number of threads, so that
other load affects all of them; compare ratios. Models are first trained for some seconds.
"""
