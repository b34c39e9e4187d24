"""DynamicsRegressor: a few trajectories in, an ODE out, rolled out from any start."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from latent_morph.checks import check_device
from latent_morph.estimators.base import (
    COMMON_CONSTRAINTS,
    DTYPES,
    as_moments,
    counted_cases,
    is_table,
    resolve_flow,
)
from latent_morph.estimators.export import Program, dynamics_program
from latent_morph.estimators.persistence import FittedFiles
from latent_morph.flows import LinearFlow, MorphFlow, Recipe
from latent_morph.losses import RolloutLoss
from latent_morph.models.dynamics import DynamicsModel, first_complete, measured_fade
from latent_morph.models.linear_fit import (
    base_of,
    finite_differences,
    fitted_matrix,
    start_from,
)
from latent_morph.seeding import seeded
from latent_morph.series import SCALES, Data, SeriesBatch, SeriesScaler, as_series
from latent_morph.training import Examples, train
from latent_morph.training.callbacks import AnyCallback, History, ProgressLog, Settings

LOSSES = ("mae", "mse")
# What an ODE takes where nothing is asked for: wider than latent flows, since no decoder follows.
ODE_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"inn": {"blocks": 4, "width": 64}} for name in ("morph", "morph-real", "morph-stable")
} | {"morph-neural": {"inn": {"blocks": 4, "width": 64}, "method": "rk4"}}
# Flows that know what a stable base and a goal are.
_LINEAR_BASE = ("morph", "morph-real", "morph-stable", "linear")

_SHARED = (
    "ode",
    "ode_options",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "schedule",
    "gradient_clip",
    "max_epochs",
    "budget",
    "patience",
    "validation_fraction",
    "checkpoint",
    "resume",
    "device",
    "dtype",
    "random_state",
    "verbose",
    "callbacks",
)


class DynamicsRegressor(FittedFiles):
    """Learns an autonomous ODE from trajectories and rolls it out from new starts.

    `predict` gives trajectories from any starts at any times, `vector_field` the velocity of any
    state. With the default ODE, a linear one seen through an invertible network, a roll-out is a
    closed form, and `stable=True` makes every roll-out end at one point, the goal if one is given.

    Parameters
    ----------
    ode : str or callable, default="morph"
        Name of a flow in `latent_morph.FLOWS`, or a recipe `(dim, **options) -> Flow`.
    ode_options : dict or None, default=None
        Options of the flow. None takes, for the `morph` family, four coupling blocks of 64 units,
        and for `"morph-neural"` also `rk4` for its base; for the others their own defaults.
    augment : int or None, default=None
        Number of zeros appended to a state; None appends as many as a state has dimensions. With
        zeros appended, trajectories of the data may cross.
    stable : bool, default=False
        Asymptotically stable by construction: every trajectory ends at `equilibrium_`, from
        wherever it starts. Needs an ODE with a linear base.
    goal : array-like of shape (n_channels,), "ends" or None, default=None
        Where the equilibrium sits, exactly; "ends" for the mean of the last points of the
        trajectories. None lets it be learned. Needs an ODE with a linear base.
    scale : {"standard", "shared", "log", "none"}, default="standard"
        How values are scaled for training, and so which errors count: each channel by its
        standard deviation, all by one number, by their signed logarithm (channels of small or
        widely varying values count as much as others), or not at all.
    loss : {"mae", "mse"}, default="mae"
        Mean absolute or squared error of the roll-outs, in scaled units.
    restarts : int, default=2
        In each step of training, also roll out from so many random points of each trajectory:
        each is a start of its own. 0 learns from the trajectories' own starts alone.
    start_noise : float, default=0.0
        Standard deviation of noise on the starts in training, in scaled units.
    start_spread : float, default=0.0
        Standard deviation of shifts of the starts in training, in scaled units, that the rest of
        the trajectory follows by less and less up to nothing at its end: what somebody would have
        demonstrated who began a little further off and went for the same goal. For few
        demonstrations of a motion with a goal.
    spread_fade : float or "measured", default="measured"
        How fast such a shift fades: after a share s of the time, (1 - s) to this power is left of
        it. 1 fades evenly; with 4 the motion is soon where the others are. By default the power
        is taken that tells best, of the trajectories to learn from, how those that start apart
        come together.
    velocity_weight : float, default=0.0
        Weight of the error of the vector field against finite differences of the data.
    linear_start : bool, default=True
        Let a linear base start as the least-squares fit to finite differences of the data.
    optimizer : {"adamw", "adam", "adamax"}, default="adamw"
        The optimiser.
    learning_rate : float, default=5e-3
        Its highest learning rate.
    weight_decay : float, default=1e-4
        Its weight decay.
    schedule : {"one-cycle", "exponential", "constant"}, default="one-cycle"
        How the learning rate moves.
    gradient_clip : float or None, default=1.0
        Longest gradient.
    max_epochs : int, default=1000
        Steps of training. All trajectories are in every step.
    budget : float or None, default=None
        Seconds after which training ends, refitting included.
    patience : int or None, default=None
        End when so many steps brought no better validation score.
    validation_fraction : float, default=0.0
        Share of the trajectories held out to choose the best step, at least one where there are
        three or more. 0 keeps the last step.
    refit : bool, default=True
        Where trajectories were held out, train anew on all of them for as many steps as were best.
    checkpoint : str, Path or None, default=None
        File to save the state of training in.
    resume : bool, default=False
        Continue from `checkpoint` if it exists.
    device : str, default="cpu"
        Where to train and predict.
    dtype : {"float32", "float64"}, default="float32"
        Precision of training; answers have double precision in any case.
    random_state : int, RandomState instance or None, default=None
        Seed of the start, of restarts and of the held-out choice.
    verbose : int or bool, default=0
        Log a line a step through `logging`: to standard error, unless logging was set up to go
        elsewhere.
    callbacks : sequence of Callback or callable, default=None
        Told how training goes: `EarlyStopping`, `Checkpoint`, `CSVLog`, `TensorBoardLog`, a
        `latent_morph.Callback` of one's own, or a function `(history, settings)` to call after
        every step. With `refit` they see two runs. Not saved with the model.

    Attributes
    ----------
    equilibrium_ : ndarray of shape (n_channels,) or None
        Where the base's equilibrium is seen; None if the ODE has no linear base.
    model_ : torch module
        The flow and its zeros.
    scaler_ : SeriesScaler
        What scales values and times.
    history_ : list of dict
        One row a step, of the run that chose the number of steps where there were two.
    best_epoch_ : int
        The step whose weights, or number, were kept.
    n_iter_ : int
        Steps run.
    n_learn_, n_validation_ : int
        Trajectories learned from and validated on.
    n_channels_ : int
        Dimensions of a state.
    n_features_in_ : int
        Columns of a 2-D X, otherwise the channels.
    fitted_on_table_ : bool
        Whether X was 2-D: a 2-D X asked about later must then have as many columns.

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        name: COMMON_CONSTRAINTS[name] for name in _SHARED
    } | {
        "augment": [Interval(Integral, 0, None, closed="left"), None],
        "stable": ["boolean"],
        "goal": ["array-like", StrOptions({"ends"}), None],
        "scale": [StrOptions(set(SCALES))],
        "loss": [StrOptions(set(LOSSES))],
        "restarts": [Interval(Integral, 0, None, closed="left")],
        "start_noise": [Interval(Real, 0, None, closed="left")],
        "start_spread": [Interval(Real, 0, None, closed="left")],
        "spread_fade": [Interval(Real, 0, None, closed="neither"), StrOptions({"measured"})],
        "velocity_weight": [Interval(Real, 0, None, closed="left")],
        "linear_start": ["boolean"],
        "refit": ["boolean"],
    }

    fitted_on_table_: bool

    def __init__(
        self,
        *,
        ode: str | Recipe = "morph",
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

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "history_")  # written last: a fit that was broken off does not count

    # Fitting

    def fit(self, X: Data, y: Data = None, sample_weight: Data = None) -> Self:
        """Learns from trajectories.

        Parameters
        ----------
        X : trajectories
            Anything `latent_morph.as_series` takes: irregular times, unequal lengths and gaps are
            fine. A trajectory is rolled out from its first row without a gap.
        y : ignored
            For pipelines.
        sample_weight : array-like of shape (n_cases,), default=None
            How much each trajectory counts, in scales, goal, loss and validation: 2 is as good as
            a copy more, 0 as good as its absence. Only their proportions matter.
        """
        self._validate_params()
        check_device("device", self.device)
        if self.resume and not isinstance(self.random_state, Integral):
            raise ValueError(f"resume needs an integer random_state, got {self.random_state!r}")
        batch = check_trajectories(self._series(X, reset=True))
        there, weight, _ = counted_cases(batch, sample_weight, None)
        if weight is not None:
            batch = check_trajectories(batch[there])
        factors = None if weight is None else torch.from_numpy(weight / weight.mean())
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        learn, check = held_out(len(batch), self.validation_fraction, seed)
        settings = self._settings()
        if len(check) and self.refit and self.budget is not None:
            settings = replace(settings, budget=self.budget / 2)
        whole = Examples(batch, weight=factors)
        history = self._train(whole[learn], whole[check] if len(check) else None, seed, settings)
        if len(check) and self.refit:
            again = replace(settings, max_epochs=max(1, history.best_epoch), patience=None)
            self._train(whole, None, seed, replace(again, checkpoint=None, resume=False))
        self.n_learn_, self.n_validation_ = len(learn), len(check)
        self._finish(history)
        return self

    def _train(
        self, learn: Examples, check: Examples | None, seed: int, settings: Settings
    ) -> History:
        """Scales, builds and trains from scratch on trajectories in the units of the data."""
        center = self._goal(learn)
        self.scaler_ = SeriesScaler(self.scale).fit(learn.seen, center=center, weight=learn.weight)
        scaled = self._scaled(learn.seen)
        self._remember_params()
        with seeded(seed):
            self.model_ = self._build().to(self.device, DTYPES[self.dtype])
        if self.start_spread:
            self.model_.spread_fade = self._fade(scaled, learn.weight)
        linear = base_of(self.model_.flow)
        if self.linear_start and linear is not None:
            states, velocity, case = finite_differences(scaled)
            weight = None if learn.weight is None else learn.weight[case]
            start_from(linear, fitted_matrix(states, velocity, weight))
        return train(
            self.model_,
            RolloutLoss(self.loss, velocity_weight=self.velocity_weight),
            self._scaled_examples(learn),
            None if check is None else self._scaled_examples(check),
            self._validation_score,
            replace(settings, batch_size=len(learn)),
            seed=seed,
            callbacks=[*([ProgressLog()] if self.verbose else []), *(self.callbacks or ())],
        )

    def _fade(self, scaled: SeriesBatch, weight: Tensor | None) -> float:
        if isinstance(self.spread_fade, str):
            return measured_fade(scaled, weight)
        return self.spread_fade

    def _scaled_examples(self, raw: Examples) -> Examples:
        weight = None if raw.weight is None else raw.weight.to(DTYPES[self.dtype])
        return Examples(self._scaled(raw.seen), weight=weight).to(self.device)

    def _settings(self) -> Settings:
        return Settings(
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            gradient_clip=self.gradient_clip,
            batch_size=1,
            max_epochs=self.max_epochs,
            budget=self.budget,
            patience=self.patience,
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
            resume=self.resume,
        )

    def _goal(self, learn: Examples) -> Tensor | None:
        """(C,) where the equilibrium is to be, in the units of the data, or None."""
        if self.goal is None:
            return None
        if isinstance(self.goal, str):
            batch = learn.seen
            rows = batch.mask.all(-1).long() * torch.arange(1, batch.n_times + 1)
            ends = batch.values[torch.arange(len(batch)), rows.argmax(1)]
            if learn.weight is None:
                return ends.mean(0)
            return learn.weight @ ends / learn.weight.sum()
        try:
            point = torch.as_tensor(np.asarray(self.goal, dtype=np.float64))
        except (TypeError, ValueError) as problem:
            raise ValueError(f"goal must be numbers, 'ends' or None: {problem}") from problem
        if point.shape != (self.n_channels_,):
            raise ValueError(
                f"goal must have shape ({self.n_channels_},) as a state has, "
                f"got {tuple(point.shape)}"
            )
        if not torch.isfinite(point).all():
            raise ValueError(f"goal must be finite, got {point.tolist()}")
        return point

    def _build(self) -> DynamicsModel:
        dim = self.n_channels_ + (self.n_channels_ if self.augment is None else self.augment)
        options = self.ode_options
        if options is None and isinstance(self.ode, str):
            options = ODE_DEFAULTS.get(self.ode)
        options = dict(options or {})
        if self.stable or self.goal is not None:
            asked = "stable=True" if self.stable else "goal"
            if isinstance(self.ode, str) and self.ode not in _LINEAR_BASE:
                raise ValueError(
                    f"{asked} needs an ode with a linear base, one of "
                    f"{', '.join(_LINEAR_BASE)}; got {self.ode!r}"
                )
            if self.stable:
                options["stable"] = True
            if self.goal is not None and self.ode != "linear":
                options["goal"] = [0.0] * dim  # the scaler's origin is the goal
        flow = resolve_flow(self.ode, options, "ode")(dim)
        return DynamicsModel(
            flow,
            self.n_channels_,
            restarts=self.restarts,
            start_noise=self.start_noise,
            start_spread=self.start_spread,
            with_velocity=self.velocity_weight > 0,
        )

    def _validation_score(self, model: DynamicsModel, examples: Examples) -> float:
        """Minus the mean squared error of roll-outs, in the units of the data."""
        output = model(examples.seen)
        inverse = self.scaler_.inverse_values
        error = inverse(output.states.double()) - inverse(output.target.double())
        squares = error[output.mask].square()
        if examples.weight is None:
            return -float(squares.mean())
        factor = examples.weight.double().view(-1, 1, 1).expand_as(error)[output.mask]
        return -float((factor * squares).sum() / factor.sum())

    def _finish(self, history: History) -> None:
        self.model_ = self._precise(self.model_).eval()
        self.equilibrium_ = self._equilibrium()
        self.best_epoch_ = history.best_epoch
        self.n_iter_ = len(history.rows)
        self.history_ = history.rows

    def _new_model(self) -> DynamicsModel:
        return self._precise(self._build())

    def _program(self) -> Program:
        return dynamics_program(self.model_, self.scaler_)

    def _precise(self, model: DynamicsModel) -> DynamicsModel:
        # Trained in single precision as a rule, but answers are worth double: starts and goals to
        # the digit.
        return model.to(self._place().device, self._place().dtype)

    def _place(self) -> Tensor:
        """A tensor on the device and in the precision of the answers."""
        dtype = torch.float32 if self.device.startswith("mps") else torch.float64
        return torch.zeros((), dtype=dtype, device=self.device)

    def _equilibrium(self) -> np.ndarray | None:
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

    def _series(self, X: Data, *, reset: bool) -> SeriesBatch:
        if isinstance(X, (list, tuple)) and not len(X):
            raise ValueError("X has no trajectories; wanted at least one")
        table = is_table(X)
        rules: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        if table and (reset or self.fitted_on_table_):
            least = 2 if reset else 1  # at predict, a table of another width is told so
            X = validate_data(self, X, reset=reset, ensure_min_features=least, **rules)
        elif table:
            X = check_array(X, estimator=self, **rules)
        batch = as_series(X, dtype=torch.float64).to("cpu", torch.float64)
        if not len(batch):
            raise ValueError("X has no trajectories; wanted at least one")
        if reset:
            self.__dict__.pop("history_", None)  # what was fitted before no longer holds
            self.fitted_on_table_ = table
            self.n_channels_ = batch.n_channels
            self.n_features_in_ = X.shape[1] if table else batch.n_channels
            if not table and hasattr(self, "feature_names_in_"):
                del self.feature_names_in_  # of an earlier fit
        elif batch.n_channels != self.n_channels_:
            raise ValueError(
                f"X has {batch.n_channels} channels, but {type(self).__name__} was fitted with "
                f"{self.n_channels_}"
            )
        return batch

    def _scaled(self, batch: SeriesBatch) -> SeriesBatch:
        return self.scaler_.transform(batch).to(dtype=DTYPES[self.dtype])

    def _states(self, name: str, states: Data) -> Tensor:
        """(..., C) in scaled units from states in the units of the data."""
        try:
            raw = np.asarray(states, dtype=np.float64)
        except (TypeError, ValueError) as problem:
            raise ValueError(f"{name} must be numbers: {problem}") from problem
        if raw.ndim == 0 or raw.shape[-1] != self.n_channels_:
            raise ValueError(
                f"{name} must have {self.n_channels_} values a state, as in fit; "
                f"got shape {raw.shape}"
            )
        if not np.isfinite(raw).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
        return self.scaler_.transform_values(torch.from_numpy(raw)).to(self._place())

    def _elapsed(self, times: Data, batch: torch.Size) -> Tensor:
        raw = as_moments("times", times)
        if raw.ndim == 0 or (raw.ndim > 1 and raw.shape[:-1] != batch):
            raise ValueError(
                f"times must have shape (Q,) or {(*batch, 'Q')}, one row a start; "
                f"got {tuple(raw.shape)}"
            )
        return (raw / self.scaler_.time_scale_).to(self._place())

    # Answers

    def predict(self, y0: Data, times: Data = None) -> np.ndarray:
        """Trajectories from new starts.

        Parameters
        ----------
        y0 : array-like of shape (n_channels,) or (n_cases, n_channels)
            States at time 0. Without `times`, trajectories in any accepted form instead: each is
            rolled out from its first row without a gap.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Since the start, in the units of the data, in any order; negative ones run backwards.
            None takes the trajectories' own times.

        Returns
        -------
        ndarray of shape (Q, n_channels) or (n_cases, Q, n_channels)
            In the units of the data. Without `times`, rows beyond the length of a shorter
            trajectory are NaN, and a 2-D table gets a 2-D answer.
        """
        check_is_fitted(self)
        if times is None:
            return self._rolled_out(y0)
        starts = self._states("y0", y0)
        if starts.ndim > 2:
            raise ValueError(
                f"y0 must have shape ({self.n_channels_},) or (n_cases, {self.n_channels_}), "
                f"got {tuple(starts.shape)}"
            )
        with torch.no_grad():
            states = self.model_.roll_out(starts, self._elapsed(times, starts.shape[:-1]))
        return self._in_units(states)

    def _rolled_out(self, X: Data) -> np.ndarray:
        table = is_table(X)
        batch = self._series(X, reset=False)
        first = start_rows(batch)
        scaled = self.scaler_.transform(batch)
        case = torch.arange(len(batch))
        elapsed = scaled.times - scaled.times[case, first].unsqueeze(1)
        with torch.no_grad():
            states = self.model_.roll_out(
                scaled.values[case, first].to(self._place()),
                elapsed.to(self._place()),
                scaled.present.to(self.device),
            )
        answer = self._in_units(states)
        answer[~batch.present.numpy()] = np.nan
        return answer[..., 0] if table else answer

    def _in_units(self, states: Tensor) -> np.ndarray:
        return self.scaler_.inverse_values(states.cpu().double()).numpy()

    def vector_field(self, y: Data) -> np.ndarray:
        """The velocity of each state.

        With zeros appended it is the velocity with which a trajectory that starts there sets out.

        Parameters
        ----------
        y : array-like of shape (..., n_channels)
            States, in the units of the data.

        Returns
        -------
        ndarray of shape (..., n_channels)
            In the units of the data a unit of time.
        """
        check_is_fitted(self)
        states = self._states("y", y)
        with torch.no_grad():
            velocity = self.model_.field(states)
        return self.scaler_.inverse_velocity(
            states.cpu().double(), velocity.cpu().double()
        ).numpy()

    def base_trajectory(self, y0: Data, times: Data) -> np.ndarray:
        """What the base ODE does behind `predict(y0, times)`, in the base's own coordinates.

        Parameters
        ----------
        y0, times
            As in `predict`.

        Returns
        -------
        ndarray of shape (Q, dim) or (n_cases, Q, dim)
            `dim` is n_channels plus the zeros appended; no units.
        """
        check_is_fitted(self)
        flow = self.model_.flow
        starts = self._states("y0", y0)
        elapsed = self._elapsed(times, starts.shape[:-1])
        with torch.no_grad():
            lifted = self.model_.lift(starts)
            if isinstance(flow, MorphFlow):
                return flow.base(flow.warp.inverse(lifted), elapsed).cpu().double().numpy()
            if isinstance(flow, LinearFlow):
                return flow(lifted, elapsed).cpu().double().numpy()
        raise ValueError(f"ode {self.ode!r} has no base ODE; the morph family has")

    def morph(self, x: Data) -> np.ndarray:
        """Where points of the base's space are seen.

        Parameters
        ----------
        x : array-like of shape (..., dim)
            Points in the base's own coordinates, as `base_trajectory` gives them.

        Returns
        -------
        ndarray of shape (..., n_channels)
            In the units of the data.
        """
        check_is_fitted(self)
        flow = self.model_.flow
        if not isinstance(flow, MorphFlow):
            raise ValueError(f"ode {self.ode!r} has no base ODE; the morph family has")
        points = torch.from_numpy(np.asarray(x, dtype=np.float64)).to(self._place())
        with torch.no_grad():
            return self._in_units(flow.warp(points)[..., : self.n_channels_])

    def score(self, X: Data, y: Data = None) -> float:
        """Minus the mean squared error of roll-outs over all values observed after the starts.

        Parameters
        ----------
        X : trajectories
            Each is rolled out from its first row without a gap, at its own times.
        y : ignored, default=None
            For pipelines.
        """
        check_is_fitted(self)
        batch = self._series(X, reset=False)
        first = start_rows(batch)
        guess = torch.from_numpy(self._rolled_out(batch))
        after = torch.arange(batch.n_times) > first.unsqueeze(1)
        mask = batch.mask & after.unsqueeze(-1)
        if not mask.any():
            raise ValueError("X has nothing observed after the starts of its trajectories")
        return -float((guess - batch.values)[mask].square().mean())


def check_trajectories(batch: SeriesBatch) -> SeriesBatch:
    """Returns `batch` if an ODE can be learned from it; otherwise says what is wrong with it."""
    lengths = batch.lengths
    if bool((lengths < 2).any()):
        case = int((lengths < 2).long().argmax())
        raise ValueError(f"trajectory {case} of X has one point; wanted at least two")
    never = ~batch.mask.flatten(0, 1).any(0)
    if bool(never.any()):
        channels = never.nonzero().flatten().tolist()
        raise ValueError(f"X has no value at all in channel {channels}; wanted some in each")
    repeated = (batch.times.diff(dim=1) == 0) & batch.present[:, 1:]
    if bool(repeated.any()):
        case, row = repeated.nonzero()[0].tolist()
        raise ValueError(
            f"trajectory {case} of X has time {float(batch.times[case, row]):g} twice; "
            f"a state has one value at a time"
        )
    first = start_rows(batch)
    after = torch.arange(batch.n_times) > first.unsqueeze(1)
    if not bool((batch.observed & after).any()):
        raise ValueError(
            "X has nothing observed after the first complete rows of its trajectories; "
            "wanted at least one value"
        )
    return batch


def start_rows(batch: SeriesBatch) -> Tensor:
    """(N,) the first complete row of each trajectory, which has to be there."""
    complete = batch.mask.all(-1).any(1)
    if not bool(complete.all()):
        case = int((~complete).long().argmax())
        raise ValueError(
            f"trajectory {case} of X has no row in which every channel was observed, "
            f"so there is no state to start from"
        )
    return first_complete(batch)


def held_out(n_cases: int, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectories to learn from and to validate on: one at least, where there are three."""
    everything = np.arange(n_cases)
    if fraction == 0 or n_cases < 3:
        return everything, everything[:0]
    n_check = min(max(1, round(fraction * n_cases)), n_cases - 1)
    order = np.random.RandomState(seed).permutation(n_cases)
    return np.sort(order[n_check:]), np.sort(order[:n_check])
