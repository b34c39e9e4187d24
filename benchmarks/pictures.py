"""Figures of benchmarks: one panel per task, times on a logarithmic axis."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from latent_morph import plots

# Benchmarks of which each task is the name of a quantity and its size.
GROWTH = ("growth", "filter_growth")


def draw(name: str, rows: Sequence[Row], path: Path) -> Path:
    """Draws the rows of a benchmark to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = _draw_growth(rows) if name in GROWTH else _draw_panels(rows)
    return plots.save_figure(figure, path)


def _draw_panels(rows: Sequence[Row]) -> Any:  # noqa: ANN401
    """Draws the times of candidates, one panel per task and direction."""
    from matplotlib.figure import Figure

    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["mean_ms"] is None:
            continue  # training failed
        title = ", ".join(filter(None, [row["task"], row.get("direction")]))
        groups.setdefault(title, []).append(row)
    columns = min(2, len(groups))
    n_rows = -(-len(groups) // columns)
    height = 0.34 * max(map(len, groups.values())) + 1.3
    figure = Figure(figsize=(6.2 * columns, height * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, columns, squeeze=False).ravel()
    for ax, (title, group) in zip(axes, groups.items(), strict=False):
        cells = [
            {
                "ode": row["candidate"],
                "integration_ms_mean": row["mean_ms"],
                "integration_ms_std": row["std_ms"],
                "ratio_to_morph": row["ratio_to_morph"],
                "score": row.get("error", row.get("mse")),
            }
            for row in group
        ]
        plots.plot_ode_table(cells, score_name=group[0].get("metric", "mse"), ax=ax)
        ax.set_xlabel("milliseconds, logarithmic")
        ax.set_title(title, loc="left", fontsize=10)
    for ax in axes[len(groups) :]:
        ax.set_axis_off()
    return figure


def _draw_growth(rows: Sequence[Row]) -> Any:  # noqa: ANN401
    """Draws time against each quantity."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 3.6), layout="constrained")
    kinds = list(dict.fromkeys(row["task"].rsplit(" ", 1)[0] for row in rows))
    axes = figure.subplots(1, len(kinds), sharey=True)
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    for ax, kind in zip(axes, kinds, strict=True):
        for colour, name in zip(plots.CLASS_COLOURS, names, strict=False):
            points = [
                (int(row["task"].rsplit(" ", 1)[1]), row["mean_ms"], row["std_ms"])
                for row in rows
                if row["candidate"] == name and row["task"].startswith(kind)
            ]
            if points:
                x, y, spread = zip(*points, strict=True)
                ax.errorbar(x, y, yerr=spread, fmt="o-", color=colour, label=name, markersize=4)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ticks = sorted({int(row["task"].rsplit(" ", 1)[1]) for row in rows if kind in row["task"]})
        ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        ax.minorticks_off()
        ax.set_xlabel(kind)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="#E0E0E0", linewidth=0.6)
    axes[0].set_ylabel("milliseconds")
    axes[0].legend(frameon=False, fontsize=8.5)
    return figure
