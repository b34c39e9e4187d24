"""TASKS: the data sets of the command line, with their loaders and presets.

To add one, write a loader and add an entry to `TASKS`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from latent_morph import datasets
from latent_morph.checks import check_choice
from latent_morph.estimators import (
    FilterBankClassifier,
    FilterBankPointClassifier,
    LatentODEClassifier,
    LatentODEPointClassifier,
)
from latent_morph.experiments.dynamics import DynamicsLearner, resample
from latent_morph.experiments.filters import FilterBankLearner
from latent_morph.experiments.latent import LatentClassificationLearner, ReconstructionLearner
from latent_morph.experiments.presets import PAPER_RECONSTRUCTION
from latent_morph.experiments.problem import SOURCES, Problem, Request
from latent_morph.experiments.task import Task

TRAIN_POINTS = 100  # per demonstration; errors are computed at ten times as many


def _load_periodic(request: Request) -> Problem:
    if request.source == "real":
        raise ValueError("source must be auto or synthetic for a generated set, got 'real'")
    bunch = datasets.make_periodic(
        request.n_cases or 1000,
        request.n_times,
        keep=request.keep if request.keep is not None else 0.05,
        random_state=request.seed,
    )
    train, test = train_test_split(
        np.arange(len(bunch.data)), test_size=0.2, random_state=request.seed
    )
    # In training the encoder is given a new random fraction of all points in every step.
    return Problem(
        train_X=bunch.target[train],
        test_X=bunch.data[test],
        test_y=bunch.target[test],
        channel_names=bunch.feature_names,
        source="synthetic",
        protocol="random",
    )


def _load_activity(request: Request) -> Problem:
    protocol = request.protocol or "windows"

    def split(bunch: Any) -> Problem:  # noqa: ANN401
        train, test = datasets.split_activity(bunch, protocol)
        # `n_cases` is the size of both parts together, in their own proportion.
        fraction = 1.0 if request.n_cases is None else min(1.0, request.n_cases / len(bunch.data))
        train, test = (
            part[_choose(len(part), max(1, round(fraction * len(part))), request.seed)]
            for part in (train, test)
        )
        groups = bunch.groups[train] if protocol == "person" else None
        return _split(bunch, train, test, groups=groups, protocol=protocol)

    return _fetch_or_make(
        request,
        lambda: split(datasets.fetch_activity(data_home=request.data_home)),
        lambda: split(datasets.make_activity(request.n_cases or 2000, random_state=request.seed)),
    )


def _load_ecg(request: Request) -> Problem:
    keep = 1.0 if request.keep is None else request.keep

    def fetch_part(subset: str) -> Any:  # noqa: ANN401
        return datasets.fetch_ecg(
            data_home=request.data_home, subset=subset, keep=keep, random_state=request.seed
        )

    def fetch() -> Problem:
        train, test = fetch_part("train"), fetch_part("test")
        n_train = n_test = None
        if request.n_cases is not None:
            n_train = round(0.8 * request.n_cases)
            n_test = request.n_cases - n_train
        return _split(
            train,
            _choose(len(train.data), n_train, request.seed),
            _choose(len(test.data), n_test, request.seed),
            test_bunch=test,
        )

    def make() -> Problem:
        n_cases = request.n_cases or 4000
        train, test = train_test_split(
            np.arange(n_cases), test_size=0.2, random_state=request.seed
        )
        return _split(
            datasets.make_ecg(n_cases, random_state=request.seed, keep=keep), train, test
        )

    return _fetch_or_make(request, fetch, make)


def _load_physionet(request: Request) -> Problem:
    protocol = check_choice("protocol", request.protocol or "random", _PHYSIONET)

    def fetch() -> Problem:
        bunch: Any = datasets.fetch_physionet(data_home=request.data_home)
        if protocol == "a-c":
            test_bunch: Any = datasets.fetch_physionet(data_home=request.data_home, subset="c")
            n_train = n_test = None
            if request.n_cases is not None:  # of both sets together, which have the same size
                n_test = request.n_cases // 2
                n_train = request.n_cases - n_test
            return _split(
                bunch,
                _choose(len(bunch.data), n_train, request.seed),
                _choose(len(test_bunch.data), n_test, request.seed),
                test_bunch=test_bunch,
                protocol=protocol,
            )
        chosen = _choose(len(bunch.data), request.n_cases, request.seed)
        train, test = train_test_split(
            chosen, test_size=0.2, random_state=request.seed, stratify=bunch.target[chosen]
        )
        return _split(bunch, train, test)

    return _fetch_or_make(request, fetch, None)


def _fetch_or_make(
    request: Request, fetch: Callable[[], Problem], make: Callable[[], Problem] | None
) -> Problem:
    """Loads the real data, or a stand-in with a note that gives the reason."""
    check_choice("source", request.source, SOURCES)
    if request.source == "synthetic":
        if make is None:
            raise ValueError("source must be auto or real without a stand-in, got 'synthetic'")
        return replace(make(), note="generated stand-in, as requested")
    try:
        return fetch()
    except FileNotFoundError as problem:
        if request.source == "real" or make is None:
            raise
        reason = str(problem).splitlines()[0].split(";")[0]
        note = (
            f"using a synthetic stand-in, since {reason} "
            f"(--source real shows where to put the file)"
        )
        return replace(make(), note=note)


def _choose(n_cases: int, n_chosen: int | None, seed: int) -> np.ndarray:
    """Chooses `n_chosen` random cases, or all."""
    if n_chosen is None or n_chosen >= n_cases:
        return np.arange(n_cases)
    return np.sort(np.random.RandomState(seed).permutation(n_cases)[:n_chosen])


def _split(
    bunch: Any,  # noqa: ANN401
    train: np.ndarray,
    test: np.ndarray,
    *,
    test_bunch: Any = None,  # noqa: ANN401
    groups: np.ndarray | None = None,
    protocol: str = "random",
) -> Problem:
    """Splits a bunch into training and test cases; the latter may be of another bunch."""
    test_bunch = bunch if test_bunch is None else test_bunch
    return Problem(
        train_X=bunch.data[train],
        train_y=bunch.target[train],
        test_X=test_bunch.data[test],
        test_y=test_bunch.target[test],
        groups=groups,
        channel_names=list(bunch.feature_names),
        class_names=list(bunch.target_names),
        source=bunch.source,
        protocol=protocol,
    )


def _load_system(make: Callable[..., Any], request: Request) -> Problem:
    """Generates trajectories of a known system, and its solution for comparison."""
    protocol = request.protocol or "standard"
    options = _LONG if protocol == "long" else {"variant": protocol}
    bunch = make(**options, random_state=request.seed)
    has_unseen = "unseen" in bunch  # otherwise the test is the training trajectory without noise
    return Problem(
        train_X=bunch.data,
        test_X=bunch.unseen if has_unseen else bunch.reference,
        train_reference=bunch.reference if has_unseen else None,
        channel_names=list(bunch.feature_names),
        source="synthetic",
        protocol=protocol,
    )


def _load_demonstrations(motion: str, request: Request) -> Problem:
    if request.source == "synthetic":
        raise ValueError("source must be auto or real without a stand-in, got 'synthetic'")
    protocol = check_choice("protocol", request.protocol or "first", _DEMONSTRATIONS)
    _, options = _DEMONSTRATIONS[protocol]
    bunch = datasets.fetch_robot_demonstrations(motion, data_home=request.data_home, **options)
    train, test = bunch.train, bunch.test
    if protocol == "random":
        order = np.random.RandomState(request.seed).permutation(len(bunch.data))
        train, test = np.sort(order[: len(train)]), np.sort(order[len(train) :])
    missing = "positions jump" if "gaps" in options else "time passes"
    return Problem(
        train_X=resample(bunch.data[train], TRAIN_POINTS),
        test_X=resample(bunch.data[test], 10 * TRAIN_POINTS),
        channel_names=list(bunch.feature_names),
        unit=bunch.unit,
        source=bunch.source,
        protocol=protocol,
        note=f"errors in {bunch.unit} squared; demonstrations {test.tolist()} are for testing"
        f"; where rows are missing {missing}",
    )


_REST = 0.02  # fraction of the path at either end in which the hand rests
# Meaning of each protocol of the demonstrations, and options of the loader.
_DEMONSTRATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "first": (
        "the first 70 % of the demonstrations train, on a common clock and to a common goal",
        {"rest": _REST},
    ),
    "random": ("a random 70 % of them do", {"rest": _REST}),
    "leaps": (
        "as first, but no time passes where rows are missing",
        {"rest": _REST, "gaps": "recorded"},
    ),
    "whole": ("as first, but with the hand's rest before and after the motion", {}),
    "recorded": (
        "the first 70 % of them as the file has them",
        {"timing": "recorded", "goal": "recorded", "gaps": "recorded"},
    ),
}
_RANDOM = {"random": "a random 20 % of the series are for testing"}
_PHYSIONET = _RANDOM | {"a-c": "all of set a is for training and all of set c for testing"}
_STANDARD = {"standard": "the equations of the literature"}
_LONG = {"n_times": 201, "start": (-3.1, -1.15, 8.15), "interval": (0, 5)}
_PRINTED = {"printed": "the equations as printed in the paper"}


def _dynamics_task(learner: DynamicsLearner, **options: Any) -> Task:  # noqa: ANN401
    """Makes a task for trajectories, of a fixed number."""
    return Task(learners={"dynamics": learner}, takes_n_cases=False, **options)


def _demonstration_task(motion: str) -> Task:
    return _dynamics_task(
        DynamicsLearner(
            is_stable=True,
            # The same for all motions, chosen by `python -m benchmarks leave_one_out`.
            default={
                "restarts": 1,
                "start_spread": 0.3,
                "scale": "shared",
                "max_epochs": 1000,
                # Far from the demonstrations the scales of all blocks multiply; a small clamp
                # avoids detours.
                "ode_options": {"inn": {"blocks": 2, "width": 32, "clamp": 0.3}},
            },
        ),
        load=partial(_load_demonstrations, motion),
        metric="mse",
        protocols={name: meaning for name, (meaning, _) in _DEMONSTRATIONS.items()},
    )


TASKS: dict[str, Task] = {
    "periodic": Task(
        load=_load_periodic,
        learners={
            "latent-ode": ReconstructionLearner(
                default={
                    "keep": 0.05,
                    "time_origin": "absolute",
                    "latent_dim": 20,
                    # With five points per series, a strong prior would dominate the
                    # reconstruction.
                    "kl_weight": 0.03,
                    "max_epochs": 300,
                },
                paper=PAPER_RECONSTRUCTION | {"keep": 0.05, "time_origin": "absolute"},
            )
        },
        metric="mse",
        protocols=_RANDOM,
        is_generated=True,
        takes_n_times=True,
        takes_keep=True,
    ),
    "activity": Task(
        load=_load_activity,
        learners={
            "latent-ode": LatentClassificationLearner(
                estimator=LatentODEPointClassifier,
                # There are many labels, as windows overlap: less dropout, and several members.
                default={
                    "encoder_options": {"modes": 8, "dropout": 0.1},
                    "n_members": 3,
                },
            ),
            "filter-bank": FilterBankLearner(estimator=FilterBankPointClassifier),
        },
        metric="accuracy",
        protocols={
            "windows": "a random 20 % of the windows are for testing, as in the literature",
            "person": "all windows of one person are for testing",
        },
    ),
    "ecg": Task(
        load=_load_ecg,
        learners={
            "latent-ode": LatentClassificationLearner(
                estimator=LatentODEClassifier,
                # There are many beats, of up to 187 samples: larger batches and less dropout.
                default={
                    "encoder_options": {"pool": 4, "dropout": 0.1},
                    "batch_size": 128,
                    "max_epochs": 12,
                },
            ),
            "filter-bank": FilterBankLearner(estimator=FilterBankClassifier),
        },
        metric="accuracy",
        protocols={"random": "beats for testing are in a file of their own, drawn at random"},
        takes_keep=True,
    ),
    "physionet": Task(
        load=_load_physionet,
        learners={
            "latent-ode": LatentClassificationLearner(
                estimator=LatentODEClassifier,
                # Labels are few: more epochs only make it surer of the training series.
                default={"max_epochs": 5, "validation_fraction": 0.0, "n_members": 3},
            ),
            "filter-bank": FilterBankLearner(estimator=FilterBankClassifier),
        },
        metric="accuracy",
        protocols=_PHYSIONET,
    ),
    "lotka_volterra": _dynamics_task(
        # Test starts are outside the training range, for which a small clamp is more robust. Sizes
        # were chosen by `python -m benchmarks leave_one_out`.
        DynamicsLearner(
            default={
                "start_noise": 0.05,
                "ode_options": {"inn": {"blocks": 3, "width": 48, "clamp": 0.3}},
            }
        ),
        load=lambda request: _load_system(datasets.make_lotka_volterra, request),
        metric="mse",
        protocols=_STANDARD,
        is_generated=True,
    ),
    "imitation_s": _demonstration_task("S"),
    "imitation_cube": _demonstration_task("cube"),
    "imitation_c": _demonstration_task("C"),
    "lorenz": _dynamics_task(
        DynamicsLearner(default={"restarts": 1, "max_epochs": 1500}),
        load=lambda request: _load_system(datasets.make_lorenz, request),
        metric="mae",
        protocols=_STANDARD | _PRINTED | {"long": "standard, for t in [0, 5] from another start"},
        is_generated=True,
    ),
    "rober": _dynamics_task(
        DynamicsLearner(
            is_logarithmic=True, default={"restarts": 1, "scale": "log", "max_epochs": 1000}
        ),
        load=lambda request: _load_system(datasets.make_robertson, request),
        metric="mae",
        protocols=_STANDARD | _PRINTED,
        is_generated=True,
    ),
}


def get_learner(dataset: str, model: str | None = None) -> Any:  # noqa: ANN401
    """Returns the learner of a model for a data set, by default that of its first model."""
    learners = TASKS[dataset].learners
    if model is None:
        return next(iter(learners.values()))
    if model not in learners:
        raise ValueError(f"--model must be {' or '.join(learners)} for {dataset}, got {model}")
    return learners[model]
