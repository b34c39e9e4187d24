"""How high will the water be? Two days of irregular readings, a day ahead, with a band.

python examples/forecast.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latent_morph import LatentODEReconstructor, plots

SEEN, WHOLE = 48.0, 72.0  # hours


def sea_level(hours: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Metres at a place: two tides a lunar day of 24.84 hours, one of them higher."""
    height, ratio, phase, lag = place
    turn = 2 * np.pi * hours / 24.84
    return height * (np.cos(2 * turn - phase) + ratio * np.cos(turn - lag))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-epochs", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the picture")
    arguments = parser.parse_args(argv)

    rng = np.random.default_rng(arguments.seed)
    places = rng.uniform([0.8, 0.2, 0, 0], [1.6, 0.6, 2 * np.pi, 2 * np.pi], (170, 4))
    whole = []
    for place in places:
        hours = np.append(0.0, np.sort(rng.uniform(0, WHOLE, 60)))
        whole.append((hours, sea_level(hours, place) + 0.08 * rng.normal(size=len(hours))))
    seen = [(hours[hours < SEEN], level[hours < SEEN]) for hours, level in whole]

    # The encoder sees two days and is held to all three: forecasting is what it learns.
    model = LatentODEReconstructor(
        max_epochs=arguments.max_epochs,
        kl_weight=0.01,
        ode_options={"horizon": 0.5},  # in spans of a series: start with 1, 2, ... whole waves
        batch_size=32,
        random_state=arguments.seed,
    )
    model.fit(seen[:150], whole[:150])

    test = slice(150, 170)
    fine = np.linspace(0, WHOLE, 400)
    mean, std = model.reconstruct(seen[test], fine, return_std=True)
    truth = np.array([sea_level(fine, place) for place in places[test]])
    error = np.abs(mean[..., 0] - truth)[:, fine > SEEN].mean()
    inside = (np.abs(mean - truth[..., None]) < 2 * std)[:, fine > SEEN].mean()
    print(f"20 unseen places, a day ahead: error {error:.3f} m, {inside:.0%} within the band")

    axes = plots.plot_reconstructions(
        [
            {
                "times": fine,
                "mean": mean[i, :, 0],
                "std": std[i, :, 0],
                "observed": seen[test][i],
                "truth": (fine, truth[i]),
                "channel_name": f"place {i + 1}, metres",
            }
            for i in range(4)
        ],
        columns=2,
    )
    for ax in axes:
        ax.axvspan(SEEN, WHOLE, color="#F2F2F2", zorder=0)  # the future
    for ax in axes[2:]:
        ax.set_xlabel("hours; grey is the future")
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"Picture: {plots.save_figure(axes, arguments.out / 'forecast.png')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
