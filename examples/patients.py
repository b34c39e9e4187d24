"""Who is getting worse? Vital signs in a long table, taken whenever somebody had time.

python examples/patients.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from latent_morph import LatentODEClassifier, from_long, plots

SIGNS = ["pulse", "temperature", "pressure"]


def ward(n_patients: int, rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """One row a visit, most signs missing at most visits; half of the patients get worse."""
    rows, outcome = [], rng.permutation(np.arange(n_patients) % 2)
    for patient, ill in enumerate(outcome):
        hours = np.sort(rng.uniform(0, 48, rng.integers(12, 30)))
        course = ill / (1 + np.exp(-(hours - rng.uniform(16, 30)) / 4))  # from 0 to 1
        usual = rng.normal([75, 36.8, 125], [8, 0.2, 10])
        daily = np.sin(hours / 24 * 2 * np.pi)
        drift = np.outer(course, [16, 0.7, -15]) + np.outer(daily, [6, 0.25, 6])
        values = usual + drift + rng.normal(size=(len(hours), 3)) * [6, 0.25, 8]
        values[rng.random(values.shape) < [0.2, 0.6, 0.5]] = np.nan
        rows.append(pd.DataFrame(values, columns=SIGNS).assign(patient=patient, hour=hours))
    return pd.concat(rows), np.where(outcome, "worse", "stable")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the picture")
    arguments = parser.parse_args(argv)

    table, y = ward(240, np.random.default_rng(arguments.seed))
    print(table.head(4).to_string(index=False))
    X = from_long(table, id="patient", time="hour", columns=SIGNS)
    train, test = train_test_split(np.arange(len(X)), stratify=y, random_state=arguments.seed)

    model = LatentODEClassifier(max_epochs=arguments.max_epochs, random_state=arguments.seed)
    model.fit(X[train], y[train])
    worse = model.predict_proba(X[test])[:, 1]
    print(f"{len(test)} unseen patients: accuracy {model.score(X[test], y[test]):.3f}, ", end="")
    print(f"area under the ROC curve {roc_auc_score(y[test] == 'worse', worse):.3f}")

    # Somebody who got worse and was found out: when did the model know?
    case = test[int(np.argmax(worse))]
    axes = plots.plot_series(model, X, case=case, labels=y[case], channel_names=SIGNS)
    axes[-1].set_xlabel("hours since admission")
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"Picture: {plots.save_figure(axes, arguments.out / 'patients.png')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
