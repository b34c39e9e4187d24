"""Labelled series of other libraries' wheels and of our readers, split into training and test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from latent_morph.datasets import fetch_activity, fetch_physionet, split_activity
from latent_morph.series import Data, SeriesBatch, as_series
from latent_morph.series.subsample import subsample


class Split(NamedTuple):
    """Series and their labels, (N,) or, one per point, (N, T)."""

    train_X: SeriesBatch
    train_y: np.ndarray
    test_X: SeriesBatch
    test_y: np.ndarray
    groups: np.ndarray | None = None  # of the training series


@dataclass(frozen=True)
class LabelledSet:
    """A data set with one or several splits.

    Attributes:
        load: Reads the split of a number below `n_splits`.
        n_splits: Folds, or persons held out.
        is_folded: Whether the folds, or persons, take the place of seeds.
        kind: What is classified, and so by which methods: "series", "ranked series" (two
            classes, scored by probabilities), the same "with latent ODE", or "points".
        is_stretched: Whether series last differently long, and only their shape matters.
        version: Changes with how the data are read, so that older records do not count.
    """

    load: Callable[[int], Split]
    n_splits: int = 1
    is_folded: bool = False
    kind: str = "series"
    is_stretched: bool = False
    version: int = 1


@lru_cache(maxsize=1)
def load_split(name: str, split: int) -> Split:
    """Reads a split of one of `SETS`; the last one stays in memory."""
    return SETS[name].load(split)


def thin(split: Split, fraction: float, seed: int) -> Split:
    """Keeps a random fraction of the rows of each series, for training and test."""
    if fraction == 1:
        return split
    rng = np.random.RandomState(seed)
    return Split(
        *_thin_part(split.train_X, split.train_y, fraction, rng),
        *_thin_part(split.test_X, split.test_y, fraction, rng),
        split.groups,
    )


def _thin_part(
    X: SeriesBatch, y: np.ndarray, fraction: float, rng: np.random.RandomState
) -> tuple[SeriesBatch, np.ndarray]:
    if y.ndim == 1:
        return subsample(X, fraction, rng), y
    # Labels of points go with their rows, as one more channel.
    label = torch.from_numpy(y).to(X.values).unsqueeze(-1)
    joined = SeriesBatch(
        torch.cat([X.values, label], -1),
        X.times,
        torch.cat([X.mask, torch.ones_like(X.mask[..., :1])], -1),
        X.lengths,
        X.static,
    )
    kept = subsample(joined, fraction, rng)
    values, mask = kept.values[..., :-1], kept.mask[..., :-1]
    thinned = SeriesBatch(values, kept.times, mask, kept.lengths, kept.static)
    return thinned, kept.values[..., -1].long().numpy()


def _load_aeon(name: str) -> Split:
    from aeon.datasets import load_classification

    def part(split: str) -> tuple[SeriesBatch, np.ndarray]:
        X, y = load_classification(name, split=split)
        return as_series([series.T for series in X], dtype=torch.float64), y

    return Split(*part("train"), *part("test"))


def _load_plaid(split: int) -> Split:
    from sktime.datasets import load_plaid

    def part(split: str) -> tuple[SeriesBatch, np.ndarray]:
        X, y = load_plaid(split=split, return_X_y=True)
        return as_series([series.to_numpy() for series in X.iloc[:, 0]], dtype=torch.float64), y

    return Split(*part("train"), *part("test"))


def _load_physionet(split: int) -> Split:
    X, y = fetch_physionet(download_if_missing=False, return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    return _select(X, y, *list(folds.split(np.zeros(len(y)), y))[split])


def _load_physionet_test(split: int) -> Split:
    parts = [
        fetch_physionet(subset=subset, download_if_missing=False, return_X_y=True)
        for subset in ("a", "c")
    ]
    return Split(*parts[0], *parts[1])


def _load_activity_windows(split: int) -> Split:
    bunch: Any = fetch_activity(download_if_missing=False)
    return _select(bunch.data, bunch.target, *split_activity(bunch, "windows"))


def _load_activity(split: int) -> Split:
    bunch: Any = fetch_activity(download_if_missing=False)
    train, test = split_activity(bunch, "person", person="ABCDE"[split])
    # Windows overlap by half, so that every second one has nearly all of the rows.
    train = train[::2]
    return _select(bunch.data, bunch.target, train, test)._replace(groups=bunch.groups[train])


def _select(X: SeriesBatch, y: Data, train: Any, test: Any) -> Split:  # noqa: ANN401
    return Split(X[train].trim(), y[train], X[test].trim(), y[test])


def _from_aeon(name: str, *, is_stretched: bool = False) -> LabelledSet:
    return LabelledSet(lambda split: _load_aeon(name), is_stretched=is_stretched)


SETS = {
    "GunPoint": _from_aeon("GunPoint"),
    "ItalyPowerDemand": _from_aeon("ItalyPowerDemand"),
    "ArrowHead": _from_aeon("ArrowHead"),
    "BasicMotions": _from_aeon("BasicMotions"),
    "JapaneseVowels": _from_aeon("JapaneseVowels", is_stretched=True),
    "PickupGesture": _from_aeon("PickupGestureWiimoteZ", is_stretched=True),
    "OSULeaf": _from_aeon("OSULeaf"),
    "ACSF1": _from_aeon("ACSF1"),
    "PLAID": LabelledSet(_load_plaid, is_stretched=True),
    "PhysioNet": LabelledSet(
        _load_physionet, n_splits=5, is_folded=True, kind="ranked series", version=2
    ),
    "PhysioNet a-c": LabelledSet(
        _load_physionet_test, kind="ranked series, with latent ODE", version=2
    ),
    "Human Activity": LabelledSet(_load_activity, n_splits=5, is_folded=True, kind="points"),
    "Human Activity windows": LabelledSet(_load_activity_windows, kind="points"),
}
