"""Does the ODE matter? Closed forms against solvers: what each scores, and what it costs.

python examples/compare_odes.py --odes morph linear rk4 dopri5
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latent_morph import FLOWS, LatentODEReconstructor, plots
from latent_morph.datasets import make_periodic
from latent_morph.diagnostics import time_interleaved


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--odes",
        nargs="+",
        default=["morph", "linear", "rk4", "dopri5"],
        choices=list(FLOWS),
        metavar="NAME",
        help=f"some of {', '.join(FLOWS)}",
    )
    parser.add_argument("--max-epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the picture")
    arguments = parser.parse_args(argv)

    waves = make_periodic(80, n_times=25, keep=0.6, random_state=arguments.seed)
    models, scores = {}, {}
    for ode in arguments.odes:
        begin = time.perf_counter()
        model = LatentODEReconstructor(
            ode=ode,
            max_epochs=arguments.max_epochs,
            batch_size=16,
            random_state=arguments.seed,
        )
        models[ode] = model.fit(waves.data[:60], waves.target[:60])
        scores[ode] = -model.score(waves.data[60:], waves.target[60:])
        seconds = time.perf_counter() - begin
        print(f"{ode:10s} mean squared error {scores[ode]:.4f}, trained in {seconds:.1f} s")

    # The same question to each, in turn, so that a busy machine hurts all alike.
    times = np.linspace(0, 5, 300)
    timings = time_interleaved(
        {
            ode: lambda model=model: model.predict(waves.data[60:], times)
            for ode, model in models.items()
        },
        repeats=5,
    )
    reference = timings["morph"].median_ms if "morph" in timings else None
    rows = [
        {
            "ode": ode,
            "score": scores[ode],
            "integration_ms_mean": timing.mean_ms,
            "integration_ms_std": timing.std_ms,
            "ratio_to_morph": reference and timing.median_ms / reference,
        }
        for ode, timing in timings.items()
    ]
    ax = plots.plot_ode_table(rows, score_name="MSE")
    ax.set_xlabel("milliseconds for 20 series at 300 times, encoder included (logarithmic)")
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"Picture: {plots.save_figure(ax, arguments.out / 'compare_odes.png')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
