"""The filter bank, MiniRocket and boosted trees on labelled series, at several sampling rates."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    roc_auc_score,
)
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from benchmarks.cache import Record, run_cached
from benchmarks.labelled_sets import SETS, Split, load_split, thin
from benchmarks.rows import Row
from latent_morph import (
    BlendClassifier,
    BlendPointClassifier,
    FilterBankClassifier,
    FilterBankPointClassifier,
    LatentODEClassifier,
    LatentODEPointClassifier,
    SeriesStatistics,
)
from latent_morph.experiments.classification import event_1_score
from latent_morph.experiments.registry import get_learner
from latent_morph.series import SeriesBatch

TITLE = "Filter bank, MiniRocket and boosted trees"
RECORDS = Path("runs/filters")
TASKS = tuple(SETS)
SHORT = ("GunPoint", "ItalyPowerDemand")
FRACTIONS = (1.0, 0.5, 0.2)
SEEDS = 3
BANK, BLEND = "filter bank", "bank + trees"
LATENT, BLEND_OF_THREE = "latent ODE", "bank + trees + latent ODE"


class Recipe(NamedTuple):
    """What a classifier is made for."""

    seed: int
    n_cases: int  # for training
    n_points: int  # of the longest training series with all values
    is_stretched: bool


class GridMiniRocket(ClassifierMixin, BaseEstimator):
    """aeon's MiniRocket on series that are interpolated onto a regular grid.

    The grid spans all training series, or each series if they are stretched. A channel is constant
    beyond its observations, and its mean over the training series if it has none. Static facts,
    which MiniRocket has no place for, are left out.
    """

    def __init__(self, n_points: int, is_stretched: bool, random_state: int) -> None:
        self.n_points = n_points
        self.is_stretched = is_stretched
        self.random_state = random_state

    def fit(self, X: SeriesBatch, y: np.ndarray) -> Self:
        from aeon.classification.convolution_based import MiniRocketClassifier

        observed = X.mask.sum((0, 1)).clamp(min=1)
        self.fill_ = (torch.where(X.mask, X.values, 0.0).sum((0, 1)) / observed).numpy()
        self.span_ = None if self.is_stretched else (float(X.times.min()), float(X.times.max()))
        self.model_ = MiniRocketClassifier(random_state=self.random_state).fit(self._grid(X), y)
        return self

    def predict(self, X: SeriesBatch) -> np.ndarray:
        return self.model_.predict(self._grid(X))

    def decision_function(self, X: SeriesBatch) -> np.ndarray:
        return self.model_.pipeline_.decision_function(self._grid(X))

    def _grid(self, X: SeriesBatch) -> np.ndarray:
        """Returns (N, C, n_points), the layout of aeon."""
        grid = np.empty((X.n_cases, X.n_channels, self.n_points), dtype=np.float32)
        for case, (times, values) in enumerate(X.to_ragged()):
            start, stop = (times[0], times[-1]) if self.span_ is None else self.span_
            points = np.linspace(start, stop, self.n_points)
            for channel, column in enumerate(values.T):
                known = np.isfinite(column)
                if known.any():
                    grid[case, channel] = np.interp(points, times[known], column[known])
                else:
                    grid[case, channel] = self.fill_[channel]
        return grid


class RowClassifier(ClassifierMixin, BaseEstimator):
    """Classifies points by filled values and by statistics of their series."""

    def __init__(self, model: Any) -> None:  # noqa: ANN401
        self.model = model

    def fit(self, X: SeriesBatch, y: np.ndarray, groups: np.ndarray | None = None) -> Self:
        self.model.fit(fill_rows(X), y.ravel())
        return self

    def predict(self, X: SeriesBatch) -> np.ndarray:
        return self.model.predict(fill_rows(X)).reshape(X.n_cases, X.n_times)


def fill_rows(X: SeriesBatch) -> np.ndarray:
    """Returns values filled forwards and backwards, and statistics of the series (N * T, F)."""
    values = np.where(X.mask.numpy(), X.values.numpy(), np.nan)
    filled = [_fill_forwards(values), _fill_forwards(values[:, ::-1])[:, ::-1]]
    statistics = SeriesStatistics().fit_transform(X)
    filled.append(np.repeat(statistics[:, None], X.n_times, axis=1))
    return np.nan_to_num(np.concatenate(filled, axis=-1)).reshape(
        -1, sum(f.shape[-1] for f in filled)
    )


def _fill_forwards(values: np.ndarray) -> np.ndarray:
    """Fills NaN (N, T, C) with the last value before, and at the start with the first after."""
    values = values.copy()
    for row in range(1, values.shape[1]):
        values[:, row] = np.where(np.isnan(values[:, row]), values[:, row - 1], values[:, row])
    for row in range(values.shape[1] - 2, -1, -1):
        values[:, row] = np.where(np.isnan(values[:, row]), values[:, row + 1], values[:, row])
    return values


def _make_bank(recipe: Recipe) -> Any:  # noqa: ANN401
    return FilterBankClassifier(random_state=recipe.seed)


def _make_minirocket(recipe: Recipe) -> Any:  # noqa: ANN401
    return GridMiniRocket(recipe.n_points, recipe.is_stretched, recipe.seed)


def _make_boosting(recipe: Recipe) -> Any:  # noqa: ANN401
    # The default of 20 cases per leaf leaves no tree for a few dozen cases.
    least = int(np.clip(recipe.n_cases // 20, 2, 20))
    return HistGradientBoostingClassifier(min_samples_leaf=least, random_state=recipe.seed)


def _make_trees(recipe: Recipe) -> Any:  # noqa: ANN401
    return make_pipeline(SeriesStatistics(), _make_boosting(recipe))


def _make_blend(recipe: Recipe) -> Any:  # noqa: ANN401
    members = BlendClassifier().default_members(recipe.n_cases)
    two = [(name, member) for name, member in members.items() if name != LATENT]
    return BlendClassifier(estimators=two, cv=3, random_state=recipe.seed)


def _make_latent_ode(recipe: Recipe) -> Any:  # noqa: ANN401
    # With the preset of the command line.
    params = get_learner("physionet").parameters("default", "morph")
    return LatentODEClassifier(**params, random_state=recipe.seed)


def _make_blend_of_three(recipe: Recipe) -> Any:  # noqa: ANN401
    return BlendClassifier(cv=3, random_state=recipe.seed)


def _make_preset_blend(recipe: Recipe) -> Any:  # noqa: ANN401
    members = BlendClassifier().default_members(recipe.n_cases) | {
        LATENT: _make_latent_ode(recipe)
    }
    return BlendClassifier(estimators=list(members.items()), cv=3, random_state=recipe.seed)


def _make_point_bank(recipe: Recipe) -> Any:  # noqa: ANN401
    return FilterBankPointClassifier(random_state=recipe.seed)


def _make_point_trees(recipe: Recipe) -> Any:  # noqa: ANN401
    boosting = HistGradientBoostingClassifier(
        max_leaf_nodes=15, min_samples_leaf=50, max_features=0.2, random_state=recipe.seed
    )
    return RowClassifier(boosting)


def _make_point_forest(recipe: Recipe) -> Any:  # noqa: ANN401
    return RowClassifier(RandomForestClassifier(random_state=recipe.seed))


def _make_point_blend(recipe: Recipe) -> Any:  # noqa: ANN401
    return BlendPointClassifier(random_state=recipe.seed)


def _make_point_latent_ode(recipe: Recipe) -> Any:  # noqa: ANN401
    params = get_learner("activity").parameters("default", "morph")
    return LatentODEPointClassifier(**params, random_state=recipe.seed)


Maker = Callable[[Recipe], Any]
SERIES_METHODS: dict[str, Maker] = {
    BANK: _make_bank,
    "MiniRocket": _make_minirocket,
    "boosted trees": _make_trees,
}
SMALL_METHODS = SERIES_METHODS | {BLEND_OF_THREE: _make_blend_of_three}
RANKED_METHODS = SERIES_METHODS | {BLEND: _make_blend}
LATENT_METHODS = RANKED_METHODS | {
    LATENT: _make_latent_ode,
    BLEND_OF_THREE: _make_preset_blend,
}
POINT_METHODS: dict[str, Maker] = {
    BANK: _make_point_bank,
    "boosted trees": _make_point_trees,
    "random forest": _make_point_forest,
    BLEND: _make_point_blend,
    LATENT: _make_point_latent_ode,
}
RANKING = {"AUROC": roc_auc_score, "AUPRC": average_precision_score}
# Of probabilities, which a decision function is not.
OF_PROBABILITIES = {"Brier": brier_score_loss, "Event 1": event_1_score}
METHODS_OF = {
    "series": SMALL_METHODS,
    "ranked series": RANKED_METHODS,
    "ranked series, with latent ODE": LATENT_METHODS,
    "points": POINT_METHODS,
}
# On large sets these are compared with all values only.
SLOW = (BLEND, LATENT, BLEND_OF_THREE)
METHODS = tuple(LATENT_METHODS | POINT_METHODS)


def run(
    *,
    short: bool,
    only: str | None = None,
    seeds: int | None = None,
    records: Path | None = None,
) -> list[Row]:
    """Makes one row per data set, fraction of the rows and metric, and rows that compare methods.

    Folds of a data set take the place of seeds. Seconds are of a processor, for a fit and the
    predictions of the test series.
    """
    n_seeds = 1 if short else seeds or SEEDS
    names: Sequence[str] = [only] if only is not None else SHORT if short else TASKS
    rows: list[Row] = []
    for name in names:
        try:
            load_split(name, 0)
        except (OSError, ImportError) as error:
            if only is not None:
                raise
            print(f"{name} is skipped: {error}", file=sys.stderr)
            continue
        for fraction in FRACTIONS:
            rows += _make_rows(name, fraction, n_seeds, records or RECORDS)
    return rows + compare(rows)


def _make_rows(name: str, fraction: float, n_seeds: int, records: Path) -> list[Row]:
    seeds = range(1 if SETS[name].is_folded else n_seeds)
    runs = [(split, seed) for split in range(SETS[name].n_splits) for seed in seeds]
    by_metric: dict[str, Row] = {}
    methods = METHODS_OF[SETS[name].kind]
    if fraction < 1 and SETS[name].kind != "series":
        methods = {name: make for name, make in methods.items() if name not in SLOW}
    # Split by split, as reading one takes time.
    found: dict[str, list[Record]] = {method: [] for method in methods}
    for split, seed in runs:
        for method in methods:
            try:
                found[method].append(_measure(name, fraction, split, seed, method, records))
            except ImportError as error:
                print(f"{method} is skipped: {error}", file=sys.stderr)
    for method, results in found.items():
        for metric in results[0]["scores"] if results else ():
            row = by_metric.setdefault(
                metric, {"task": name, "rows": f"{fraction:.0%}", "metric": metric}
            )
            row[method] = float(np.mean([result["scores"][metric] for result in results]))
            row[f"{method} s"] = float(np.mean([result["seconds"] for result in results]))
    if SETS[name].is_stretched:
        by_metric["accuracy"]["note"] = "stretched for MiniRocket"
    return list(by_metric.values())


def _measure(
    name: str, fraction: float, split: int, seed: int, method: str, records: Path
) -> Record:
    def evaluate() -> Record:
        full = load_split(name, split)
        data = thin(full, fraction, seed)
        is_stretched = SETS[name].is_stretched
        recipe = Recipe(seed, len(data.train_X), full.train_X.n_times, is_stretched)
        kind = SETS[name].kind
        # Restores the number of threads, which numba's first use sets to the number of cores for
        # all users of OpenMP, torch and the trees among them.
        with threadpool_limits(torch.get_num_threads()):
            _warm_up(kind, method)
            model = _make(kind, method, recipe)
            start = time.process_time()
            groups = {} if data.groups is None else {"groups": data.groups}
            model.fit(data.train_X, data.train_y, **groups)
            fitted = time.process_time()
            scores = _score(model, data, kind)
            stop = time.process_time()
        return {"scores": scores, "seconds": stop - start, "fit_seconds": fitted - start}

    settings = {"task": name, "fraction": fraction, "split": split, "seed": seed}
    settings |= {"method": method, "version": SETS[name].version}
    stem = f"{name}-split_{split}-{fraction:.0%}-{method}-seed_{seed}".replace(" ", "_")
    return run_cached(records / f"{stem}.json", settings, evaluate)


def _make(kind: str, method: str, recipe: Recipe) -> Any:  # noqa: ANN401
    return METHODS_OF[kind][method](recipe)


@cache
def _warm_up(kind: str, method: str) -> None:
    """Fits a method to a little noise, as the first fit imports and compiles."""
    rng = np.random.default_rng(0)
    for n_channels in (1, 2):
        values = torch.from_numpy(rng.normal(size=(20, 12, n_channels)))
        X = SeriesBatch(values, torch.arange(12.0).double().expand(20, -1), values < torch.inf)
        y = np.arange(20) % 2
        if kind == "points":
            y = np.repeat(y[:, None], 12, axis=1)
        recipe = Recipe(seed=0, n_cases=20, n_points=12, is_stretched=False)
        _score(_make(kind, method, recipe).fit(X, y), Split(X, y, X, y), kind)


def _score(model: Any, data: Split, kind: str) -> dict[str, float]:  # noqa: ANN401
    truth = data.test_y
    if not kind.startswith("ranked series"):
        labels = model.predict(data.test_X)
        return {"accuracy": float(accuracy_score(truth.ravel(), labels.ravel()))}
    if hasattr(model, "predict_proba"):
        score, metrics = model.predict_proba(data.test_X)[:, 1], RANKING | OF_PROBABILITIES
    else:
        score, metrics = model.decision_function(data.test_X), RANKING
    return {name: float(metric(truth == 1, score)) for name, metric in metrics.items()}


def compare(rows: Sequence[Row]) -> list[Row]:
    """Makes a row of mean ranks per fraction, and one of the filter bank's wins, ties and losses.

    The first metric of a data set counts. Ranks are among the methods for series, on the sets
    where all of them were run. A tie is equal to three digits.
    """
    compared: list[Row] = []
    for fraction in dict.fromkeys(row["rows"] for row in rows):
        firsts = {row["task"]: row for row in reversed(rows) if row["rows"] == fraction}
        scores = [
            {name: round(row[name], 3) for name in METHODS if name in row}
            for row in firsts.values()
        ]
        complete = [each for each in scores if each.keys() >= SERIES_METHODS.keys()]
        if complete:
            table = np.array([[each[name] for name in SERIES_METHODS] for each in complete])
            ranks = rankdata(-table, axis=1).mean(0).tolist()
            label = {"task": f"mean rank, {len(complete)} sets", "rows": fraction}
            compared.append(label | dict(zip(SERIES_METHODS, ranks, strict=True)))
        counts = {"task": "wins/ties/losses of the bank", "rows": fraction}
        for other in METHODS:
            pairs = [each for each in scores if other != BANK and each.keys() >= {BANK, other}]
            signs = [np.sign(each[BANK] - each[other]) for each in pairs]
            if signs:
                counts[other] = "/".join(str(signs.count(sign)) for sign in (1, 0, -1))
        compared.append(counts)
    return compared
