"""DecodingMixin: reconstructions, forecasts, latent trajectories and samples."""

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
    """Methods of a fitted latent ODE that decode series at any times."""

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
            The observations.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Query times, in the units of the data; the series' own times by default.
        n_samples : int, default=32
            Number of draws from the posterior for the mean and the standard deviation, the same
            for every series and call. 0 decodes the posterior's mean, and the standard deviation
            is that of the noise alone.
        return_std : bool, default=False
            Also return the standard deviation, of the draws and the observation noise together.

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
        for chosen, part, static in self._scaled_parts(batch):
            times_of_part = part.times if query is None else query[chosen].to(self.device)
            mean, std = self._compute_moments(part, static, times_of_part, n_samples)
            means.append(mean.cpu())
            deviations.append(std.cpu())
        scaled = torch.cat(means).double()
        mean = self.scaler_.inverse_values(scaled)
        std = self.scaler_.inverse_deviation(scaled, torch.cat(deviations).double())
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
        """Decodes each series at times after its own last one.

        Parameters
        ----------
        X : series
            The observations.
        ahead : array-like of shape (Q,)
            Times since the last one of each series.
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
        """Returns the latent states of each series at any times, from the posterior's mean.

        Parameters
        ----------
        X : series
            The observations.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Query times, in the units of the data; the series' own times by default.

        Returns
        -------
        ndarray of shape (n_cases, Q, latent_dim)
            Rows beyond the length of a shorter series are NaN where `times` is None.
        """
        batch = self._validate_fitted(X)
        query = None if times is None else self._query_times(times, batch)
        states = []
        with torch.inference_mode():
            for chosen, part, static in self._scaled_parts(batch):
                times_of_part = part.times if query is None else query[chosen].to(self.device)
                z0 = self.model_.encode(part.trim(), static).mean
                states.append(self.model_.flow(z0, times_of_part).cpu())
        answer = torch.cat(states)
        if times is None:
            answer = answer.masked_fill(~batch.present.unsqueeze(-1), torch.nan)
        return answer.numpy()

    def sample(self, n_cases: int, times: Data, *, random_state: Any = None) -> np.ndarray:  # noqa: ANN401
        """Draws new series: z0 from the prior, decoded along its trajectory, plus noise.

        Static facts have no part in this, as they shift only the posterior.

        Parameters
        ----------
        n_cases : int
            Number of series.
        times : array-like of shape (Q,)
            Times since the start of a series (since the earliest training time if
            `time_origin="absolute"`).
        random_state : int, RandomState instance or None, default=None
            Seed or source of the draws.

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
            z0 = z0.to(self._fitted_dtype())  # the same draws in both precisions
            emission = self.model_.decoder(self.model_.flow(z0, elapsed.to(self.device)))
            noise = torch.randn(emission.mean.shape, generator=generator, device=self.device)
            drawn = emission.mean + emission.std * noise
        return self.scaler_.inverse_values(drawn.cpu().double()).numpy()

    def _compute_moments(
        self, part: SeriesBatch, static: Tensor | None, query: Tensor, n_samples: int
    ) -> tuple[Tensor, Tensor]:
        """Returns mean and standard deviation (N, Q, C) of the decoded draws, in scaled units."""
        model = self.model_
        with torch.inference_mode():
            encoding = model.encode(part, static)
            if n_samples == 0:
                emission = model.decoder(model.flow(encoding.mean, query))
                return emission.mean, emission.std.expand_as(emission.mean)
            mean = squares = torch.zeros(())
            # Welford's update, since a difference of mean squares loses a small variance to
            # rounding.
            for count, noise in enumerate(self._posterior_noise(n_samples), start=1):
                z0 = encoding.mean + encoding.std * noise
                emission = model.decoder(model.flow(z0, query))
                deviation = emission.mean - mean
                mean = mean + deviation / count
                squares = squares + deviation * (emission.mean - mean)
            return mean, (squares / n_samples + emission.std.square()).sqrt()

    def _posterior_noise(self, n_samples: int) -> Tensor:
        """Returns (n_samples, D) draws for all cases, so that batches do not affect results."""
        generator = torch.Generator(device=self.device).manual_seed(0)
        noise = torch.randn(n_samples, self.latent_dim, generator=generator, device=self.device)
        return noise.to(self._fitted_dtype())

    def _posterior_means(self, X: Data) -> np.ndarray:
        """Returns (N, D) posterior means of z0."""
        with torch.inference_mode():
            means = [
                self.model_.encode(part.trim(), static).mean.cpu()
                for _, part, static in self._scaled_parts(self._validate_fitted(X))
            ]
        return torch.cat(means).numpy()
