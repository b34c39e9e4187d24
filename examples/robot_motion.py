"""Teach a robot a motion that always ends at its goal, from five demonstrations.

python examples/robot_motion.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latent_morph import DynamicsRegressor, plots

GOAL = np.zeros(2)


def demonstrate(n: int, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """A hand that swings out and in to the goal, slower towards the end, never twice the same."""
    demonstrations = []
    for _ in range(n):
        times = np.sort(np.append([0.0, 4.0], rng.uniform(0, 4, 58)))
        left = (1 - times / 4) ** 2  # of the way
        start = np.array([-1.0, 0.5]) + 0.08 * rng.normal(size=2)
        swing = 0.9 + 0.02 * rng.normal()
        path = left[:, None] * start + np.outer(swing * np.sin(np.pi * left**0.8), [0.5, 1.0])
        demonstrations.append((times, path + 0.004 * rng.normal(size=path.shape)))
    return demonstrations


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-epochs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the picture")
    arguments = parser.parse_args(argv)

    rng = np.random.default_rng(arguments.seed)
    X = demonstrate(6, rng)
    model = DynamicsRegressor(
        stable=True,
        goal=GOAL,
        augment=0,  # motions do not cross: an ODE of the plane, with a field that shows all of it
        scale="shared",  # a metre is a metre in every direction
        start_spread=0.3,  # few demonstrations: learn from starts beside them too
        max_epochs=arguments.max_epochs,
        random_state=arguments.seed,
    ).fit(X[:5])
    print(f"Error on a demonstration left out: {np.sqrt(-model.score(X[5:])):.4f}")

    starts = np.array([-0.4, 0.8]) + rng.uniform(-0.6, 0.6, (12, 2))
    ends = model.predict(starts, times=[1e6])[:, -1]
    print(f"Furthest end from the goal, of 12 new starts: {np.abs(ends - GOAL).max():.1e}")

    ax = plots.plot_vector_field(model, X[:5], names=("x (m)", "y (m)"), margin=0.4)
    for path in model.predict(starts, times=np.linspace(0, 12, 400)):
        (line,) = ax.plot(*path.T, color="#228833", linewidth=1.1)
        ax.plot(*path[0], "o", color="#228833", markersize=3.5)
    line.set_label("from new starts")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8.5)
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"Picture: {plots.save_figure(ax, arguments.out / 'robot_motion.png')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
