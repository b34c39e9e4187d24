"""Data sets: `fetch_*` reads published files, `make_*` generates synthetic series."""

from latent_morph.datasets.activity import fetch_activity, split_activity
from latent_morph.datasets.ecg import fetch_ecg
from latent_morph.datasets.periodic import make_periodic
from latent_morph.datasets.physionet import fetch_physionet
from latent_morph.datasets.robot import fetch_robot_demonstrations
from latent_morph.datasets.simulated_activity import make_activity
from latent_morph.datasets.simulated_ecg import make_ecg
from latent_morph.datasets.systems import make_lorenz, make_lotka_volterra, make_robertson

__all__ = [
    "fetch_activity",
    "fetch_ecg",
    "fetch_physionet",
    "fetch_robot_demonstrations",
    "make_activity",
    "make_ecg",
    "make_lorenz",
    "make_lotka_volterra",
    "make_periodic",
    "make_robertson",
    "split_activity",
]
