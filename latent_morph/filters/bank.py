"""Bank: all filters of a series, as one vector of features."""

import math
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn

from latent_morph.filters.interpolant import Interpolant, interpolate, measure_times
from latent_morph.filters.kernels import N_KERNELS, N_TAPS, POOLS, Kernels
from latent_morph.filters.modes import Modes
from latent_morph.filters.observations import Observations
from latent_morph.filters.scores import NormalScores
from latent_morph.filters.statistics import Statistics

BLOCKS = ("modes", "kernels", "positions", "changes", "observations", "statistics")
# Modes per channel and direction: so many in all, but at least so many for each.
N_MODES, MIN_MODES = 256, 6
N_LAGS = 12
# Biases per kernel, of outputs and of their changes each, shared out among the lags.
N_BIASES = 24
# Training series among whose outputs, at so many rows each, biases are drawn, and from which
# normal scores are learned.
BIAS_CASES, BIAS_ROWS, SCORE_CASES = 64, 256, 4096
# The fastest mode decays by this power of e over the median gap between rows.
_FASTEST = 0.7
# Of the grid of the kernels: the quantile of the gaps that it resolves, and points per row.
_SMALL_GAP = 0.1
MAX_POINTS = 3


class Bank(nn.Module):
    """Features of irregular series that need no training, only the scale of times and values.

    Kernels see shapes, and read the values as they are. Statistics see levels, and read their
    normal scores. Modes read either.

    Args:
        n_channels: C.
        n_lags: Number of lags of the kernels; see `choose_lags`.
        anchored: Whether every series is seen from the start to the end of the training series, on
            a clock that they share. Otherwise it is seen from its first to its last observation.
        ranked: Whether modes read normal scores, not the values.
    """

    frame: Tensor

    def __init__(
        self, n_channels: int, n_lags: int, *, anchored: bool = False, ranked: bool = False
    ) -> None:
        super().__init__()
        self.anchored, self.ranked = anchored, ranked
        self.register_buffer("frame", torch.zeros(2, dtype=torch.float64))
        self.scores = NormalScores(n_channels)
        self.modes = Modes(n_channels, max(MIN_MODES, N_MODES // n_channels))
        self.kernels = Kernels(n_channels, n_lags, max(1, N_BIASES // n_lags))
        self.observations = Observations(n_channels)
        self.statistics = Statistics(n_channels).float()

    @classmethod
    def fit(
        cls,
        values: Tensor,
        times: Tensor,
        mask: Tensor,
        generator: torch.Generator,
        *,
        anchored: bool = False,
        ranked: bool = False,
        max_numbers: float = math.inf,
    ) -> Self:
        """Builds a bank for training series.

        Args:
            values: (N, T, C) scaled, finite.
            times: (N, T), non-decreasing.
            mask: (N, T, C), False in the padding.
            generator: Source of randomness.
            anchored: As for the constructor.
            ranked: As for the constructor.
            max_numbers: Intermediate numbers at a time, if one series does not need more.
        """
        observed = mask.any(-1)
        gap, span = measure_gaps(times, observed)
        small_gap, _ = measure_gaps(times, observed, _SMALL_GAP)
        frame = times.new_zeros(2)
        if anchored and bool(observed.any()):
            frame = torch.stack([times[observed].amin(), times[observed].amax()])
            span = max(span, float(frame[1] - frame[0]))
        # The grid of the kernels is as fine as rows often are, but has at most about so many
        # points per row: sparse rows at random times still say something of short lags.
        step = max(small_gap, span / max(2, MAX_POINTS * int(observed.sum(1).amax())))
        # A whole number of steps, so that rounding of the gaps of a regular grid does not add up.
        step = span / max(1, round(span / step))
        lags = choose_lags(span / step)
        bank = cls(values.shape[-1], len(lags), anchored=anchored, ranked=ranked)
        bank = bank.to(values.dtype)
        bank.frame = frame
        bank.modes.draw(1 / span, max(1 / span, _FASTEST / gap), generator)
        n_rates = len(bank.observations.rates)
        bank.observations.rates = spread_rates(n_rates, gap, span).to(values.dtype)
        bank.kernels.draw(step, lags, find_varying(values, mask), generator)
        order = torch.randperm(len(values), generator=generator)
        # Series without any observation come last: they would only give outputs of 0.
        is_empty = ~observed.any(1)[order]
        order = order[is_empty.long().argsort(stable=True)]
        drawn = order[:SCORE_CASES]
        bank.scores.fit(values[drawn], mask[drawn])
        bank._fit_biases(values, times, mask, order[:BIAS_CASES], generator, max_numbers)
        bank.statistics.fit(span)
        return bank

    def _fit_biases(
        self,
        values: Tensor,
        times: Tensor,
        mask: Tensor,
        cases: Tensor,
        generator: torch.Generator,
        max_numbers: float,
    ) -> None:
        """Draws biases among outputs for some of the series."""
        observed = mask[cases].any(-1)
        _, span = measure_times(times[cases], observed)
        # Rows up to the last observed one, at least one.
        lengths = torch.where(observed, torch.arange(mask.shape[1]) + 1, 1).amax(1)
        n_numbers = self.count_numbers(lengths, span)
        of_modes, of_kernels = [], []
        for part in split_by_size(n_numbers, max_numbers):
            chosen = cases[part]
            n_rows = int(lengths[part].amax())
            some = self._add_anchors(
                values[chosen, :n_rows], times[chosen, :n_rows], mask[chosen, :n_rows]
            )
            of_modes.append(self.modes.sample(self._interpolate_for_modes(*some), BIAS_ROWS))
            of_kernels.append(self.kernels.sample(interpolate(*some), BIAS_ROWS))
        self.modes.fit(torch.cat(of_modes), generator)
        self.kernels.fit([torch.cat(each) for each in zip(*of_kernels, strict=True)], generator)

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Maps series to features (N, F)."""
        values, times, mask, rows = self._add_anchors(values, times, mask)
        return torch.cat(
            [
                self.modes(self._interpolate_for_modes(values, times, mask, rows)),
                self.kernels(interpolate(values, times, mask, rows)),
                self.observations(times, mask, rows),
                self.statistics(self.scores(values), times, mask, rows),
            ],
            dim=1,
        )

    def _interpolate_for_modes(
        self, values: Tensor, times: Tensor, mask: Tensor, rows: Tensor
    ) -> Interpolant:
        return interpolate(self.scores(values) if self.ranked else values, times, mask, rows)

    def _add_anchors(
        self, values: Tensor, times: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Adds rows without observations at the ends of the frame, if there is one.

        Returns:
            Values, times and mask, and which rows count (N, T).
        """
        rows = mask.any(-1)
        if not self.anchored:
            return values, times, mask, rows
        start, end = self.frame
        first = torch.where(rows, times, torch.inf).amin(1, keepdim=True).minimum(start)
        last = torch.where(rows, times, -torch.inf).amax(1, keepdim=True).maximum(end)
        blank = torch.zeros_like(values[:, :1])
        one = torch.ones_like(rows[:, :1])
        return (
            torch.cat([blank, values, blank], dim=1),
            torch.cat([first, times.clamp(first, last), last], dim=1),
            torch.cat([blank.bool(), mask, blank.bool()], dim=1),
            torch.cat([one, rows, one], dim=1),
        )

    def sizes(self) -> list[int]:
        """Returns the number of features of each block, in the order of `BLOCKS`."""
        return [len(names) for names in self._block_names()]

    def names(self) -> list[str]:
        """Returns the names of the features."""
        return [name for names in self._block_names() for name in names]

    def _block_names(self) -> list[list[str]]:
        names = self.kernels.names()
        n_pooled = len(names) // len(POOLS)
        return [
            self.modes.names(),
            *(names[start : start + n_pooled] for start in range(0, len(names), n_pooled)),
            self.observations.names(),
            [f"{name} of the normal scores" for name in self.statistics.names()],
        ]

    def count_numbers(self, n_rows: Tensor, span: Tensor) -> Tensor:
        """Estimates how many intermediate numbers series of so many rows and such spans need."""
        span = span.clamp(min=float(self.frame[1] - self.frame[0]))
        per_row = 12 * self.modes.phases.numel() + 20 * self.scores.knots.shape[1]
        return per_row * n_rows + (6 * N_KERNELS + N_TAPS) * self.kernels.count_points(span)


def find_varying(values: Tensor, mask: Tensor) -> Tensor:
    """Returns (C,) which channels have different observed values; all of them if none has."""
    least = torch.where(mask, values, torch.inf).flatten(0, 1).amin(0)
    varies = least < torch.where(mask, values, -torch.inf).flatten(0, 1).amax(0)
    return varies if bool(varies.any()) else torch.ones_like(varies)


def split_by_size(sizes: Tensor, limit: float) -> Iterator[Tensor]:
    """Yields indices of series of like size, so many at a time that their sum is below a limit.

    A series that is larger alone comes alone.

    Args:
        sizes: (N,).
        limit: Of the sum, where all are as large as the largest.
    """
    order = sizes.argsort(descending=True, stable=True)
    start = 0
    while start < len(order):
        count = (
            len(order) if math.isinf(limit) else max(1, int(limit / float(sizes[order[start]])))
        )
        yield order[start : start + count]
        start += count


def choose_lags(n_steps: float) -> Tensor:
    """Returns different lags from one step to those with which the taps cover a whole span."""
    longest = max(1.0, n_steps / (N_TAPS - 1))
    lags = longest ** torch.linspace(0, 1, N_LAGS)
    return lags.round().long().unique()


def spread_rates(n_rates: int, gap: float, span: float) -> Tensor:
    """Returns rates evenly spread, by their logarithms, over what gaps and spans can show."""
    slowest, fastest = 1 / span, max(1 / span, _FASTEST / gap)
    return slowest * (fastest / slowest) ** ((torch.arange(n_rates) + 0.5) / n_rates)


def measure_gaps(times: Tensor, observed: Tensor, level: float = 0.5) -> tuple[float, float]:
    """Returns a quantile of the gaps between observed rows and the longest span, 1 for none."""
    known = torch.where(observed, times, -torch.inf)
    latest = known.cummax(1).values
    gaps = times[:, 1:] - latest[:, :-1]
    gaps = gaps[observed[:, 1:] & (gaps > 0) & gaps.isfinite()]
    if not len(gaps):
        return 1.0, 1.0
    first = torch.where(observed, times, torch.inf).amin(1)
    spans = latest[:, -1] - first
    # Not `quantile`, which takes only some millions of numbers.
    quantile = gaps.kthvalue(1 + int(level * (len(gaps) - 1))).values
    return float(quantile), float(spans[spans.isfinite()].max())
