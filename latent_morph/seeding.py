"""Reproducible random numbers, without effects on the caller's random state."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seeds torch's generator within the context and restores its state afterwards.

    With `None` the context has no effect.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs
        yield
