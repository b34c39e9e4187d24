"""What the latent ODE estimators share: input, splitting, building, fitting, decoding, files."""

from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
import torch
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor, nn

from latent_morph.bijections.compiling import compile_warps
from latent_morph.checks import check_choice, check_count, check_device
from latent_morph.descent import OPTIMIZERS
from latent_morph.encoders import Encoder, GRUODEEncoder, MorphEncoder
from latent_morph.estimators.persistence import FittedFiles
from latent_morph.flows import FLOWS, Recipe
from latent_morph.losses import Objective
from latent_morph.models import LatentODE, LatentOutput
from latent_morph.models.decoders import HEADS, Decoder, PointHead, SeriesHead
from latent_morph.seeding import seeded
from latent_morph.series import Data, SeriesBatch, SeriesScaler, as_series
from latent_morph.training import SCHEDULES, Examples, train
from latent_morph.training.callbacks import AnyCallback, History, ProgressLog, Settings

ENCODERS = ("morph", "gru-ode")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# A fading memory: what lies further back than the span of a series counts for little.
ENCODER_ODE_DEFAULTS: dict[str, dict[str, Any]] = {
    "linear": {"stable": True, "eigenvectors": "identity"},
}

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")

COMMON_CONSTRAINTS: dict[str, list[Any]] = {
    "ode": [str, callable],
    "ode_options": [dict, None],
    "encoder": [StrOptions(set(ENCODERS))],
    "encoder_layers": [_COUNT],
    "encoder_modes": [_COUNT],
    "dropout": [Interval(Real, 0, 1, closed="left")],
    "pool": [_COUNT],
    "encoder_ode": [str, callable],
    "encoder_ode_options": [dict, None],
    "bidirectional": ["boolean"],
    "latent_dim": [_COUNT],
    "hidden_dim": [_COUNT],
    "decoder_width": [_COUNT],
    "decoder_depth": [Interval(Integral, 0, None, closed="left")],
    "noise_std": [_POSITIVE, StrOptions({"learned"})],
    "reconstruction_weight": [_NOT_NEGATIVE],
    "kl_weight": [_NOT_NEGATIVE],
    "kl_warmup": [Interval(Real, 0, 1, closed="both")],
    "sample_z0": ["boolean"],
    "time_origin": [StrOptions({"case", "absolute"})],
    "optimizer": [StrOptions(set(OPTIMIZERS))],
    "learning_rate": [_POSITIVE],
    "weight_decay": [_NOT_NEGATIVE],
    "schedule": [StrOptions(set(SCHEDULES))],
    "gradient_clip": [_POSITIVE, None],
    "batch_size": [_COUNT],
    "max_epochs": [_COUNT],
    "budget": [_POSITIVE, None],
    "patience": [_COUNT, None],
    "validation_fraction": [Interval(Real, 0, 1, closed="left")],
    "checkpoint": [str, Path, None],
    "resume": ["boolean"],
    "compile": ["boolean"],
    "device": [str],
    "dtype": [StrOptions(set(DTYPES))],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "callbacks": ["array-like", None],
}
CLASSIFIER_CONSTRAINTS: dict[str, list[Any]] = COMMON_CONSTRAINTS | {
    "head": [StrOptions(set(HEADS))],
    "classification_weight": [_NOT_NEGATIVE],
    "class_weight": [dict, StrOptions({"balanced"}), None],
}


class LatentODEBase(FittedFiles):
    """The shared skeleton; subclasses own their parameters, labels and answers."""

    _head_type: ClassVar[type[PointHead] | type[SeriesHead] | None] = None

    # Parameters that methods here use; each subclass lists them in its own constructor.
    ode: str | Recipe
    ode_options: dict[str, Any] | None
    encoder: str
    encoder_layers: int
    encoder_modes: int
    dropout: float
    pool: int
    encoder_ode: str | Recipe
    encoder_ode_options: dict[str, Any] | None
    bidirectional: bool
    latent_dim: int
    hidden_dim: int
    decoder_width: int
    decoder_depth: int
    noise_std: float | str
    reconstruction_weight: float
    kl_weight: float
    kl_warmup: float
    sample_z0: bool
    time_origin: str
    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    gradient_clip: float | None
    batch_size: int
    max_epochs: int
    budget: float | None
    patience: int | None
    validation_fraction: float
    checkpoint: str | Path | None
    resume: bool
    compile: bool
    device: str
    dtype: str
    random_state: Any
    verbose: int | bool
    callbacks: Sequence[AnyCallback] | None

    fitted_on_table_: bool

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        # Written last: a fit that was broken off does not count.
        return hasattr(self, "history_")

    # Input

    def _series(self, X: Data, *, reset: bool) -> SeriesBatch:
        """Converts X; plain tables also go through scikit-learn's own checks.

        Values stay in double precision until they are scaled.
        """
        table = is_table(X)
        rules: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        if table and (reset or self.fitted_on_table_):
            X = validate_data(self, X, reset=reset, **rules)
        elif table:  # series, unlike tables, are free to differ in length
            X = check_array(X, estimator=self, **rules)
        batch = as_series(X, dtype=torch.float64).to("cpu")
        if not len(batch):
            raise ValueError("X has no series; wanted at least one")
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

    def _asked(self, X: Data) -> SeriesBatch:
        """The series that a fitted estimator is asked about, in the units of the data."""
        check_is_fitted(self)
        return self._series(X, reset=False)

    def _scale(self, batch: SeriesBatch) -> SeriesBatch:
        return self.scaler_.transform(batch).to(dtype=self._precision())

    def _precision(self) -> torch.dtype:
        """That of the model that is there, whatever the parameters were set to since."""
        return DTYPES[self._fitted_with["dtype"]]

    def _query_times(self, times: Data, batch: SeriesBatch) -> Tensor:
        """Raw query times, (Q,) shared or (N, Q), to scaled ones (N, Q)."""
        raw, starts = as_moments("times", times), batch.times[:, 0]
        if raw.ndim not in (1, 2) or (raw.ndim == 2 and len(raw) != len(starts)):
            raise ValueError(
                f"times must have shape (Q,) or ({len(starts)}, Q), got {tuple(raw.shape)}"
            )
        return self.scaler_.scale_times(raw, starts).expand(len(starts), -1)

    # Fitting

    def _fit(
        self,
        batch: SeriesBatch,
        *,
        target: SeriesBatch | None = None,
        labels: Tensor | None = None,
        strata: np.ndarray | None = None,
        groups: Data = None,
        weight: np.ndarray | None = None,
        class_weight: Tensor | None = None,
        keep: float | None = None,
        target_points: int | None = None,
    ) -> Self:
        check_device("device", self.device)
        self._remember_params()
        if self.resume and not isinstance(self.random_state, Integral):
            # Another seed would hold out other cases, some of them learned from before.
            raise ValueError(f"resume needs an integer random_state, got {self.random_state!r}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        learn, check = holdout(len(batch), self.validation_fraction, seed, strata, groups)
        factors = None if weight is None else torch.from_numpy(weight / weight[learn].mean())
        self.scaler_ = SeriesScaler(origin=self.time_origin).fit(
            batch[learn] if target is None else target[learn],
            weight=None if factors is None else factors[learn],
        )
        if target is not None:
            target = self._scaled_target(target, batch.times[:, 0])
        if factors is not None:
            factors = factors.to(self._precision())
        examples = Examples(self._scale(batch), target, labels, factors).to(self.device)
        with seeded(seed):
            self.model_ = self._new_model().to(self.device)
            if self.compile:
                compile_warps(self.model_)
        if class_weight is not None:
            class_weight = class_weight.to(self.device, self._precision())
        settings = Settings(
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            gradient_clip=self.gradient_clip,
            batch_size=self.batch_size,
            max_epochs=self.max_epochs,
            budget=self.budget,
            patience=self.patience,
            kl_warmup=self.kl_warmup,
            sample_z0=self.sample_z0,
            keep=keep,
            target_points=target_points,
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
            resume=self.resume,
        )
        history = train(
            self.model_,
            self._objective(),
            examples[learn],
            examples[check] if len(check) else None,
            lambda model, part: self._validation_score(model, part, class_weight),
            settings,
            class_weight=class_weight,
            seed=seed,
            callbacks=[*([ProgressLog()] if self.verbose else []), *(self.callbacks or ())],
        )
        self.n_learn_, self.n_validation_ = len(learn), len(check)
        self.model_.eval()
        self._finish(history)
        return self

    def _scaled_target(self, target: SeriesBatch, starts: Tensor) -> SeriesBatch:
        """The target in scaled units, on the clock of the series that the encoder sees."""
        scaled = self._scale(target)
        times = self.scaler_.scale_times(target.times, starts)
        return SeriesBatch(scaled.values, times, scaled.mask, scaled.lengths)

    def _finish(self, history: History) -> None:
        self.best_epoch_ = history.best_epoch
        self.n_iter_ = len(history.rows)
        self.history_ = history.rows

    def _objective(self) -> Objective:
        return Objective(
            reconstruction_weight=self.reconstruction_weight,
            kl_weight=self.kl_weight,
            classification_weight=getattr(self, "classification_weight", 0.0),
        )

    def _validation_score(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> float:
        """What picks the best epoch, higher being better."""
        raise NotImplementedError

    def _n_classes(self) -> int:
        return 0

    def _new_model(self) -> LatentODE:
        encoder = self._build_encoder()
        flow = resolve_flow(self.ode, self.ode_options, "ode")(self.latent_dim)
        decoder = Decoder(
            self.latent_dim,
            self.n_channels_,
            width=self.decoder_width,
            depth=self.decoder_depth,
            noise_std=self.noise_std,
        )
        head: nn.Module | None = None
        if self._head_type is not None:
            head = self._head_type(
                self.latent_dim,
                encoder.state_dim,
                self._n_classes(),
                head=getattr(self, "head"),  # noqa: B009  # a classifier's parameter
                width=self.hidden_dim,
            )
        model = LatentODE(encoder, flow, decoder, head)  # type: ignore[arg-type]
        return model.to(DTYPES[self.dtype])

    def _build_encoder(self) -> Encoder:
        options = self.encoder_ode_options
        if options is None and isinstance(self.encoder_ode, str):
            options = ENCODER_ODE_DEFAULTS.get(self.encoder_ode)
        recipe = resolve_flow(self.encoder_ode, options, "encoder_ode")
        if self.encoder == "morph":
            return MorphEncoder(
                self.n_channels_,
                self.latent_dim,
                hidden_dim=self.hidden_dim,
                layers=self.encoder_layers,
                modes=self.encoder_modes,
                dropout=self.dropout,
                pool=self.pool,
            )
        return GRUODEEncoder(
            self.n_channels_,
            self.latent_dim,
            recipe,
            hidden_dim=self.hidden_dim,
            bidirectional=self.bidirectional,
        )

    # Answers

    def _parts(self, batch: SeriesBatch) -> Iterator[tuple[slice, SeriesBatch]]:
        """Series some at a time, and scaled: memory stays bounded however many there are."""
        size = max(self.batch_size, 256)
        for start in range(0, len(batch), size):
            chosen = slice(start, start + size)
            yield chosen, self._scale(batch[chosen]).to(self.device)

    def _outputs(self, batch: SeriesBatch) -> Iterator[tuple[slice, LatentOutput]]:
        """The model's outputs at the series' own times, some series at a time."""
        for chosen, part in self._parts(batch):
            with torch.inference_mode():
                yield chosen, self.model_(part.trim())

    @overload
    def reconstruct(
        self, X: Data, times: Data = ..., *, n_samples: int = ..., return_std: Literal[False] = ...
    ) -> np.ndarray: ...

    @overload
    def reconstruct(
        self, X: Data, times: Data = ..., *, n_samples: int = ..., return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def reconstruct(
        self, X: Data, times: Data = ..., *, n_samples: int = ..., return_std: bool
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    def reconstruct(
        self,
        X: Data,
        times: Data = None,
        *,
        n_samples: int = 32,
        return_std: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Decodes each series at any times.

        Parameters
        ----------
        X : series
            What was observed.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            When to decode, in the units of the data; the series' own times by default.
        n_samples : int, default=32
            Draws from the posterior behind the mean and the standard deviation, alike for every
            series and every call. 0 decodes the posterior's mean, and the standard deviation is
            that of the noise alone.
        return_std : bool, default=False
            Also return the standard deviation: spread of the draws and observation noise together.

        Returns
        -------
        mean : ndarray of shape (n_cases, Q, n_channels)
            In the units of the data. Rows beyond the length of a shorter series are NaN where
            `times` is None.
        std : ndarray of the same shape
            If `return_std`.
        """
        check_count("n_samples", n_samples, least=0)
        batch = self._asked(X)
        query = None if times is None else self._query_times(times, batch)
        means, spreads = [], []
        for chosen, part in self._parts(batch):
            asked = part.times if query is None else query[chosen].to(self.device)
            mean, spread = self._moments(part, asked, n_samples)
            means.append(mean.cpu())
            spreads.append(spread.cpu())
        mean = self.scaler_.inverse_values(torch.cat(means).double())
        std = self.scaler_.inverse_scale(torch.cat(spreads).double())
        if times is None:
            mean = mean.masked_fill(~batch.present.unsqueeze(-1), torch.nan)
            std = std.masked_fill(~batch.present.unsqueeze(-1), torch.nan)
        return (mean.numpy(), std.numpy()) if return_std else mean.numpy()

    @overload
    def forecast(
        self, X: Data, ahead: Data, *, n_samples: int = ..., return_std: Literal[False] = ...
    ) -> np.ndarray: ...

    @overload
    def forecast(
        self, X: Data, ahead: Data, *, n_samples: int = ..., return_std: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...

    @overload
    def forecast(
        self, X: Data, ahead: Data, *, n_samples: int = ..., return_std: bool
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    def forecast(
        self,
        X: Data,
        ahead: Data,
        *,
        n_samples: int = 32,
        return_std: bool = False,
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Decodes each series `ahead` of its own last time.

        Parameters
        ----------
        X : series
            What was observed.
        ahead : array-like of shape (Q,)
            Times after the last one of each series.
        n_samples, return_std
            As in `reconstruct`.
        """
        batch = self._asked(X)
        steps = as_moments("ahead", ahead)
        if steps.ndim != 1:
            raise ValueError(f"ahead must have shape (Q,), got {tuple(steps.shape)}")
        times = batch.times[:, -1:] + steps
        return self.reconstruct(batch, times, n_samples=n_samples, return_std=return_std)

    def latent_trajectory(self, X: Data, times: Data = None) -> np.ndarray:
        """The latent state of each series at any times: the ODE from the posterior's mean.

        Parameters
        ----------
        X : series
            What was observed.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            When, in the units of the data; the series' own times by default.

        Returns
        -------
        ndarray of shape (n_cases, Q, latent_dim)
            Rows beyond the length of a shorter series are NaN where `times` is None.
        """
        batch = self._asked(X)
        query = None if times is None else self._query_times(times, batch)
        states = []
        with torch.inference_mode():
            for chosen, part in self._parts(batch):
                asked = part.times if query is None else query[chosen].to(self.device)
                z0 = self.model_.encoder(part.trim()).mean
                states.append(self.model_.flow(z0, asked).cpu())
        answer = torch.cat(states)
        if times is None:
            answer = answer.masked_fill(~batch.present.unsqueeze(-1), torch.nan)
        return answer.numpy()

    def sample(self, n_cases: int, times: Data, *, random_state: Any = None) -> np.ndarray:  # noqa: ANN401
        """Draws new series from the model: z0 from the prior, then flow, decoder and noise.

        Parameters
        ----------
        n_cases : int
            How many.
        times : array-like of shape (Q,)
            When, counted from the start of a series (from the earliest training time if
            `time_origin="absolute"`).
        random_state : int, RandomState instance or None, default=None
            Source of the draws.

        Returns
        -------
        ndarray of shape (n_cases, Q, n_channels)
        """
        check_is_fitted(self)
        check_count("n_cases", n_cases)
        raw = as_moments("times", times)
        if raw.ndim != 1:
            raise ValueError(f"times must have shape (Q,), got {tuple(raw.shape)}")
        elapsed = raw / self.scaler_.time_scale_
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator(device=self.device).manual_seed(seed)
        with torch.inference_mode():
            z0 = torch.randn(n_cases, self.latent_dim, generator=generator, device=self.device)
            z0 = z0.to(self._precision())  # drawn alike in either
            emission = self.model_.decoder(self.model_.flow(z0, elapsed.to(self.device)))
            noise = torch.randn(emission.mean.shape, generator=generator, device=self.device)
            drawn = emission.mean + emission.std * noise
        return self.scaler_.inverse_values(drawn.cpu().double()).numpy()

    def _moments(self, part: SeriesBatch, query: Tensor, n_samples: int) -> tuple[Tensor, Tensor]:
        model = self.model_
        with torch.inference_mode():
            encoding = model.encoder(part)
            if n_samples == 0:
                emission = model.decoder(model.flow(encoding.mean, query))
                return emission.mean, emission.std.expand_as(emission.mean)
            mean = spread = torch.zeros(())
            # Deviations from the mean so far, summed: a difference of mean squares would leave
            # little but rounding of a small variance.
            for count, draw in enumerate(self._draws(n_samples), start=1):
                z0 = encoding.mean + encoding.std * draw
                emission = model.decoder(model.flow(z0, query))
                off = emission.mean - mean
                mean = mean + off / count
                spread = spread + off * (emission.mean - mean)
            return mean, (spread / n_samples + emission.std.square()).sqrt()

    def _draws(self, n_samples: int) -> Tensor:
        """(n_samples, D) of noise, the same for every case: a place in a batch is no matter."""
        generator = torch.Generator(device=self.device).manual_seed(0)
        draws = torch.randn(n_samples, self.latent_dim, generator=generator, device=self.device)
        return draws.to(self._precision())

    def _latent_start(self, X: Data) -> np.ndarray:
        """(N, D) posterior means of z0."""
        with torch.inference_mode():
            means = [
                self.model_.encoder(part.trim()).mean.cpu()
                for _, part in self._parts(self._asked(X))
            ]
        return torch.cat(means).numpy()


def resolve_flow(ode: str | Recipe, options: dict[str, Any] | None, name: str) -> Recipe:
    """The recipe that `ode` names, or is, with its options bound."""
    if isinstance(ode, str):
        check_choice(name, ode, FLOWS)
        recipe = FLOWS[ode]
    else:
        recipe = ode
    return lambda latent_dim: recipe(latent_dim, **(options or {}))


def holdout(
    n_cases: int, fraction: float, seed: int, strata: np.ndarray | None, groups: Data
) -> tuple[np.ndarray, np.ndarray]:
    """Splits cases into those to learn from and those to validate on.

    Whole groups are held out where there are groups; classes keep their shares where they are
    large enough. Fewer than ten cases, or a fraction of 0, leave nothing to validate on.
    """
    everything = np.arange(n_cases)
    n_check = min(int(round(fraction * n_cases)), n_cases - 1)
    if groups is not None:
        check_consistent_length(everything, groups)
        from sklearn.model_selection import GroupShuffleSplit

        if fraction > 0 and len(np.unique(groups)) > 1:
            split = GroupShuffleSplit(n_splits=1, test_size=fraction, random_state=seed)
            learn, check = next(split.split(everything, groups=groups))
            return learn, check
        return everything, everything[:0]
    if n_check == 0 or n_cases < 10:
        return everything, everything[:0]
    order = np.random.RandomState(seed).permutation(n_cases)
    if strata is not None:
        # Every k-th of each class: shares are kept. The first is never chosen: no class is lost.
        order = order[np.argsort(strata[order], kind="stable")]
        spare = np.delete(order, np.unique(strata[order], return_index=True)[1])
        n_check = min(n_check, len(spare))
        check = spare[np.linspace(0, len(spare) - 1, n_check).round().astype(int)]
        return np.setdiff1d(everything, check), np.sort(check)
    return np.sort(order[n_check:]), np.sort(order[:n_check])


def counted_cases(
    batch: SeriesBatch, sample_weight: Data, groups: Data
) -> tuple[np.ndarray | slice, np.ndarray | None, Data]:
    """Which cases there are, their weights and groups: one of weight zero might as well be absent.

    Raises:
        ValueError: There is not one weight, or one group, a case, or no weight is positive.
    """
    if groups is not None:
        check_consistent_length(batch.values, groups)
    if sample_weight is None:
        return slice(None), None, groups
    weight = _check_sample_weight(
        sample_weight, batch.values, dtype=np.float64, ensure_non_negative=True
    )
    there = np.flatnonzero(weight)
    if not len(there):
        raise ValueError("sample_weight is zero for every series to learn from")
    return there, weight[there], None if groups is None else np.asarray(groups)[there]


def as_moments(name: str, times: Data) -> Tensor:
    """Times that somebody asks for, in float64; timedeltas become seconds."""
    try:
        raw = np.asarray(times)
        if raw.dtype.kind == "m":
            raw = raw / np.timedelta64(1, "s")
        if raw.dtype.kind == "M":
            raise ValueError("dates have no place on a clock that starts with each series")
        raw = raw.astype(np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"{name} must be numbers in the units of the data: {problem}"
        ) from problem
    if not np.isfinite(raw).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return torch.from_numpy(raw)


def is_table(X: Data) -> bool:
    """Whether X is rows of plain numbers, which scikit-learn knows how to check."""
    if isinstance(X, (SeriesBatch, Tensor)):
        return False
    if hasattr(X, "ndim"):
        return X.ndim < 3 and not (X.ndim == 1 and X.dtype == object)
    if isinstance(X, (list, tuple)) and not X:
        return False
    if isinstance(X, (list, tuple)):
        # Nested lists may be a table; arrays in a list are series that happen to be equally long.
        return all(isinstance(row, list) and len(row) == len(X[0]) for row in X) and not any(
            np.ndim(cell) for row in X for cell in row
        )
    return True
