"""DynamicsRegressor: learns an ODE from trajectories and rolls it out from any start."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from latent_morph.estimators.inputs import as_query_times, is_table, select_weighted_cases
from latent_morph.estimators.parameters import (
    COUNT_OR_ZERO,
    DTYPES,
    LATENT,
    NOT_NEGATIVE,
    POSITIVE,
    TRAINING,
    Parameter,
    documented,
)
from latent_morph.estimators.programs import dynamics_program
from latent_morph.estimators.split import split_trajectories
from latent_morph.estimators.trained import TrainedEstimator
from latent_morph.flows import FlowRecipe, LinearFlow, MorphFlow, resolve_flow
from latent_morph.io.export import Program
from latent_morph.losses import ERRORS, RolloutLoss
from latent_morph.models.dynamics import DynamicsModel, first_complete, measure_fade
from latent_morph.models.linear_fit import (
    finite_differences,
    fit_matrix,
    initialize_linear,
    linear_base,
)
from latent_morph.seeding import seeded
from latent_morph.series import SCALES, Data, Examples, SeriesBatch, SeriesScaler
from latent_morph.training import AnyCallback, History, Settings, train

# Default options of ODEs, with wider networks than in latent flows, since there is no decoder.
ODE_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"inn": {"blocks": 4, "width": 64}} for name in ("morph", "morph-real", "morph-stable")
} | {"morph-neural": {"inn": {"blocks": 4, "width": 64}, "method": "rk4"}}
# Flows that support `stable` and `goal`.
_LINEAR_BASE = ("morph", "morph-real", "morph-stable", "linear")

# Its own parameters, and shared ones that have another meaning here.
PARAMETERS: dict[str, Parameter] = TRAINING | {
    "ode": LATENT["ode"]._replace(
        meaning="Name of a flow in `latent_morph.FLOWS`, or a recipe `(dim, **options) -> Flow`."
    ),
    "ode_options": Parameter(
        [dict, None],
        "dict or None",
        "Options of the flow. None gives the `morph` family four coupling blocks of 64 units, "
        '`"morph-neural"` also `rk4` for its base, and other flows their own defaults.',
    ),
    "augment": Parameter(
        [COUNT_OR_ZERO, None],
        "int or None",
        "Number of zeros appended to a state; None appends as many as a state has dimensions. "
        "With zeros appended, trajectories of the data may cross.",
    ),
    "stable": Parameter(
        ["boolean"],
        "bool",
        "Make the ODE asymptotically stable by construction: every trajectory converges to "
        "`equilibrium_`. Requires an ODE with a linear base.",
    ),
    "goal": Parameter(
        ["array-like", StrOptions({"ends"}), None],
        'array-like of shape (n_channels,), "ends" or None',
        'The exact equilibrium; "ends" for the mean of the last points of the trajectories. None '
        "learns it. Requires an ODE with a linear base.",
    ),
    "scale": Parameter(
        [StrOptions(set(SCALES))],
        '{"standard", "shared", "log", "none"}',
        "Scaling of the values, which determines the weights of errors: each channel by its "
        "standard deviation, all channels by one number, by their signed logarithm (for channels "
        "of small or widely varying values), or none.",
    ),
    "loss": Parameter(
        [StrOptions(set(ERRORS))],
        '{"mae", "mse"}',
        "Mean absolute or squared error of the roll-outs, in scaled units.",
    ),
    "restarts": Parameter(
        [COUNT_OR_ZERO],
        "int",
        "Number of random points of each trajectory that are additional starts in each step of "
        "training. 0 trains on the trajectories' own starts only.",
    ),
    "start_noise": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Standard deviation of noise on the starts in training, in scaled units.",
    ),
    "start_spread": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Standard deviation of random shifts of the starts in training, in scaled units. The rest "
        "of the trajectory is shifted by less and less, to nothing at its end, like another "
        "demonstration with the same goal. For few demonstrations of a motion.",
    ),
    "spread_fade": Parameter(
        [POSITIVE, StrOptions({"measured"})],
        'float or "measured"',
        "How fast such a shift fades: after a fraction s of the time, (1 - s) to this power "
        "remains. 1 fades evenly, 4 quickly. By default the power is estimated from the "
        "differences between training trajectories.",
    ),
    "velocity_weight": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Weight of the error of the vector field against finite differences of the data.",
    ),
    "linear_start": Parameter(
        ["boolean"],
        "bool",
        "Initialize a linear base with the least-squares fit to finite differences of the data.",
    ),
    "max_epochs": TRAINING["max_epochs"]._replace(
        meaning="Largest number of steps of training, each on all trajectories."
    ),
    "budget": TRAINING["budget"]._replace(
        meaning="Largest number of seconds of training, including the refit."
    ),
    "patience": TRAINING["patience"]._replace(
        meaning="Number of steps without a better validation score after which training stops."
    ),
    "validation_fraction": TRAINING["validation_fraction"]._replace(
        meaning="Fraction of the trajectories held out to select the best step, at least one of "
        "three or more. 0 keeps the last step."
    ),
    "refit": Parameter(
        ["boolean"],
        "bool",
        "If trajectories were held out, train again on all of them, up to the best step. "
        "Callbacks are then called for two runs.",
    ),
    "dtype": TRAINING["dtype"]._replace(
        meaning="Precision of training; predictions have double precision."
    ),
}


@documented
class DynamicsRegressor(TrainedEstimator):
    """Learns an autonomous ODE from trajectories and rolls it out from new starts.

    `predict` returns trajectories from any starts at any times, `vector_field` the velocity of any
    state. With the default ODE, a linear one mapped by an invertible network, roll-outs are in
    closed form, and `stable=True` makes all of them converge to one point, the goal if given.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    equilibrium_ : ndarray of shape (n_channels,) or None
        The equilibrium of the ODE; None if it has no linear base.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import DynamicsRegressor
    >>> t = np.linspace(0, 4, 30)
    >>> X = [(t, a * np.exp(-t)[:, None] * np.c_[np.cos(t), np.sin(t)]) for a in (1.0, 2.0)]
    >>> model = DynamicsRegressor(stable=True, goal=[0, 0], max_epochs=100, random_state=0).fit(X)
    >>> model.predict([1.5, 0.0], times=[0.0, 1.0, 1e6]).round(3)[[0, 2]] + 0.0
    array([[1.5, 0. ],
           [0. , 0. ]])
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = PARAMETERS
    _noun: ClassVar[str] = "trajectory"
    _takes_static: ClassVar[bool] = False

    def __init__(
        self,
        *,
        ode: str | FlowRecipe = "morph",
        ode_options: dict[str, Any] | None = None,
        augment: int | None = None,
        stable: bool = False,
        goal: Data = None,
        scale: str = "standard",
        loss: str = "mae",
        restarts: int = 2,
        start_noise: float = 0.0,
        start_spread: float = 0.0,
        spread_fade: float | str = "measured",
        velocity_weight: float = 0.0,
        linear_start: bool = True,
        optimizer: str = "adamw",
        learning_rate: float = 5e-3,
        weight_decay: float = 1e-4,
        schedule: str = "one-cycle",
        gradient_clip: float | None = 1.0,
        max_epochs: int = 1000,
        budget: float | None = None,
        patience: int | None = None,
        validation_fraction: float = 0.0,
        refit: bool = True,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[AnyCallback] | None = None,
    ) -> None:
        self.ode = ode
        self.ode_options = ode_options
        self.augment = augment
        self.stable = stable
        self.goal = goal
        self.scale = scale
        self.loss = loss
        self.restarts = restarts
        self.start_noise = start_noise
        self.start_spread = start_spread
        self.spread_fade = spread_fade
        self.velocity_weight = velocity_weight
        self.linear_start = linear_start
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.gradient_clip = gradient_clip
        self.max_epochs = max_epochs
        self.budget = budget
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.refit = refit
        self.checkpoint = checkpoint
        self.resume = resume
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks

    # Fitting

    def fit(self, X: Data, y: Data = None, sample_weight: Data = None) -> Self:
        """Fits the ODE to trajectories.

        Parameters
        ----------
        X : trajectories
            Anything `latent_morph.as_series` accepts, with irregular times, unequal lengths and
            missing values, without static facts. A trajectory is rolled out from its first
            complete row.
        y : ignored
            For pipelines.
        sample_weight : array-like of shape (n_cases,), default=None
            Weight of each trajectory in scales, goal, loss and validation: 2 is equivalent to a
            second copy, 0 to its absence. Only proportions matter.
        """
        self._validate_params()
        seed = self._validate_training()
        batch = check_trajectories(self._validate_series(X, reset=True, min_columns=2))
        chosen, weight, _ = select_weighted_cases(batch, sample_weight, None)
        if weight is not None:
            batch = check_trajectories(batch[chosen])
        factors = None if weight is None else torch.from_numpy(weight / weight.mean())
        train_cases, val_cases = split_trajectories(len(batch), self.validation_fraction, seed)
        settings = self._make_settings(len(train_cases))
        if len(val_cases) and self.refit and self.budget is not None:
            settings = replace(settings, budget=self.budget / 2)
        examples = Examples(batch, weight=factors)
        history = self._train(
            examples[train_cases],
            examples[val_cases] if len(val_cases) else None,
            seed,
            settings,
        )
        if len(val_cases) and self.refit:
            refit_settings = replace(
                settings,
                batch_size=len(batch),
                max_epochs=max(1, history.best_epoch),
                patience=None,
                checkpoint=None,
                resume=False,
            )
            self._train(examples, None, seed, refit_settings)
        self.n_train_, self.n_val_ = len(train_cases), len(val_cases)
        self._finish(history)
        return self

    def _train(
        self,
        train_examples: Examples,
        val_examples: Examples | None,
        seed: int,
        settings: Settings,
    ) -> History:
        """Scales the trajectories, and builds and trains a new model."""
        batch, weight = train_examples.inputs, train_examples.weight
        self.scaler_ = SeriesScaler(self.scale).fit(
            batch, center=self._compute_goal(train_examples), weight=weight
        )
        self._remember_params()
        with seeded(seed):
            self.model_ = self._build_model().to(self.device, DTYPES[self.dtype])
        scaled_examples = self._scale_examples(train_examples)
        scaled = scaled_examples.inputs
        linear = linear_base(self.model_.flow)
        if self.linear_start and linear is not None:
            states, velocity, case = finite_differences(scaled)
            pair_weight = None if weight is None else weight[case]
            initialize_linear(linear, fit_matrix(states, velocity, pair_weight))
        fade = self.spread_fade
        if isinstance(fade, str):
            fade = measure_fade(scaled, weight) if self.start_spread else 1.0
        loss = RolloutLoss(
            error=self.loss,
            velocity_weight=self.velocity_weight,
            restarts=self.restarts,
            start_noise=self.start_noise,
            start_spread=self.start_spread,
            spread_fade=fade,
        )
        return train(
            self.model_,
            loss,
            scaled_examples.to(self.device),
            None if val_examples is None else self._scale_examples(val_examples).to(self.device),
            self._validation_score,
            settings,
            seed=seed,
            callbacks=self._make_callbacks(),
        )

    def _scale_examples(self, raw: Examples) -> Examples:
        weight = None if raw.weight is None else raw.weight.to(DTYPES[self.dtype])
        return Examples(self._scale(raw.inputs), weight=weight)

    def _compute_goal(self, examples: Examples) -> Tensor | None:
        """Returns the goal (C,) in the units of the data, or None."""
        if self.goal is None:
            return None
        if isinstance(self.goal, str):
            batch = examples.inputs
            rows = batch.mask.all(-1).long() * torch.arange(1, batch.n_times + 1)
            ends = batch.values[torch.arange(len(batch)), rows.argmax(1)]
            if examples.weight is None:
                return ends.mean(0)
            return examples.weight @ ends / examples.weight.sum()
        try:
            point = torch.as_tensor(np.asarray(self.goal, dtype=np.float64))
        except (TypeError, ValueError) as problem:
            raise ValueError(
                f"goal must be numbers, 'ends' or None, got {self.goal!r}"
            ) from problem
        if point.shape != (self.n_channels_,):
            raise ValueError(
                f"goal must have shape ({self.n_channels_},) as a state has, "
                f"got {tuple(point.shape)}"
            )
        if not torch.isfinite(point).all():
            raise ValueError(f"goal must be finite, got {point.tolist()}")
        return point

    def _build_model(self) -> DynamicsModel:
        dim = self.n_channels_ + (self.n_channels_ if self.augment is None else self.augment)
        options = self.ode_options
        if options is None and isinstance(self.ode, str):
            options = ODE_DEFAULTS.get(self.ode)
        options = dict(options or {})
        if self.stable or self.goal is not None:
            option = "stable=True" if self.stable else "goal"
            if isinstance(self.ode, str) and self.ode not in _LINEAR_BASE:
                raise ValueError(
                    f"ode must have a linear base for {option}, one of "
                    f"{', '.join(_LINEAR_BASE)}, got {self.ode!r}"
                )
            if self.stable:
                options["stable"] = True
            if self.goal is not None and self.ode != "linear":
                options["goal"] = [0.0] * dim  # the goal is the origin of scaled values
        return DynamicsModel(resolve_flow(self.ode, options)(dim), self.n_channels_)

    def _validation_score(self, model: DynamicsModel, examples: Examples) -> float:
        """Returns minus the mean squared error of roll-outs, in the units of the data."""
        output = model(examples.inputs)
        inverse = self.scaler_.inverse_values
        error = inverse(output.states.double()) - inverse(output.target.double())
        squares = error[output.mask].square()
        if examples.weight is None:
            return -float(squares.mean())
        factor = examples.weight.double().view(-1, 1, 1).expand_as(error)[output.mask]
        return -float((factor * squares).sum() / factor.sum())

    def _finish(self, history: History) -> None:
        self.model_ = self.model_.to(self._prediction_dtype()).eval()
        self.equilibrium_ = self._compute_equilibrium()
        super()._finish(history)

    def _new_model(self) -> DynamicsModel:
        return self._build_model().to(self._prediction_dtype())

    def _program(self) -> Program:
        return dynamics_program(self.model_, self.scaler_)

    def _prediction_dtype(self) -> torch.dtype:
        # Double precision, whatever that of training, so that starts and goals are exact.
        return torch.float32 if self.device.startswith("mps") else torch.float64

    def _to_model(self, values: Tensor) -> Tensor:
        return values.to(self.device, self._prediction_dtype())

    def _compute_equilibrium(self) -> np.ndarray | None:
        flow = self.model_.flow
        with torch.no_grad():
            if isinstance(flow, MorphFlow) and isinstance(flow.base, LinearFlow):
                point = flow.equilibrium()
            elif isinstance(flow, LinearFlow):
                point = torch.zeros(flow.latent_dim, dtype=torch.float64)
            else:
                return None
            state = point[: self.n_channels_].cpu().double()
            return self.scaler_.inverse_values(state).numpy()

    # Input

    def _scale(self, batch: SeriesBatch) -> SeriesBatch:
        return self.scaler_.transform(batch).to(dtype=DTYPES[self.dtype])

    def _states(self, name: str, states: Data) -> Tensor:
        """Checks states (..., C) in the units of the data and scales them."""
        try:
            raw = np.asarray(states, dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise ValueError(f"{name} must be numbers, got {states!r}") from problem
        if raw.ndim == 0 or raw.shape[-1] != self.n_channels_:
            raise ValueError(
                f"{name} must have {self.n_channels_} values per state, as in fit, "
                f"got shape {raw.shape}"
            )
        if not np.isfinite(raw).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        return self._to_model(self.scaler_.transform_values(torch.from_numpy(raw)))

    def _scale_elapsed(self, times: Data, batch: torch.Size) -> Tensor:
        """Checks times since the start, (Q,) or (*batch, Q), and scales them."""
        raw = as_query_times("times", times)
        if raw.ndim == 0 or (raw.ndim > 1 and raw.shape[:-1] != batch):
            raise ValueError(
                f"times must have shape (Q,) or {(*batch, 'Q')}, one row per start, "
                f"got {tuple(raw.shape)}"
            )
        return self._to_model(raw / self.scaler_.time_scale_)

    # Prediction

    def predict(self, y0: Data, times: Data = None) -> np.ndarray:
        """Returns trajectories from new starts.

        Parameters
        ----------
        y0 : array-like of shape (n_channels,) or (n_cases, n_channels)
            States at time 0. Without `times`, trajectories as in `fit` instead: each is rolled out
            from its first complete row.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Times since the start, in the units of the data, in any order; they may be negative.
            None takes the trajectories' own times.

        Returns
        -------
        ndarray of shape (Q, n_channels) or (n_cases, Q, n_channels)
            In the units of the data. Without `times`, rows beyond the length of a shorter
            trajectory are NaN, and the result is 2-D if `y0` is a 2-D table.
        """
        check_is_fitted(self)
        if times is None:
            return self._roll_out_series(y0)
        starts = self._states("y0", y0)
        if starts.ndim > 2:
            raise ValueError(
                f"y0 must have shape ({self.n_channels_},) or (n_cases, {self.n_channels_}), "
                f"got {tuple(starts.shape)}"
            )
        with torch.no_grad():
            states = self.model_.roll_out(starts, self._scale_elapsed(times, starts.shape[:-1]))
        return self._to_units(states)

    def _roll_out_series(self, X: Data) -> np.ndarray:
        table = is_table(X)
        batch = self._validate_series(X, reset=False)
        first = start_rows(batch)
        scaled = self.scaler_.transform(batch)
        case = torch.arange(len(batch))
        elapsed = scaled.times - scaled.times[case, first].unsqueeze(1)
        with torch.no_grad():
            states = self.model_.roll_out(
                self._to_model(scaled.values[case, first]),
                self._to_model(elapsed),
                scaled.present.to(self.device),
            )
        result = self._to_units(states)
        result[~batch.present.numpy()] = np.nan
        return result[..., 0] if table else result

    def _to_units(self, states: Tensor) -> np.ndarray:
        return self.scaler_.inverse_values(states.cpu().double()).numpy()

    def vector_field(self, y: Data) -> np.ndarray:
        """Returns the velocity of each state.

        If zeros are appended, it is the velocity of a trajectory at its start.

        Parameters
        ----------
        y : array-like of shape (..., n_channels)
            States, in the units of the data.

        Returns
        -------
        ndarray of shape (..., n_channels)
            In the units of the data per unit of time.
        """
        check_is_fitted(self)
        states = self._states("y", y)
        with torch.no_grad():
            velocity = self.model_.field(states)
        return self.scaler_.inverse_velocity(
            states.cpu().double(), velocity.cpu().double()
        ).numpy()

    def base_trajectory(self, y0: Data, times: Data) -> np.ndarray:
        """Returns the trajectories of the base ODE that `predict(y0, times)` maps to states.

        Parameters
        ----------
        y0, times
            As in `predict`.

        Returns
        -------
        ndarray of shape (Q, dim) or (n_cases, Q, dim)
            In base coordinates; `dim` is n_channels plus the number of zeros appended.
        """
        check_is_fitted(self)
        flow = self.model_.flow
        starts = self._states("y0", y0)
        elapsed = self._scale_elapsed(times, starts.shape[:-1])
        with torch.no_grad():
            lifted = self.model_.lift(starts)
            if isinstance(flow, MorphFlow):
                return flow.base(flow.warp.inverse(lifted), elapsed).cpu().double().numpy()
            if isinstance(flow, LinearFlow):
                return flow(lifted, elapsed).cpu().double().numpy()
        raise ValueError(f"ode must be of the morph family or 'linear', got {self.ode!r}")

    def morph(self, x: Data) -> np.ndarray:
        """Maps points from base coordinates to states.

        Parameters
        ----------
        x : array-like of shape (..., dim)
            Points in base coordinates, as `base_trajectory` returns them.

        Returns
        -------
        ndarray of shape (..., n_channels)
            In the units of the data.
        """
        check_is_fitted(self)
        flow = self.model_.flow
        if not isinstance(flow, MorphFlow):
            raise ValueError(f"ode must be of the morph family, got {self.ode!r}")
        points = self._to_model(torch.from_numpy(np.asarray(x, dtype=np.float64)))
        with torch.no_grad():
            return self._to_units(flow.warp(points)[..., : self.n_channels_])

    def score(self, X: Data, y: Data = None) -> float:
        """Returns minus the mean squared error of roll-outs, over values after the starts.

        Parameters
        ----------
        X : trajectories
            Each is rolled out from its first complete row, at its own times.
        y : ignored, default=None
            For pipelines.
        """
        check_is_fitted(self)
        batch = self._validate_series(X, reset=False)
        first = start_rows(batch)
        predicted = torch.from_numpy(self._roll_out_series(batch))
        is_after = torch.arange(batch.n_times) > first.unsqueeze(1)
        mask = batch.mask & is_after.unsqueeze(-1)
        if not mask.any():
            raise ValueError("X must have values after the starts of its trajectories, got none")
        return -float((predicted - batch.values)[mask].square().mean())


def check_trajectories(batch: SeriesBatch) -> SeriesBatch:
    """Returns `batch` if an ODE can be learned from it; raises a ValueError otherwise."""
    lengths = batch.lengths
    if bool((lengths < 2).any()):
        case = int((lengths < 2).long().argmax())
        raise ValueError(f"trajectory {case} of X must have at least two points, got one")
    is_empty = ~batch.mask.flatten(0, 1).any(0)
    if bool(is_empty.any()):
        channels = is_empty.nonzero().flatten().tolist()
        raise ValueError(f"X must have values in every channel, got none in {channels}")
    repeated = (batch.times.diff(dim=1) == 0) & batch.present[:, 1:]
    if bool(repeated.any()):
        case, row = repeated.nonzero()[0].tolist()
        raise ValueError(
            f"times of trajectory {case} of X must increase, "
            f"got {float(batch.times[case, row]):g} twice"
        )
    first = start_rows(batch)
    is_after = torch.arange(batch.n_times) > first.unsqueeze(1)
    if not bool((batch.observed & is_after).any()):
        raise ValueError(
            "X must have values after the first complete rows of its trajectories, got none"
        )
    return batch


def start_rows(batch: SeriesBatch) -> Tensor:
    """Returns (N,) the first complete row of each trajectory; raises if there is none."""
    complete = batch.mask.all(-1).any(1)
    if not bool(complete.all()):
        case = int((~complete).long().argmax())
        raise ValueError(
            f"trajectory {case} of X must have a row in which every channel was observed, "
            f"to start from, got none"
        )
    return first_complete(batch)
