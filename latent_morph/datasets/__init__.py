"""Data sets: `fetch_*` reads real files, `make_*` generates series of known origin."""

from latent_morph.datasets.activity import fetch_activity, split_activity
from latent_morph.datasets.ecg import fetch_ecg
from latent_morph.datasets.periodic import make_periodic
from latent_morph.datasets.physionet import fetch_physionet
from latent_morph.datasets.simulated_activity import make_activity
from latent_morph.datasets.simulated_ecg import make_ecg

__all__ = [
    "fetch_activity",
    "fetch_ecg",
    "fetch_physionet",
    "make_activity",
    "make_ecg",
    "make_periodic",
    "split_activity",
]
