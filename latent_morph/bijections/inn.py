"""make_inn: builds invertible networks by name; presets, couplings and their sizes."""

from collections.abc import Mapping
from typing import Any

from latent_morph.bijections.base import Bijection
from latent_morph.bijections.coupling import CouplingINN
from latent_morph.bijections.freia import FREIA_COUPLINGS, FreiaINN
from latent_morph.bijections.scalar import ScalarWarp
from latent_morph.checks import check_choice, check_count, check_positive
from latent_morph.seeding import seeded

# "affine" is `CouplingINN`, the others are FrEIA's modules.
COUPLINGS = ("affine", *FREIA_COUPLINGS)

# Compact sizes were chosen by `python -m benchmarks sizes`: larger ones scored no better.
_COMPACT: dict[str, Any] = {
    "coupling": "affine",
    "blocks": 2,
    "width": 16,
    "activation": "silu",
    "clamp": 1.0,
}
# The paper names the block and its sizes but no activation; a smooth one makes a diffeomorphism.
_PAPER: dict[str, Any] = {
    "coupling": "rnvp",
    "blocks": 5,
    "width": 1500,
    "activation": "tanh",
    "clamp": 2.0,
}
INN_PRESETS: dict[str, dict[str, Any]] = {
    "compact": _COMPACT,
    "paper": _PAPER,
    **{name: _COMPACT | {"coupling": name} for name in FREIA_COUPLINGS},
}


def make_inn(
    dim: int,
    preset: str = "compact",
    *,
    coupling: str | None = None,
    blocks: int | None = None,
    width: int | None = None,
    depth: int = 1,
    activation: str | None = None,
    clamp: float | None = None,
    seed: int | None = None,
) -> Bijection:
    """Builds an invertible network on R^dim that starts as the identity.

    Args:
        dim: Number of coordinates. A single one gets a `ScalarWarp` of `blocks` parts, since a
            coupling block needs two coordinates; the other sizes are ignored then.
        preset: `"compact"` (`CouplingINN`, fast on a CPU), `"paper"` (FrEIA's RNVP, 5 blocks of
            1,500 units), or the name of one of FrEIA's couplings with compact sizes.
        coupling: `"affine"` for `CouplingINN`, or one of FrEIA's: `"rnvp"` (one subnet for scale
            and one for shift), `"glow"` (one subnet for both), `"nice"` (shift only), `"gin"`
            (volume preserving) or `"all-in-one"` (with permutation and global scaling; starts as a
            permutation of the coordinates).
        blocks: Number of coupling blocks.
        width: Hidden units of the subnets.
        depth: Hidden layers of the subnets.
        activation: A name from `latent_morph.nn.ACTIVATIONS`.
        clamp: A block scales a coordinate by at most exp(clamp). Small values are robust, since
            far from the data the scales of all blocks multiply.
        seed: Makes weights and permutations reproducible without changing torch's random state;
            `None` draws from torch's generator.

    Returns:
        A `Bijection`; arguments left at `None` take the preset's value.
    """
    check_count("dim", dim)
    options = dict(INN_PRESETS[check_choice("preset", preset, INN_PRESETS)])
    given = {
        "coupling": coupling,
        "blocks": blocks,
        "width": width,
        "activation": activation,
        "clamp": clamp,
    }
    options |= {name: value for name, value in given.items() if value is not None}
    check_choice("coupling", options["coupling"], COUPLINGS)
    check_count("blocks", options["blocks"])
    check_positive("clamp", options["clamp"])
    if dim == 1:
        return ScalarWarp(blocks=options["blocks"])
    with seeded(seed):
        if options["coupling"] != "affine":
            return FreiaINN(dim, depth=depth, **options)
        del options["coupling"]
        return CouplingINN(dim, depth=depth, **options)


def resolve_inn(inn: str | Mapping[str, Any], dim: int) -> Bijection:
    """Builds a network from the name of a preset, or from a mapping of `make_inn`'s options."""
    if isinstance(inn, str):
        return make_inn(dim, check_choice("inn", inn, INN_PRESETS))
    if isinstance(inn, Mapping):
        return make_inn(dim, **inn)
    raise TypeError(f"inn must be a preset's name or a mapping, got {type(inn).__name__}")
