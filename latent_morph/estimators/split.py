"""Splits of cases into training and validation."""

import numpy as np
from sklearn.model_selection import GroupShuffleSplit
from sklearn.utils.validation import check_consistent_length

from latent_morph.series import Data

# With fewer validation cases than this, an epoch would be chosen by luck.
LEAST_VALIDATION = 100


def choose_fraction(
    fraction: float | str, n_cases: int, groups: Data, patience: int | None
) -> float:
    """Returns the fraction to hold out: for "auto" a tenth, or nothing if that is few cases.

    A group is often a large part of the data, so that with groups nothing is held out either. With
    `patience`, which needs a validation score, a tenth always is.
    """
    if not isinstance(fraction, str):
        return fraction
    is_enough = groups is None and 0.1 * n_cases >= LEAST_VALIDATION
    return 0.1 if is_enough or patience is not None else 0.0


def split_cases(
    n_cases: int, fraction: float, seed: int, strata: np.ndarray | None, groups: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Splits cases into those to train on and those to validate on.

    Groups are held out as a whole. Classes keep their proportions if they are large enough. Of
    fewer than ten cases, or with a fraction of 0, none is held out.
    """
    all_cases = np.arange(n_cases)
    n_val = min(round(fraction * n_cases), n_cases - 1)
    if groups is not None:
        check_consistent_length(all_cases, groups)
    if n_val == 0 or n_cases < 10:
        return all_cases, all_cases[:0]
    if groups is not None:
        if len(np.unique(groups)) == 1:
            return all_cases, all_cases[:0]
        split = GroupShuffleSplit(n_splits=1, test_size=fraction, random_state=seed)
        train, val = next(split.split(all_cases, groups=groups))
        return train, val
    order = np.random.RandomState(seed).permutation(n_cases)
    if strata is not None:
        # Taking every k-th case in the order of classes keeps proportions. The first case of each
        # class is never held out, so that training has every class.
        order = order[np.argsort(strata[order], kind="stable")]
        candidates = np.delete(order, np.unique(strata[order], return_index=True)[1])
        n_val = min(n_val, len(candidates))
        val = candidates[np.linspace(0, len(candidates) - 1, n_val).round().astype(int)]
        return np.setdiff1d(all_cases, val), np.sort(val)
    return np.sort(order[n_val:]), np.sort(order[:n_val])


def split_trajectories(n_cases: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits trajectories; at least one of three or more is held out."""
    all_cases = np.arange(n_cases)
    if fraction == 0 or n_cases < 3:
        return all_cases, all_cases[:0]
    n_val = min(max(1, round(fraction * n_cases)), n_cases - 1)
    order = np.random.RandomState(seed).permutation(n_cases)
    return np.sort(order[n_val:]), np.sort(order[:n_val])
