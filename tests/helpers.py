"""Every implementation of each abstraction, ready for the tests of its laws.

Parameters are moved away from their initial values, which hide half of the mathematics.
"""

from collections.abc import Callable

import torch
from torch import nn

from latent_morph.bijections import (
    FREIA_COUPLINGS,
    Anchored,
    Bijection,
    Composed,
    Inverted,
    make_inn,
)
from latent_morph.encoders import (
    AttentionEncoder,
    Encoder,
    GRUDecayEncoder,
    GRUODEEncoder,
    MorphEncoder,
)
from latent_morph.flows import FLOWS, METHODS, Flow, FlowRecipe

DIM = 3


def perturb(module: nn.Module, *, amount: float = 0.1, seed: int = 0) -> nn.Module:
    """Returns the module in float64 with noise added to every parameter, as after training."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise, alpha=amount)
    return module


def states(*batch: int, dim: int = DIM, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*batch, dim, generator=generator, dtype=torch.float64)


CLOSED_FORMS = ("linear", "morph", "morph-real", "morph-stable")

# How far a method at these settings is from its own limit, over times of about one.
TOLERANCE = {name: 1e-10 for name in CLOSED_FORMS} | {
    "morph-neural": 5e-2,
    "euler": 5e-2,
    "midpoint": 1e-3,
    "heun2": 1e-3,
    "heun3": 1e-4,
    "rk4": 1e-6,
    "explicit_adams": 1e-3,
    "implicit_adams": 1e-4,
    "adaptive_heun": 1e-4,
    "fehlberg2": 1e-4,
    "bosh3": 1e-4,
    "dopri5": 1e-4,
    "dopri8": 1e-4,
    "scipy_solver": 1e-4,
}


def build_flow(name: str, dim: int = DIM) -> Flow:
    options: dict = {}
    if METHODS.get(name) in ("fixed", "multistep") or name == "morph-neural":
        options["step_size"] = 0.05 if name == "morph-neural" else 0.02
    elif name in METHODS:
        options |= {"rtol": 1e-7, "atol": 1e-7}
    if name.startswith("morph"):
        options |= {"inn": {"blocks": 2, "width": 8}}
        if name == "morph-neural":
            options |= {"units": 8, "layers": 1}
    elif name in METHODS:
        options |= {"units": 8}
    return perturb(FLOWS[name](dim, seed=0, **options) if name != "linear" else FLOWS[name](dim))


ALL_FLOWS = tuple(FLOWS)

ALL_BIJECTIONS: dict[str, Callable[[int], Bijection]] = {
    "compact": lambda dim: make_inn(dim, seed=0),
    "paper": lambda dim: make_inn(dim, "paper", width=32, seed=0),
    **{
        name: lambda dim, name=name: make_inn(dim, name, blocks=3, seed=0)
        for name in FREIA_COUPLINGS
    },
    "deep": lambda dim: make_inn(dim, blocks=2, width=8, depth=3, activation="gelu", seed=0),
    "composed": lambda dim: Composed(make_inn(dim, seed=0), make_inn(dim, seed=1)),
    "inverted": lambda dim: Inverted(make_inn(dim, seed=0)),
    "anchored": lambda dim: Anchored(make_inn(dim, seed=0), torch.arange(float(dim))),
}

ALL_ENCODERS: dict[str, Callable[[int, int, FlowRecipe], Encoder]] = {
    "gru-ode": lambda n_channels, latent_dim, recipe: GRUODEEncoder(
        n_channels, latent_dim, recipe, hidden_dim=4
    ),
    "gru-ode-backward": lambda n_channels, latent_dim, recipe: GRUODEEncoder(
        n_channels, latent_dim, recipe, hidden_dim=4, bidirectional=False
    ),
    "morph": lambda n_channels, latent_dim, recipe: MorphEncoder(
        n_channels, latent_dim, hidden_dim=4, layers=2
    ),
    "morph-pooled": lambda n_channels, latent_dim, recipe: MorphEncoder(
        n_channels, latent_dim, hidden_dim=4, layers=2, pool=3
    ),
    "gru-decay": lambda n_channels, latent_dim, recipe: GRUDecayEncoder(
        n_channels, latent_dim, hidden_dim=4
    ),
    "gru-decay-forward": lambda n_channels, latent_dim, recipe: GRUDecayEncoder(
        n_channels, latent_dim, hidden_dim=4, bidirectional=False
    ),
    "attention": lambda n_channels, latent_dim, recipe: AttentionEncoder(
        n_channels, latent_dim, hidden_dim=4, n_reference=5, embed_dim=8
    ),
}


def build_encoder(name: str, flow: str = "linear", *, n_channels: int = 2) -> Encoder:
    """An encoder of latent size DIM with the flow of that name between observations."""
    torch.manual_seed(0)
    encoder = ALL_ENCODERS[name](n_channels, DIM, lambda dim: build_flow(flow, dim))
    return perturb(encoder).eval()
