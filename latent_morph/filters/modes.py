"""Modes: damped rotations driven by the interpolants of the channels, and pooled over time."""

import math

import torch
from torch import Tensor, nn

from latent_morph.filters.biases import draw_biases, spread_rows
from latent_morph.filters.interpolant import Interpolant
from latent_morph.recurrence import ramp_response

N_BIASES = 2
POOLS = (*(f"share above bias {i}" for i in range(N_BIASES)), "maximum", "mean", "modulus", "end")
_UNDAMPED_FRACTION = 0.25
_QUALITIES = (0.5, 8.0)


class Modes(nn.Module):
    """Random damped rotations, the same for every channel, in both directions of time.

    A mode answers a channel x(t) by S(t), the integral of exp(lambda (t - s)) x(s) over all s up
    to t, with lambda = -a + ib. For a linear interpolant it has a closed form: -lambda S = x - D,
    where D is the response to the slope of x, which is constant between rows. The output of a
    mode is the projection of -lambda S on a random phase.

    Args:
        n_channels: C.
        n_modes: P, per channel and direction of time.
    """

    rates: Tensor
    frequencies: Tensor
    phases: Tensor
    biases: Tensor

    def __init__(self, n_channels: int, n_modes: int) -> None:
        super().__init__()
        shape = 2, n_channels, n_modes
        self.register_buffer("rates", torch.ones(n_modes, dtype=torch.float32))
        self.register_buffer("frequencies", torch.zeros(n_modes, dtype=torch.float32))
        self.register_buffer("phases", torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("biases", torch.zeros(N_BIASES, *shape, dtype=torch.float32))

    def draw(self, slowest: float, fastest: float, generator: torch.Generator) -> None:
        """Draws rates between two limits, frequencies and phases."""
        n_modes = len(self.rates)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, dtype=self.rates.dtype)

        level = (torch.arange(n_modes) + uniform(n_modes)) / n_modes
        self.rates = slowest * (fastest / slowest) ** level
        low, high = _QUALITIES
        rotating = uniform(n_modes) > _UNDAMPED_FRACTION
        self.frequencies = rotating * self.rates * (low + (high - low) * uniform(n_modes))
        self.phases = 2 * math.pi * uniform(*self.phases.shape)

    def sample(self, interpolant: Interpolant, n_rows: int) -> Tensor:
        """Returns outputs (R, 2 * C * P) at some observed rows of each series."""
        outputs, _ = self.outputs(interpolant)
        return outputs.transpose(0, 1)[spread_rows(interpolant.observed, n_rows)].flatten(1)

    def fit(self, outputs: Tensor, generator: torch.Generator) -> None:
        """Draws biases among outputs (R, 2 * C * P)."""
        self.biases = draw_biases(outputs, N_BIASES, generator).view(self.biases.shape)

    def outputs(self, interpolant: Interpolant) -> tuple[Tensor, Tensor]:
        """Returns outputs and moduli (T, N, 2, C, P) at every row."""
        values = interpolant.values.transpose(0, 1)
        times = interpolant.times
        gaps = times - torch.cat([times[:, :1], times], dim=1)[:, : times.shape[1]]
        response = ramp_response(self.rates, self.frequencies, gaps.t().to(values), values)
        real = values.unsqueeze(2).unsqueeze(-1) - response[..., 0]
        imag = response[..., 1]
        output = self.phases.cos() * real + self.phases.sin() * imag
        return output, (real.square() + imag.square()).sqrt()

    def forward(self, interpolant: Interpolant) -> Tensor:
        """Returns the pooled outputs (N, 6 * 2 * C * P), in the order of `POOLS`."""
        outputs, moduli = self.outputs(interpolant)
        observed = interpolant.observed.t()
        weights = interpolant.weights.t()

        def mean(x: Tensor) -> Tensor:
            return torch.einsum("tn,tnf->nf", weights, x.flatten(2))

        shares = [mean((outputs > bias).to(outputs.dtype)) for bias in self.biases]
        floor = torch.where(observed.view(*observed.shape, 1, 1, 1), outputs, -torch.inf)
        maximum = floor.amax(0).flatten(1)
        # A series without any observation has outputs of 0 everywhere.
        maximum = torch.where(observed.any(0).unsqueeze(1), maximum, 0.0)
        # Times stand still outside the observed rows, so the outermost rows are as good as those.
        end = torch.stack([outputs[-1, :, 0], outputs[0, :, 1]], dim=1).flatten(1)
        return torch.cat([*shares, maximum, mean(outputs), mean(moduli), end], dim=1)

    def names(self) -> list[str]:
        """Returns the names of the features."""
        _, n_channels, n_modes = self.phases.shape
        return [
            f"x{channel} {direction} mode {mode}: {pool}"
            for pool in POOLS
            for direction in ("forward", "backward")
            for channel in range(n_channels)
            for mode in range(n_modes)
        ]
