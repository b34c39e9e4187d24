"""Plot of a filter bank: how filters answer a series, and what becomes of their outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from latent_morph.filters import Bank, PointBank, interpolate, resample
from latent_morph.filters.kernels import N_KERNELS, N_TAPS
from latent_morph.filters.modes import N_BIASES, POOLS
from latent_morph.filters.points import N_RATES
from latent_morph.plots.figures import (
    CLASS_COLOURS,
    DARK,
    GREY,
    LEGEND_STYLE,
    LIGHT,
    PRIMARY,
    SMALL_SIZE,
    TEXT_SIZE,
    make_figure,
    make_patch,
    style_axes,
)
from latent_morph.series import Data, SeriesBatch, as_series, insert_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from latent_morph.estimators.filters import FilterEstimator

_Tensors: TypeAlias = tuple[Tensor, Tensor, Tensor]  # scaled values, times and mask

_N_TIMES = 600  # enough for a fast rotation to look smooth
# What is chosen, as fractions of the span of the series: the time in which a mode decays that does
# not rotate, the period of one that does, and the reach of a kernel's taps; and how much of the
# time an output should be above its bias.
_SLOW, _FAST, _REACH, _SHARE = 1 / 10, 1 / 15, 1 / 3, 0.4
_MIN_QUALITY = 3.0  # radians in which a rotation decays
_MODE_POOLS = ("maximum", "mean", "end")  # drawn beside the share above the bias


class _Clock(NamedTuple):
    """The times of a series."""

    start: float  # of the first observation, in the units of the data
    span: float  # scaled
    unit: float  # of scaled times, in the units of the data

    @classmethod
    def of(cls, batch: SeriesBatch, unit: float) -> _Clock:
        """Measures a single series."""
        observed = batch.times[batch.mask.any(-1)]
        first, last = float(observed.min()), float(observed.max())
        return cls(first, (last - first) / unit or 1.0, unit)


class _Answer(NamedTuple):
    """A filter's output for a series, and what is pooled of it."""

    name: str
    times: np.ndarray  # (T,)
    outputs: np.ndarray  # (T,)
    bias: float
    features: dict[str, float]  # by name; the first is the share above the bias


def plot_filter_bank(
    model: FilterEstimator,
    X: Data,
    *,
    case: int = 0,
    channel: int = 0,
    channel_name: str = "",
) -> np.ndarray:
    """Draws a channel of a series, and how filters of a bank answer it.

    Of a `FilterBank` and a `FilterBankClassifier` three filters are drawn that suit the span of
    the series: a mode that only decays, a mode that rotates fast, and a kernel. Outputs are those
    of the scaled series. Times above a bias are shaded; the share of these times is a feature,
    drawn at the right with others that are pooled over time.

    Of a `FilterBankPointClassifier`, whose features are those of a row, the decayed means of the
    past, of the future and of both are drawn, in the units of the data.

    Args:
        model: Fitted `FilterBank`, `FilterBankClassifier` or `FilterBankPointClassifier`.
        X: Series, in any form that `as_series` accepts.
        case: Index of the series.
        channel: Position of the channel. A kernel may read other channels too.
        channel_name: Its name.

    Returns:
        The axes: (7,) of the series, the outputs of three filters and their features, or (3,) of
        the decayed means.

    Raises:
        IndexError: There is no such case.
        ValueError: There is no such channel, or the series has no observation.
    """
    batch = as_series(X, dtype=torch.float64)[case].trim()
    if not 0 <= channel < batch.n_channels:
        raise ValueError(f"channel must be in 0 .. {batch.n_channels - 1}, got {channel}")
    if not batch.mask.any():
        raise ValueError(f"X must have an observation in case {case}, got none")
    first, last = float(batch.times[0, 0]), float(batch.times[0, -1])
    query = torch.linspace(first, last, _N_TIMES, dtype=torch.float64)
    # Rows without an observation change no output, and show it between the others.
    extended, _ = insert_rows(batch, query.unsqueeze(0))
    modules = model.model_.modules()
    bank = next(part for part in modules if isinstance(part, Bank | PointBank))
    if isinstance(bank, Bank):
        axes = _plot_answers(model, bank, batch, extended, channel, channel_name)
    else:
        axes = _plot_decayed_means(model, bank, batch, extended, channel, channel_name)
    margin = 0.01 * ((last - first) or 1.0)
    axes[0].set_xlim(first - margin, last + margin)
    return axes


def _plot_answers(
    model: FilterEstimator,
    bank: Bank,
    batch: SeriesBatch,
    extended: SeriesBatch,
    channel: int,
    channel_name: str,
) -> np.ndarray:
    """Draws the series, the outputs of three filters and what is pooled of these."""
    clock = _Clock.of(batch, model.scaler_.time_scale_)
    with torch.no_grad():
        rows, between = model._prepare(batch), model._prepare(extended)
        answers = [
            *_answer_modes(bank, rows, between, clock, channel),
            _answer_kernel(bank, rows, clock, channel),
        ]
        scaled = interpolate(*between).values.cpu().double()
    line = model.scaler_.inverse_values(scaled)[0, :, channel]
    figure = make_figure(8.6, 6.2, hspace=0.03, h_pad=0.03, w_pad=0.05)
    grid = figure.subplots(4, 2, width_ratios=[3.4, 1], height_ratios=[1.25, 1, 1, 1])
    corner, *bars = grid[:, 1]
    series, *panels = grid[:, 0]
    for panel in panels:
        panel.sharex(series)
    series.plot(extended.times[0].numpy(), line.numpy(), color=PRIMARY, linewidth=1.1)
    _draw_observations(series, batch, channel)
    series.set_ylabel(channel_name, fontsize=TEXT_SIZE)
    style_axes(series)
    colours = CLASS_COLOURS[1], CLASS_COLOURS[2], CLASS_COLOURS[5]
    for answer, colour, panel, bar in zip(answers, colours, panels, bars, strict=True):
        _draw_outputs(panel, answer, colour)
        _draw_features(bar, answer, colour)
    for ax in (series, *panels[:-1]):
        ax.tick_params(axis="x", labelbottom=False)
    panels[-1].set_xlabel("time", fontsize=TEXT_SIZE)
    bars[0].set_title("pooled over time", loc="left", fontsize=SMALL_SIZE, color=GREY)
    figure.align_ylabels([series, *panels])
    corner.axis("off")
    corner.legend(handles=_make_legend_handles(), loc="center left", **LEGEND_STYLE)
    return np.array([series, *panels, *bars])


def _plot_decayed_means(
    model: FilterEstimator,
    bank: PointBank,
    batch: SeriesBatch,
    extended: SeriesBatch,
    channel: int,
    channel_name: str,
) -> np.ndarray:
    """Draws decayed means of the past, of the future and of both among the observations."""
    n_channels = batch.n_channels
    with torch.no_grad():
        features = bank(*model._prepare(extended))[0].cpu().double()  # (T, F)
    means = features[:, n_channels:].split(n_channels * N_RATES, dim=1)
    times = extended.times[0].numpy()
    figure = make_figure(8.6, 5.2, hspace=0.03, h_pad=0.03)
    panels = figure.subplots(3, 1, sharex=True, sharey=True)
    sides = ("past", "future", "past and future")
    colours = CLASS_COLOURS[1], CLASS_COLOURS[2], CLASS_COLOURS[5]
    for panel, side, colour, mean in zip(panels, sides, colours, means[:3], strict=True):
        by_rate = mean.unflatten(1, (n_channels, N_RATES)).movedim(2, 0)  # (K, T, C)
        curves = model.scaler_.inverse_values(by_rate)[..., channel].numpy()
        shades = np.linspace(0.3, 1, N_RATES)
        for curve, shade, rate in zip(curves, shades, bank.rates.tolist(), strict=True):
            label = f"within {model.scaler_.time_scale_ / rate:.2g}"
            panel.plot(times, curve, color=colour, alpha=shade, linewidth=1.4, label=label)
        _draw_observations(panel, batch, channel)
        style_axes(panel)
        panel.locator_params(axis="y", nbins=5)
        panel.set_title(f"decayed means of the {side}", loc="left", fontsize=SMALL_SIZE)
        panel.set_ylabel(channel_name, fontsize=TEXT_SIZE)
        legend = {"title": "decays", "title_fontsize": SMALL_SIZE, "bbox_to_anchor": (1.01, 1.0)}
        panel.legend(loc="upper left", **LEGEND_STYLE, **legend)
    panels[-1].set_xlabel("time", fontsize=TEXT_SIZE)
    return panels


def _answer_modes(
    bank: Bank, rows: _Tensors, between: _Tensors, clock: _Clock, channel: int
) -> list[_Answer]:
    """Answers by two forward modes, one that only decays and one that rotates fast."""
    modes = bank.modes
    _, n_channels, n_modes = modes.phases.shape
    at_rows, finely = interpolate(*rows), interpolate(*between)
    pooled = modes(at_rows).view(len(POOLS), 2, n_channels, n_modes)[:, 0, channel]
    outputs = modes.outputs(finely)[0][:, 0, 0, channel]
    bias_at = (pooled[:N_BIASES] - _SHARE).abs().argmin(0)
    share = pooled.gather(0, bias_at.unsqueeze(0))[0]
    decay, period = 1 / modes.rates, 2 * torch.pi / modes.frequencies
    rotates = modes.frequencies > 0
    rings = modes.frequencies > _MIN_QUALITY * modes.rates
    slow = _choose(decay / (_SLOW * clock.span), share, ~rotates)
    fast = _choose(period / (_FAST * clock.span), share, rings if rings.any() else rotates)
    decay, period = decay * clock.unit, period * clock.unit
    names = {
        slow: f"slow mode: decays within {decay[slow]:.2g}, does not rotate",
        fast: f"fast mode: rotates in {period[fast]:.2g}, decays within {decay[fast]:.2g}",
    }
    return [
        _Answer(
            name=name,
            times=clock.start + clock.unit * finely.times[0].cpu().numpy(),
            outputs=outputs[:, mode].cpu().numpy(),
            bias=float(modes.biases[bias_at[mode], 0, channel, mode]),
            features={"share above bias": float(share[mode])}
            | {pool: float(pooled[POOLS.index(pool), mode]) for pool in _MODE_POOLS},
        )
        for mode, name in names.items()
    ]


def _answer_kernel(bank: Bank, rows: _Tensors, clock: _Clock, channel: int) -> _Answer:
    """Answers by a kernel that reads the channel, if there is one."""
    kernels, at_rows = bank.kernels, interpolate(*rows)
    n_lags, n_biases, _ = kernels.biases.shape
    step = float(kernels.step)
    n_points = int(clock.span / step) + 2
    grid, inside = resample(at_rows, kernels.step, n_points)
    pooled = kernels(at_rows).view(-1, n_lags, n_biases, N_KERNELS)
    shares, positions, _ = pooled
    reach = (kernels.lags * step * (N_TAPS - 1) / (_REACH * clock.span)).view(-1, 1, 1)
    # Each group of kernels reads a mixture of channels; the fewer, the clearer is the picture.
    reads = kernels.mixtures[:, channel] > 0  # (lags, groups)
    n_mixed = kernels.mixtures.sum(1)
    per_group = N_KERNELS // reads.shape[1]
    reads, n_mixed = (
        x.repeat_interleave(per_group, 1).unsqueeze(1).expand_as(shares) for x in (reads, n_mixed)
    )
    candidates = reads if reads.any() else torch.ones_like(reads)
    best = _choose((reach * n_mixed).flatten(), shares.flatten(), candidates.flatten())
    best_index = tuple(int(i) for i in np.unravel_index(best, shares.shape))
    lag, bias, kernel = best_index
    biases = kernels.biases[lag, :, kernel]
    others = [int(b) for b in biases.argsort() if b != bias][: len(_MODE_POOLS) - 1]
    apart = int(kernels.lags[lag]) * step * clock.unit
    mixed = int(n_mixed[lag, bias, kernel])
    of_channels = "" if mixed == 1 else f", of {mixed} channels"
    return _Answer(
        name=f"kernel: nine taps, {apart:.2g} apart{of_channels}",
        times=clock.start + clock.unit * step * np.arange(n_points)[inside[0].cpu().numpy()],
        outputs=kernels.outputs(grid, lag)[0, inside[0], kernel].cpu().numpy(),
        bias=float(biases[bias]),
        features={
            "share above bias": float(shares[best_index]),
            "position": float(positions[best_index]),
        }
        | {
            f"above {_format_number(float(biases[b]))}": float(shares[lag, b, kernel])
            for b in others
        },
    )


def _format_number(value: float) -> str:
    """Formats a number as the axes do, with a minus sign."""
    return f"{value:.2f}".replace("-", "−")


def _choose(ratio: Tensor, share: Tensor, candidates: Tensor) -> int:
    """Chooses a filter by the ratio of its time to the aim, and by its share above the bias."""
    cost = ratio.log().abs() + 3 * (share - _SHARE).abs()
    return int(torch.where(candidates, cost, torch.inf).argmin())


def _draw_observations(ax: Axes, batch: SeriesBatch, channel: int) -> None:
    """Draws the observations of a channel as dots."""
    times, values = batch.to_ragged()[0]
    size = float(np.clip(400 / len(times), 1.6, 4.0))
    ax.plot(times, values[:, channel], "o", color=DARK, markersize=size)


def _draw_outputs(ax: Axes, answer: _Answer, colour: str) -> None:
    """Draws an output over time, and shades what is above the bias."""
    ax.fill_between(
        answer.times,
        answer.outputs,
        answer.bias,
        where=(answer.outputs > answer.bias).tolist(),
        interpolate=True,
        color=colour,
        alpha=0.3,
        linewidth=0,
    )
    ax.axhline(answer.bias, color=GREY, linestyle="--", linewidth=0.9)
    ax.plot(answer.times, answer.outputs, color=colour, linewidth=1.1)
    style_axes(ax)
    ax.locator_params(axis="y", nbins=4)
    ax.set_title(answer.name, loc="left", fontsize=SMALL_SIZE, color=DARK)
    ax.set_ylabel("output", fontsize=TEXT_SIZE)


def _draw_features(ax: Axes, answer: _Answer, colour: str) -> None:
    """Draws features as bars, with their values; that of the drawn bias is stronger."""
    values = list(answer.features.values())
    positions = -np.arange(len(values))
    alphas = [0.85] + [0.3] * (len(values) - 1)
    for y, value, alpha in zip(positions, values, alphas, strict=True):
        ax.barh(y, value, height=0.62, color=colour, alpha=alpha, linewidth=0)
        ax.annotate(
            _format_number(value),
            (max(value, 0.0), y),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL_SIZE - 1,
            color=DARK,
        )
    ax.axvline(0, color=GREY, linewidth=0.8)
    low, high = min(0.0, *values), max(1.0, *values)
    ax.set_xlim(low, high + 0.3 * (high - low))  # with space for the last number
    ax.set_ylim(-len(values) + 0.4, 0.6)
    ax.set_yticks(positions, list(answer.features))
    ax.set_xticks([])
    ax.tick_params(length=0, labelsize=SMALL_SIZE - 0.5, labelcolor=DARK)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _make_legend_handles() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=DARK, marker="o", markersize=4, linestyle="", label="observed"),
        Line2D([], [], color=PRIMARY, label="linear interpolant"),
        Line2D([], [], color=GREY, linestyle="--", label="bias"),
        make_patch(LIGHT, "output above bias"),
    ]
