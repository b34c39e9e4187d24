"""What is this person doing at every moment? Four tags that report in turns, a label a reading.

The recordings are generated; `fetch_activity` reads the real ones and gives the same form.

python examples/activity.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latent_morph import LatentODEPointClassifier, plots
from latent_morph.datasets import make_activity, split_activity


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the picture")
    arguments = parser.parse_args(argv)

    windows = make_activity(800, random_state=arguments.seed)
    names = np.array(windows.target_names)
    X, y = windows.data, names[windows.target]
    train, test = split_activity(windows, "person")  # somebody the model has never seen

    model = LatentODEPointClassifier(
        reconstruction_weight=1.0,  # ten times the default: curves are to be seen beside classes
        max_epochs=arguments.max_epochs,
        random_state=arguments.seed,
    )
    model.fit(X[train], y[train], groups=windows.groups[train])
    print(f"Labels right for an unseen person: {model.score(X[test], y[test]):.3f}")

    # To see a change of activity found: of the windows with one in the middle half, the best.
    changes = y[test][:, 1:] != y[test][:, :-1]
    quarter = changes.shape[1] // 4
    changing = test[changes[:, quarter:-quarter].any(1)]
    right = (model.predict(X[changing]) == y[changing]).mean(1)
    case = changing[np.argmax(right)]
    axes = plots.plot_series(
        model, X, case=case, labels=y[case], channel_names=windows.feature_names, channels=[2, 8]
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"Picture: {plots.save_figure(axes, arguments.out / 'activity.png')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
