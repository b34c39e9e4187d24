"""Learn a damped pendulum from noisy, irregular trajectories, with any ODE choice, and draw it.

python examples/pendulum.py --ode morph-stable
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from latent_morph.flows import FLOWS, Flow, SolverFlow


def pendulum(state: Tensor) -> Tensor:
    """speed' = -sin(angle) - 0.3 speed, angle' = speed."""
    speed, angle = state.unbind(-1)
    return torch.stack([-angle.sin() - 0.3 * speed, speed], dim=-1)


Data = tuple[Tensor, Tensor, Tensor]


def observe(n_cases: int, n_times: int, *, noise: float, seed: int) -> Data:
    """Random starts (N, 2), irregular times (N, T) in [0, 10], what was seen there (N, T, 2)."""
    generator = torch.Generator().manual_seed(seed)
    starts = 2.6 * torch.rand(n_cases, 2, generator=generator) - 1.3
    times = 10 * torch.rand(n_cases, n_times, generator=generator).sort(-1).values
    exact = SolverFlow(pendulum, 2, rtol=1e-7, atol=1e-7)(starts, times)
    return starts, times, exact + noise * torch.randn(exact.shape, generator=generator)


def learn(flow: Flow, data: Data, *, max_epochs: int) -> float:
    """Fits the flow to the trajectories, full batch, and returns the seconds it took."""
    starts, times, seen = data
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=1e-2, total_steps=max_epochs)
    begin = time.perf_counter()
    for epoch in range(1, max_epochs + 1):
        loss = (flow(starts, times) - seen).abs().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if epoch % max(1, max_epochs // 5) == 0:
            print(f"  epoch {epoch:5d}   mean absolute error {loss.item():.4f}")
    return time.perf_counter() - begin


def draw(flow: Flow, data: Data, title: str, path: Path) -> None:
    """Left: the base ODE on a square grid. Right: the same through the warp, with the data."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from latent_morph.flows import MorphFlow

    starts, _, seen = data
    grid = torch.linspace(-1.8, 1.8, 25)
    lattice = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), dim=-1)
    times = torch.linspace(0, 12, 400)
    with torch.no_grad():
        learned = flow(starts[:12], times)
        panels = [("learned ODE with its data", learned, lattice)]
        if isinstance(flow, MorphFlow):
            base = flow.base(flow.warp.inverse(starts[:12]), times)
            panels = [
                ("base ODE: linear, solved exactly", base, flow.warp.inverse(lattice)),
                (f"{title}: the same through the network", learned, lattice),
            ]
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4.6), squeeze=False)
    for axis, (name, paths, lines) in zip(axes[0], panels, strict=True):
        for sheet in (lines, lines.transpose(0, 1)):
            axis.plot(*sheet.unbind(-1), color="#b8c4d6", linewidth=0.6, zorder=1)
        for curve in paths:
            axis.plot(*curve.unbind(-1), color="#c0392b", linewidth=1.2, zorder=2)
        axis.set_title(name, fontsize=11)
        axis.set_aspect("equal", adjustable="datalim")  # both panels, and titles, as high
        axis.set_axis_off()
    points = seen[:12].reshape(-1, 2)
    axes[0, -1].scatter(*points.unbind(-1), s=5, color="#1f3a5f", zorder=3, label="observations")
    axes[0, -1].legend(
        loc="upper right", bbox_to_anchor=(1, 0.02), frameon=False, fontsize=9, markerscale=2
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ode",
        default="morph-stable",
        choices=list(FLOWS),
        metavar="NAME",
        help=f"one of {', '.join(FLOWS)}",
    )
    parser.add_argument("--max-epochs", type=int, default=600, help="steps of training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder for the picture")
    arguments = parser.parse_args(argv)

    options: dict[str, object] = {} if arguments.ode == "linear" else {"seed": arguments.seed}
    if arguments.ode in ("linear", "morph", "morph-real", "morph-stable"):
        options["horizon"] = 5.0  # about half a swing
    flow = FLOWS[arguments.ode](2, **options)
    print(f"Learning a damped pendulum with {arguments.ode}, 24 series of 30 irregular times:")
    seconds = learn(
        flow, observe(24, 30, noise=0.05, seed=arguments.seed), max_epochs=arguments.max_epochs
    )
    starts, times, truth = observe(100, 100, noise=0.0, seed=arguments.seed + 1)
    with torch.no_grad():
        error = (flow(starts, times) - truth).abs().mean().item()
    print(f"100 unseen starts: mean absolute error {error:.4f}, trained in {seconds:.1f} s")
    arguments.out.mkdir(parents=True, exist_ok=True)
    picture = arguments.out / f"pendulum_{arguments.ode}.png"
    draw(flow, observe(24, 30, noise=0.05, seed=arguments.seed), arguments.ode, picture)
    print(f"Picture: {picture}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
