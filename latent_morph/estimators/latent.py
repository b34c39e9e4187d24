"""LatentODEBase: builds and fits a latent ODE."""

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.bijections.compiling import compile_bijections
from latent_morph.checks import check_choice
from latent_morph.encoders import ENCODERS, Encoder, EncoderRecipe
from latent_morph.estimators.parameters import DTYPES
from latent_morph.estimators.split import choose_fraction, split_cases
from latent_morph.estimators.trained import TrainedEstimator
from latent_morph.flows import FlowRecipe, resolve_flow
from latent_morph.losses import LatentODELoss
from latent_morph.models import (
    Decoder,
    Ensemble,
    LatentODE,
    LatentOutput,
    PointHead,
    PointSummary,
    SeriesHead,
    SeriesSummary,
)
from latent_morph.seeding import seeded
from latent_morph.series import Data, Examples, SeriesBatch, SeriesScaler
from latent_morph.training import train

# What a head is told besides latent states, and how much of it is dropped in training. Labels of
# time points are many: with 0.7, accuracy for a person held out fell from .888 to .874.
SUMMARIES = {SeriesHead: (SeriesSummary, 0.7), PointHead: (PointSummary, 0.3)}


class LatentODEBase(TrainedEstimator):
    """Builds and fits the model; subclasses add parameters, labels and predictions."""

    _head_type: ClassVar[type[PointHead] | type[SeriesHead] | None] = None
    # Options of encoders, in place of the encoders' own defaults.
    _encoder_defaults: ClassVar[dict[str, dict[str, Any]]] = {}

    # Parameters that methods here use, declared by the constructors of subclasses.
    ode: str | FlowRecipe
    ode_options: dict[str, Any] | None
    encoder: str | EncoderRecipe
    encoder_options: dict[str, Any] | None
    latent_dim: int
    hidden_dim: int
    decoder_width: int
    decoder_depth: int
    noise_std: float | str
    reconstruction_weight: float
    kl_weight: float
    kl_warmup: float
    sample_z0: bool
    scale: str
    time_origin: str
    batch_size: int
    validation_fraction: float | str
    compile: bool

    def _scale(self, batch: SeriesBatch) -> SeriesBatch:
        return self.scaler_.transform(batch).to(dtype=self._fitted_dtype())

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
    ) -> Self:
        seed = self._validate_training()
        self._remember_params()
        fraction = choose_fraction(self.validation_fraction, len(batch), groups, self.patience)
        # Each member leaves other cases out.
        n_members = getattr(self, "n_members", 1)
        splits = [
            split_cases(len(batch), fraction, seed + number, strata, groups)
            for number in range(n_members)
        ]
        trained_on = np.unique(np.concatenate([train_cases for train_cases, _ in splits]))
        factors = None if weight is None else torch.from_numpy(weight / weight[trained_on].mean())
        pretrained = self._load_pretrained()
        if pretrained is None:
            self.scaler_ = SeriesScaler(self.scale, self.time_origin).fit(
                batch[trained_on] if target is None else target[trained_on],
                weight=None if factors is None else factors[trained_on],
            )
            self._fit_static(batch[trained_on], None if factors is None else factors[trained_on])
        else:
            self.scaler_ = pretrained.scaler_
            self.static_encoder_ = pretrained.static_encoder_
            self._check_static(batch, "as init has")
        if target is not None:
            target = self._scale_target(target, batch.times[:, 0])
        if factors is not None:
            factors = factors.to(self._fitted_dtype())
        if class_weight is not None:
            class_weight = class_weight.to(self.device, self._fitted_dtype())
        # Encoded facts go beside the series, whose table is then of no use.
        inputs, static = self._scale(batch).with_static(None), self._encode_for_model(batch)
        examples = Examples(inputs, target, labels, factors, static).to(self.device)
        members, histories = [], []
        for number, (train_cases, val_cases) in enumerate(splits):
            with seeded(seed + number):
                member = self._new_member().to(self.device)
            if pretrained is not None:
                copy_weights(pretrained.model_, member)
            if member.summary is not None:
                part = examples[train_cases]
                member.summary.fit(part.inputs, part.weight)
            if self.compile:
                compile_bijections(member)
            if number == 0:
                self.model_ = member  # what an interrupted fit leaves
            histories.append(
                train(
                    member,
                    self._loss(class_weight),
                    examples[train_cases],
                    examples[val_cases] if len(val_cases) else None,
                    lambda model, part: self._validation_score(model, part, class_weight),
                    self._make_settings(self.batch_size).of_member(number, n_members),
                    seed=seed + number,
                    callbacks=self._make_callbacks(),
                )
            )
            if len(val_cases):
                self._finish_member(member.eval(), examples[val_cases], class_weight)
            members.append(member)
        self.model_ = (members[0] if n_members == 1 else Ensemble(members)).eval()
        self.n_train_, self.n_val_ = (len(part) for part in splits[0])
        self._finish(histories[0])
        return self

    def _load_pretrained(self) -> "LatentODEBase | None":
        """Returns the estimator that training starts from, if one is given."""
        return None

    def _scale_target(self, target: SeriesBatch, starts: Tensor) -> SeriesBatch:
        """Scales the target, with times relative to the starts of the inputs, without facts."""
        scaled = self._scale(target)
        times = self.scaler_.scale_times(target.times, starts)
        return SeriesBatch(scaled.values, times, scaled.mask, scaled.lengths)

    def _loss(self, class_weight: Tensor | None) -> LatentODELoss:
        return LatentODELoss(
            reconstruction_weight=self.reconstruction_weight,
            kl_weight=self.kl_weight,
            classification_weight=getattr(self, "classification_weight", 0.0),
            kl_warmup=self.kl_warmup,
            sample_z0=self.sample_z0,
            keep=getattr(self, "keep", None),
            target_points=getattr(self, "target_points", None),
            class_weight=class_weight,
        )

    def _validation_score(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> float:
        """Returns the score that selects the best epoch; higher is better."""
        raise NotImplementedError

    def _finish_member(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> None:
        """Does what depends on validation series, after training."""

    def _n_classes(self) -> int:
        return 0

    # Building

    def _new_model(self) -> LatentODE | Ensemble:
        n_members = getattr(self, "n_members", 1)
        members = [self._new_member() for _ in range(n_members)]
        return members[0] if n_members == 1 else Ensemble(members)

    def _new_member(self) -> LatentODE:
        encoder = self._new_encoder(self.n_channels_)
        flow = resolve_flow(self.ode, self.ode_options)(self.latent_dim)
        decoder = Decoder(
            self.latent_dim,
            self.n_channels_,
            width=self.decoder_width,
            depth=self.decoder_depth,
            noise_std=self.noise_std,
        )
        head = summary = None
        has_summary = getattr(self, "summary", False)
        if has_summary:
            kind, drop = SUMMARIES[self._head_type]  # type: ignore[index]
            given = getattr(self, "summary_dropout")  # noqa: B009
            summary = kind(self.n_channels_, self.hidden_dim, drop if given is None else given)
        if self._head_type is not None:
            head = self._head_type(
                self.latent_dim,
                encoder.state_dim,
                self._n_classes(),
                head=getattr(self, "head"),  # noqa: B009  # a classifier's parameter
                summary_dim=(self.hidden_dim if has_summary else 0) + self._n_static(),
                width=self.hidden_dim,
            )
        model = LatentODE(encoder, flow, decoder, head, summary, static_dim=self._n_static())
        return model.to(DTYPES[self.dtype])

    def _new_encoder(self, n_channels: int) -> Encoder:
        options = dict(self.encoder_options or {})
        recipe = self.encoder
        if isinstance(recipe, str):
            options = self._encoder_defaults.get(recipe, {}) | options
            recipe = ENCODERS[check_choice("encoder", recipe, ENCODERS)]
        return recipe(n_channels, self.latent_dim, self.hidden_dim, **options)

    # Prediction

    def _encode_for_model(self, batch: SeriesBatch) -> Tensor | None:
        """Returns the encoded facts (N, S) of series, as the model takes them."""
        static = self._encode_static(batch)
        return None if static is None else static.to(self.device, self._fitted_dtype())

    def _scaled_parts(
        self, batch: SeriesBatch
    ) -> Iterator[tuple[slice, SeriesBatch, Tensor | None]]:
        """Yields batches of scaled series and encoded facts, which bounds the memory needed."""
        size = max(self.batch_size, 256)
        for start in range(0, len(batch), size):
            chosen = slice(start, start + size)
            part = batch[chosen]
            yield chosen, self._scale(part).to(self.device), self._encode_for_model(part)

    def _outputs(self, batch: SeriesBatch) -> Iterator[tuple[slice, LatentOutput]]:
        """Yields the model's outputs at the series' own times, per batch of series."""
        for chosen, part, static in self._scaled_parts(batch):
            with torch.inference_mode():
                yield chosen, self.model_(part.trim(), static=static)


def copy_weights(source: nn.Module, target: LatentODE) -> None:
    """Copies the weights of encoder, flow and decoder, and of the shifts by static facts.

    Raises:
        ValueError: The sizes differ.
    """
    names = ("encoder", "flow", "decoder")
    for name in names if target.shift is None else (*names, "shift"):
        try:
            getattr(target, name).load_state_dict(getattr(source, name).state_dict())
        except RuntimeError as problem:
            raise ValueError(
                "init must have the same channels, ode, encoder, sizes and options as this "
                f"estimator, got another {name}"
            ) from problem
