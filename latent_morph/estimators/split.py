"""Holding out validation cases."""

import numpy as np
from sklearn.model_selection import GroupShuffleSplit
from sklearn.utils.validation import check_consistent_length

from latent_morph.series import Data


def split_cases(
    n_cases: int, fraction: float, seed: int, strata: np.ndarray | None, groups: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Splits cases into those to train on and those to validate on.

    Whole groups are held out where there are groups; classes keep their proportions where they
    are large enough. Fewer than ten cases, or a fraction of 0, leave nothing to validate on.
    """
    everything = np.arange(n_cases)
    n_val = min(round(fraction * n_cases), n_cases - 1)
    if groups is not None:
        check_consistent_length(everything, groups)
        if fraction > 0 and len(np.unique(groups)) > 1:
            split = GroupShuffleSplit(n_splits=1, test_size=fraction, random_state=seed)
            train, val = next(split.split(everything, groups=groups))
            return train, val
        return everything, everything[:0]
    if n_val == 0 or n_cases < 10:
        return everything, everything[:0]
    order = np.random.RandomState(seed).permutation(n_cases)
    if strata is not None:
        # Every k-th of each class keeps proportions. The first is never chosen: no class is lost.
        order = order[np.argsort(strata[order], kind="stable")]
        spare = np.delete(order, np.unique(strata[order], return_index=True)[1])
        n_val = min(n_val, len(spare))
        val = spare[np.linspace(0, len(spare) - 1, n_val).round().astype(int)]
        return np.setdiff1d(everything, val), np.sort(val)
    return np.sort(order[n_val:]), np.sort(order[:n_val])


def split_trajectories(n_cases: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories to train on and to validate on: at least one, where there are three."""
    everything = np.arange(n_cases)
    if fraction == 0 or n_cases < 3:
        return everything, everything[:0]
    n_val = min(max(1, round(fraction * n_cases)), n_cases - 1)
    order = np.random.RandomState(seed).permutation(n_cases)
    return np.sort(order[n_val:]), np.sort(order[:n_val])
