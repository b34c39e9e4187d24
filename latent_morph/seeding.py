"""Reproducible randomness that leaves the caller's random state as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Runs its body with torch's generator at `seed`, then restores the caller's stream.

    With `None` nothing is forked: the body draws from the ambient generator, as any module does.
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs as well
        yield
