"""Encoder, the abstract base of maps from irregular series to a posterior over z0."""

import abc
from typing import NamedTuple, final

from torch import Tensor, nn

from latent_morph.checks import check_count
from latent_morph.series import SeriesBatch


class Encoding(NamedTuple):
    """The output of an encoder.

    Attributes:
        mean: (N, D) mean of the posterior over z0.
        std: (N, D) its standard deviations, positive.
        states: (N, T, S) the encoder's state at every row, observed or not.
    """

    mean: Tensor
    std: Tensor
    states: Tensor


class Encoder(nn.Module, abc.ABC):
    """Maps scaled series to a normal posterior over z0, the latent state at time 0, and to states.

    Laws:
        mask     values where `mask` is False change nothing
        padding  appending padding changes nothing
        query    inserting an unobserved row changes no other row, up to the flow's tolerance

    To add an encoder, write `_encode`, and `latent_morph.encoders.register` a recipe for it.
    """

    def __init__(self, n_channels: int, latent_dim: int, state_dim: int) -> None:
        super().__init__()
        self.n_channels = check_count("n_channels", n_channels)
        self.latent_dim = check_count("latent_dim", latent_dim)
        self.state_dim = check_count("state_dim", state_dim)

    @final  # type: ignore[misc]  # nn.Module declares an attribute of that name
    def forward(self, batch: SeriesBatch) -> Encoding:
        """Encodes a batch whose times are scaled so that z0 belongs to time 0."""
        if batch.n_channels != self.n_channels:
            raise ValueError(f"batch must have {self.n_channels} channels, got {batch.n_channels}")
        return self._encode(batch.values, batch.times, batch.mask)

    @abc.abstractmethod
    def _encode(self, values: Tensor, times: Tensor, mask: Tensor) -> Encoding:
        """`forward` on a checked batch: (N, T, C), non-decreasing times (N, T), (N, T, C)."""


def find_first_time(times: Tensor, observed: Tensor) -> Tensor:
    """Returns (N,) the time of the first observed row of (N, T), 0 if there is none."""
    first = times.gather(1, observed.int().argmax(1, keepdim=True)).squeeze(1)
    return first * observed.any(1)
