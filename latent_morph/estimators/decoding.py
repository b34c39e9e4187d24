"""DecodingMixin: series decoded at any times, forecasts, latent trajectories, new samples."""

from typing import Any, Literal, overload

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from latent_morph.checks import check_count
from latent_morph.estimators.inputs import as_query_times
from latent_morph.estimators.latent import LatentODEBase
from latent_morph.series import Data, SeriesBatch


class DecodingMixin(LatentODEBase):
    """What a fitted latent ODE says of series at any times."""

    def _query_times(self, times: Data, batch: SeriesBatch) -> Tensor:
        """Raw query times, (Q,) shared or (N, Q), to scaled ones (N, Q)."""
        raw, starts = as_query_times("times", times), batch.times[:, 0]
        if raw.ndim not in (1, 2) or (raw.ndim == 2 and len(raw) != len(starts)):
            raise ValueError(
                f"times must have shape (Q,) or ({len(starts)}, Q), got {tuple(raw.shape)}"
            )
        return self.scaler_.scale_times(raw, starts).expand(len(starts), -1)

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
        batch = self._validate_fitted(X)
        query = None if times is None else self._query_times(times, batch)
        means, deviations = [], []
        for chosen, part in self._scaled_parts(batch):
            times_of_part = part.times if query is None else query[chosen].to(self.device)
            mean, std = self._moments(part, times_of_part, n_samples)
            means.append(mean.cpu())
            deviations.append(std.cpu())
        mean = self.scaler_.inverse_values(torch.cat(means).double())
        std = self.scaler_.inverse_scale(torch.cat(deviations).double())
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
        batch = self._validate_fitted(X)
        steps = as_query_times("ahead", ahead)
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
        batch = self._validate_fitted(X)
        query = None if times is None else self._query_times(times, batch)
        states = []
        with torch.inference_mode():
            for chosen, part in self._scaled_parts(batch):
                times_of_part = part.times if query is None else query[chosen].to(self.device)
                z0 = self.model_.encoder(part.trim()).mean
                states.append(self.model_.flow(z0, times_of_part).cpu())
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
        raw = as_query_times("times", times)
        if raw.ndim != 1:
            raise ValueError(f"times must have shape (Q,), got {tuple(raw.shape)}")
        elapsed = raw / self.scaler_.time_scale_
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        generator = torch.Generator(device=self.device).manual_seed(seed)
        with torch.inference_mode():
            z0 = torch.randn(n_cases, self.latent_dim, generator=generator, device=self.device)
            z0 = z0.to(self._fitted_dtype())  # drawn alike in either
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
            mean = squares = torch.zeros(())
            # Welford's update: a difference of mean squares would leave little but rounding of a
            # small variance.
            for count, noise in enumerate(self._posterior_noise(n_samples), start=1):
                z0 = encoding.mean + encoding.std * noise
                emission = model.decoder(model.flow(z0, query))
                deviation = emission.mean - mean
                mean = mean + deviation / count
                squares = squares + deviation * (emission.mean - mean)
            return mean, (squares / n_samples + emission.std.square()).sqrt()

    def _posterior_noise(self, n_samples: int) -> Tensor:
        """(n_samples, D) the same for every case, so that its place in a batch does not matter."""
        generator = torch.Generator(device=self.device).manual_seed(0)
        noise = torch.randn(n_samples, self.latent_dim, generator=generator, device=self.device)
        return noise.to(self._fitted_dtype())

    def _posterior_means(self, X: Data) -> np.ndarray:
        """(N, D) posterior means of z0."""
        with torch.inference_mode():
            means = [
                self.model_.encoder(part.trim()).mean.cpu()
                for _, part in self._scaled_parts(self._validate_fitted(X))
            ]
        return torch.cat(means).numpy()
