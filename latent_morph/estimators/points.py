"""LatentODEPointClassifier: one label a time point."""

from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_y, check_is_fitted
from torch import Tensor

from latent_morph.estimators.base import counted_cases
from latent_morph.estimators.classifier import ClassifierBase, class_logits
from latent_morph.estimators.export import Program, classifier_program
from latent_morph.models.decoders import PointHead
from latent_morph.series import Data, SeriesBatch, insert_rows, is_timed


class LatentODEPointClassifier(ClassifierBase):
    """Classifies every time point of irregular series with a latent ODE.

    Labels come one a time point: an array (n_cases, n_times), or a list with one array a series
    where lengths differ. A plain vector of one label a series is taken to hold at each of its
    points, and answers then are one a series too.

    Parameters
    ----------
    ode : str or callable, default="morph"
        The generative ODE: a name from `latent_morph.FLOWS`, or a recipe
        `(latent_dim, **options) -> Flow`.
    ode_options : dict, default=None
        Options of the recipe, for example `{"rtol": 1e-3}` for `"dopri5"`.
    encoder : {"morph", "gru-ode"}, default="morph"
        How series are encoded: in closed form, by linear flows with jumps at the observations, or
        by a GRU update at every observation with any ODE between them. The next four parameters
        are the former's, the three after them the latter's.
    encoder_layers : int, default=3
        Layers of the closed-form encoder.
    encoder_modes : int, default=16
        Decaying rotations by which a layer remembers, in each direction of time.
    dropout : float, default=0.2
        Share of each layer's update that is left out in training.
    pool : int, default=1
        Observations that are taken in together; for long series 4 is some twice as fast.
    encoder_ode : str or callable, default="linear"
        The ODE of the encoder's hidden state between observations.
    encoder_ode_options : dict, default=None
        Its options. None gives `"linear"` a fading memory (stable, independent modes).
    bidirectional : bool, default=True
        Whether the encoder also sweeps forwards in time; the paper's goes backwards only.
    head : {"trajectory+context", "trajectory"}, default="trajectory+context"
        What the class is read from: the latent trajectory joined with the encoder's states, or
        the trajectory alone, as in the paper.
    latent_dim : int, default=16
        Dimensions of the latent state.
    hidden_dim : int, default=64
        Units of the encoder's state, and of the head where there are classes.
    decoder_width : int, default=64
        Hidden units of the decoder.
    decoder_depth : int, default=1
        Hidden layers of the decoder; 0 is linear.
    noise_std : float or "learned", default="learned"
        Standard deviation of the observation noise, channels being scaled to 1.
    classification_weight : float, default=1.0
        Weight of the cross-entropy.
    reconstruction_weight : float, default=0.1
        Weight of the negative log-likelihood of the observed values, a mean over them.
    kl_weight : float, default=0.1
        Weight of the posterior's divergence from a standard normal, per observed value.
    kl_warmup : float, default=0.2
        Share of training over which that weight rises from 0.
    sample_z0 : bool, default=True
        Whether training draws z0 from its posterior. False takes the posterior's mean: nothing is
        random about a step then, and nothing but the divergence says how wide a posterior is.
    class_weight : dict, "balanced" or None, default=None
        Factors of the classes in the cross-entropy.
    time_origin : {"case", "absolute"}, default="case"
        Whether each series starts at time 0, or times are counted from the earliest in training.
    optimizer : {"adamw", "adam", "adamax"}, default="adamw"
        The optimiser.
    learning_rate : float, default=4e-3
        Its highest learning rate.
    weight_decay : float, default=0.01
        Its weight decay.
    schedule : {"one-cycle", "exponential", "constant"}, default="one-cycle"
        How the learning rate goes over training: up and down, down to a hundredth, or not at all.
    gradient_clip : float or None, default=1.0
        Largest norm of a gradient.
    batch_size : int, default=64
        Series a step.
    max_epochs : int, default=40
        Passes over the training series at most.
    budget : float or None, default=None
        Seconds of training at most; the schedule is fitted to it. With a budget the result
        depends on the machine's speed.
    patience : int or None, default=None
        Stop after so many epochs without a better validation score.
    validation_fraction : float, default=0.1
        Share of the series, or of the groups, held out to pick the best epoch. Fewer than ten
        series are all learned from, and the last epoch is kept.
    checkpoint : str, Path or None, default=None
        File for the state of training, written every half minute and at the end.
    resume : bool, default=False
        Continue from the checkpoint if it exists.
    compile : bool, default=False
        Have torch compile the invertible networks, which takes some tens of seconds at first.
        On a CPU little is gained, and nothing in training, unless they are large; without a
        compiler training goes on as without this.
    device : str, default="cpu"
        Where to compute: "cpu" or a CUDA device.
    dtype : {"float32", "float64"}, default="float32"
        Precision of training and of answers. Double precision takes longer and is for results
        that are to agree to many digits.
    random_state : int, RandomState instance or None, default=None
        Seed of everything random; the same seed gives the same result.
    verbose : int or bool, default=0
        Log a line an epoch through `logging`: to standard error, unless logging was set up to go
        elsewhere.
    callbacks : sequence of Callback or callable, default=None
        Told how training goes: `EarlyStopping`, `Checkpoint`, `CSVLog`, `TensorBoardLog`, a
        `latent_morph.Callback` of one's own, or a function `(history, settings)` to call after
        every epoch. Not saved with the model.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    model_ : LatentODE
        The trained network.
    scaler_ : SeriesScaler
        Scales learned from the training series.
    history_ : list of dict
        One row an epoch: losses, validation score, seconds.
    best_epoch_ : int
        The epoch whose weights were kept.
    n_iter_ : int
        Epochs run.
    n_learn_, n_validation_ : int
        Series learned from and validated on.
    n_channels_ : int
        Channels of the series.
    n_features_in_ : int
        Columns of a 2-D X, otherwise the channels.
    fitted_on_table_ : bool
        Whether X was 2-D: a 2-D X asked about later must then have as many columns.
    one_label_a_series_ : bool
        Whether labels came one a series: answers then do too.

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import LatentODEPointClassifier
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, 20)) for _ in range(60)]
    >>> X = [(t, np.sin(t)) for t in times]
    >>> y = [np.where(np.cos(t) > 0, "rising", "falling") for t in times]
    >>> model = LatentODEPointClassifier(max_epochs=15, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> model.predict(X[:1], times=[1.0, 3.0])  # where nothing was observed
    array([['rising', 'falling']], dtype='<U7')
    """

    _head_type = PointHead

    def fit(self, X: Data, y: Data, sample_weight: Data = None, groups: Data = None) -> Self:
        """Learns from series and the labels of their time points.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` takes, with the times of each case sorted, so that
            labels belong to rows.
        y : array-like of shape (n_cases, n_times) or (n_cases,), or list of arrays (T_i,)
            Labels.
        sample_weight : array-like of shape (n_cases,), default=None
            How much each series counts, in scales, loss and validation: 2 is as good as a copy
            more, 0 as good as its absence. Only their proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are validated on together or learned from together.
        """
        self._validate_params()
        self._check_target(y)
        batch = self._series(X, reset=True)
        labels, self.one_label_a_series_ = flat_labels(y, batch)
        if not self.one_label_a_series_:
            check_sorted(X)
        there, weight, groups = counted_cases(batch, sample_weight, groups)
        of_case = np.repeat(np.arange(len(batch)), batch.lengths.numpy())
        labels = labels[np.isin(of_case, np.arange(len(batch))[there])]
        batch = batch[there]
        codes = torch.full(batch.values.shape[:2], -1, dtype=torch.int64)
        flat = self._encode_labels(labels)
        codes[batch.present] = torch.from_numpy(flat)
        of_label = None if weight is None else np.repeat(weight, batch.lengths.numpy())
        return self._fit(
            batch,
            labels=codes,
            groups=groups,
            weight=weight,
            class_weight=self._class_factors(flat, of_label),
        )

    @overload
    def predict_proba(self, X: Data, times: None = ...) -> np.ndarray | list[np.ndarray]: ...

    @overload
    def predict_proba(self, X: Data, times: ArrayLike) -> np.ndarray: ...

    def predict_proba(
        self, X: Data, times: ArrayLike | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """Class probabilities at each time point, or at any other times.

        Parameters
        ----------
        X : series
            What was observed.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            When to answer, in the units of the data, observed there or not; the series' own
            times by default.

        Returns
        -------
        ndarray of shape (n_cases, n_times, n_classes)
            Or a list of arrays (T_i, n_classes) where lengths differ; or, fitted with one label a
            series and without `times`, the mean over points, (n_cases, n_classes).
        """
        batch = self._asked(X)
        if times is not None:
            return self._probabilities_at(batch, self._query_times(times, batch)).numpy()
        if not self.one_label_a_series_:
            check_sorted(X)
        answers = self._probabilities(batch)
        if self.one_label_a_series_:
            inside = batch.present.unsqueeze(-1)
            return ((answers * inside).sum(1) / inside.sum(1)).numpy()
        if bool((batch.lengths == batch.n_times).all()):
            return answers.numpy()
        return [part[:length].numpy() for part, length in zip(answers, batch.lengths, strict=True)]

    @overload
    def predict(self, X: Data, times: None = ...) -> np.ndarray | list[np.ndarray]: ...

    @overload
    def predict(self, X: Data, times: ArrayLike) -> np.ndarray: ...

    def predict(self, X: Data, times: ArrayLike | None = None) -> np.ndarray | list[np.ndarray]:
        """The likeliest label at each time point, or at any other times.

        Parameters
        ----------
        X : series
            What was observed.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            When to answer; the series' own times by default.

        Returns
        -------
        ndarray of shape (n_cases, n_times)
            Or a list of arrays (T_i,) where lengths differ; or, fitted with one label a series and
            without `times`, (n_cases,).
        """
        check_is_fitted(self)
        answers = self.predict_proba(X, times)
        if isinstance(answers, list):
            return [self.classes_[part.argmax(-1)] for part in answers]
        return self.classes_[answers.argmax(-1)]

    def score(self, X: Data, y: Data, sample_weight: Data = None) -> float:
        """Share of time points, or of series if fitted so, whose label is right.

        Parameters
        ----------
        X : series
            What was observed.
        y : array-like of shape (n_cases, n_times) or (n_cases,), or list of arrays (T_i,)
            The true labels, as in `fit`.
        sample_weight : array-like of shape (n_cases,), default=None
            Factors of the series.
        """
        check_is_fitted(self)
        if self.one_label_a_series_:
            return float(super().score(X, y, sample_weight))
        check_sorted(X)
        batch = self._asked(X)
        labels, _ = flat_labels(y, batch)
        best = self._probabilities(batch).argmax(-1)[batch.present]
        weight = None
        if sample_weight is not None:
            weight = np.repeat(np.asarray(sample_weight), batch.lengths.numpy())
        return float(np.average(self.classes_[best.numpy()] == labels, weights=weight))

    def _probabilities(self, batch: SeriesBatch) -> Tensor:
        """(N, T, K) at the series' own times; what stands in padding means nothing."""
        shape = len(batch), batch.n_times, len(self.classes_)
        answers = torch.zeros(shape, dtype=self._precision())
        for chosen, output in self._outputs(batch):
            part = class_logits(output).softmax(-1)
            answers[chosen, : part.shape[1]] = part.cpu()
        return answers

    def _probabilities_at(self, batch: SeriesBatch, query: Tensor) -> Tensor:
        """(N, Q, K) at scaled times (N, Q), which become rows where nothing was observed."""
        answers = []
        for chosen, part in self._parts(batch):
            wider, rows = insert_rows(part, query[chosen].to(part.device))
            with torch.inference_mode():
                all_rows = class_logits(self.model_(wider)).softmax(-1)
            answers.append(all_rows.take_along_dim(rows.unsqueeze(-1), dim=1).cpu())
        return torch.cat(answers)

    def _program(self) -> Program:
        answer = "averaged" if self.one_label_a_series_ else "points"
        return classifier_program(self.model_, self.scaler_, self.classes_, answer=answer)

    def _extra_config(self) -> dict[str, Any]:
        return super()._extra_config() | {"one_label_a_series": self.one_label_a_series_}

    def _restore_extra(self, config: dict[str, Any]) -> None:
        super()._restore_extra(config)
        self.one_label_a_series_ = config["one_label_a_series"]


def flat_labels(y: Data, batch: SeriesBatch) -> tuple[np.ndarray, bool]:
    """Labels of all time points, series after series, and whether they came as one a series."""
    y = y if isinstance(y, (list, tuple)) else np.asarray(y)
    if len(y) != len(batch):
        raise ValueError(f"y has {len(y)} entries, but X has {len(batch)} series")
    lengths = batch.lengths.numpy()
    column = isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1 < batch.n_times
    if column or np.ndim(y[0]) == 0:
        return np.repeat(column_or_1d(_check_y(y), warn=True), lengths), True
    if isinstance(y, np.ndarray) and y.dtype != object and (lengths == y.shape[1]).all():
        return y.reshape(-1), False
    rows = [np.asarray(labels) for labels in y]
    for case, (labels, length) in enumerate(zip(rows, lengths, strict=True)):
        if labels.shape != (length,):
            raise ValueError(
                f"y of case {case} must have shape ({length},), one label a time point, "
                f"got {labels.shape}"
            )
    return np.concatenate(rows), False


def check_sorted(X: Data) -> None:
    """Refuses times out of order: `as_series` sorts the rows of a series, but not its labels."""
    if not isinstance(X, (list, tuple)):
        return
    for case, series in enumerate(X):
        if is_timed(series):
            times = np.asarray(series[0])
        elif hasattr(series, "iloc"):  # pandas
            times = np.asarray(series.index)
        else:
            continue
        if (times[1:] < times[:-1]).any():
            raise ValueError(f"times of case {case} must be sorted, so that labels belong to rows")
