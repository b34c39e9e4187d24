"""Invertible networks from FrEIA's coupling blocks; the only file that imports FrEIA."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from latent_morph.bijections.base import Bijection
from latent_morph.bijections.scalar import ScalarWarp
from latent_morph.checks import check_choice, check_count, check_positive
from latent_morph.nn import mlp
from latent_morph.seeding import seeded

# Compact sizes are those of `python -m benchmarks sizes`: larger ones scored no better.
# The paper names the block and its sizes but no activation; a diffeomorphism wants a smooth one.
INN_PRESETS: dict[str, dict[str, Any]] = {
    "compact": {
        "coupling": "glow",
        "blocks": 2,
        "width": 16,
        "activation": "silu",
        "clamp": 1.0,
    },
    "paper": {
        "coupling": "rnvp",
        "blocks": 5,
        "width": 1500,
        "activation": "tanh",
        "clamp": 2.0,
    },
}

# Where no gradient is recorded, points pass in pieces of which a hidden layer has so many bytes:
# what it computes then stays in the cache.
_LAYER_BYTES = 2**21

_COUPLINGS = {"glow": "GLOWCouplingBlock", "rnvp": "RNVPCouplingBlock"}


def _soft_clamp(u: Tensor) -> Tensor:
    """From -1 to 1. FrEIA's own are lambdas, which do not pickle, or tanh, thrice as slow."""
    return 2 * torch.sigmoid(u) - 1


@final
class CouplingINN(Bijection):
    """FrEIA's two-sided affine coupling blocks, each on its own random split of the coordinates.

    A block sees permuted coordinates and hands them back in the old order, so that a network whose
    subnets start at zero starts as the identity. Neighbouring permutations are merged into one.
    """

    def __init__(
        self,
        dim: int,
        *,
        coupling: str,
        blocks: int,
        width: int,
        depth: int,
        activation: str,
        clamp: float,
    ) -> None:
        super().__init__(dim)
        self.width = width
        # FrEIA pulls in scipy.stats, about a second: pay when a network is built, not at import.
        from FrEIA import modules

        make_block: Callable[..., nn.Module] = getattr(modules, _COUPLINGS[coupling])
        subnet = partial(mlp, width=width, depth=depth, activation=activation, zero_last=True)
        self.blocks = nn.ModuleList(
            make_block(
                [(dim,)], subnet_constructor=subnet, clamp=clamp, clamp_activation=_soft_clamp
            )
            for _ in range(blocks)
        )
        # Block k works in the order `orders[k]`. To go from one block's order to the next's:
        # undo the old, apply the new, in a single gather.
        orders = [torch.arange(dim), *(torch.randperm(dim) for _ in range(blocks))]
        undo = [order.argsort() for order in orders]
        steps = [undo[k][orders[k + 1]] for k in range(blocks)]
        self.register_buffer("enter", torch.stack(steps))
        self.register_buffer("leave", undo[-1])

    enter: Tensor  # (blocks, dim): the gather before each block
    leave: Tensor  # (dim,): the gather after the last one

    def _forward(self, x: Tensor) -> Tensor:
        return self._in_pieces(self._columns_forward, x.movedim(-1, 0)).movedim(0, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._in_pieces(self._columns_inverse, y.movedim(-1, 0)).movedim(0, -1)

    def on_columns(self, x: Tensor) -> Tensor:
        """See `Bijection.on_columns`; this is how the network works inside."""
        if self._compiled_call_impl is not None:  # torch compiles a module's call, nothing else
            return self(x.movedim(0, -1)).movedim(-1, 0)
        return self._in_pieces(self._columns_forward, x)

    def piece(self, dtype: torch.dtype) -> int:
        """How many points of `dtype` pass at once, where there are more and no gradient."""
        return max(1, _LAYER_BYTES // (self.width * dtype.itemsize))

    def _in_pieces(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Applies `function`, which maps points as columns (dim, M), to (dim, ...)."""
        columns = x.reshape(self.dim, -1)
        # With gradients every intermediate result is kept anyway, and there is nothing to save.
        whole = torch.is_grad_enabled() or torch.compiler.is_compiling()
        size = self.piece(x.dtype)
        if whole or columns.shape[1] <= size:
            return function(columns).view(x.shape)
        done = [function(piece) for piece in columns.split(size, dim=1)]
        return torch.cat(done, dim=1).view(x.shape)

    def _columns_forward(self, x: Tensor) -> Tensor:
        for block, order in zip(self.blocks, self.enter, strict=True):
            first, second = _halves(block, x.index_select(0, order))
            first = _stretched(block, first, *_coefficients(block, 2, second))
            second = _stretched(block, second, *_coefficients(block, 1, first))
            x = torch.cat([first, second])
        return x.index_select(0, self.leave)

    def _columns_inverse(self, y: Tensor) -> Tensor:
        y = y.index_copy(0, self.leave, y)
        for block, order in zip(reversed(list(self.blocks)), self.enter.flip(0), strict=True):
            first, second = _halves(block, y)
            second = _unstretched(block, second, *_coefficients(block, 1, first))
            first = _unstretched(block, first, *_coefficients(block, 2, second))
            y = y.index_copy(0, order, torch.cat([first, second]))
        return y


# FrEIA's blocks hold the parameters and define the map; it is evaluated here with points as
# columns, so that halves and permutations are whole rows of memory, and without the
# log-determinant, which no trajectory needs. The tests hold it against FrEIA's own forward.


def _halves(block: Any, x: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
    return x.split([block.split_len1, block.split_len2])


def _coefficients(block: Any, side: int, passive: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    """What scales and what shifts one half, computed from the other by the subnets of `side`."""
    if hasattr(block, "subnet1"):
        scale, shift = _on_columns(getattr(block, f"subnet{side}"), passive).chunk(2)
    else:
        scale = _on_columns(getattr(block, f"subnet_s{side}"), passive)
        shift = _on_columns(getattr(block, f"subnet_t{side}"), passive)
    return scale, shift


def _stretched(block: Any, x: Tensor, u: Tensor, shift: Tensor) -> Tensor:  # noqa: ANN401
    return torch.addcmul(shift, x, _scale(u, block.clamp))


def _unstretched(block: Any, y: Tensor, u: Tensor, shift: Tensor) -> Tensor:  # noqa: ANN401
    return (y - shift) * _scale(u, -block.clamp)


def _scale(u: Tensor, clamp: float) -> Tensor:
    """exp(clamp * _soft_clamp(u)), in one step less."""
    return ((u.sigmoid() - 0.5) * (2 * clamp)).exp()


def _on_columns(network: nn.Sequential, x: Tensor) -> Tensor:
    """An `mlp` on points as columns: (n_in, M) to (n_out, M)."""
    for layer in network:
        if isinstance(layer, nn.Linear):
            x = torch.addmm(layer.bias.unsqueeze(1), layer.weight, x)
        else:
            x = layer(x)
    return x


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
            coupling block needs two coordinates; the other sizes have no meaning there.
        preset: `"compact"` (GLOW blocks, fast on a CPU) or `"paper"` (RNVP, 5 blocks of 1,500).
        coupling: `"glow"` (one subnet gives scale and shift) or `"rnvp"` (one for each).
        blocks: Number of coupling blocks; each transforms both halves.
        width: Hidden units of the subnets.
        depth: Hidden layers of the subnets.
        activation: A name from `latent_morph.nn.ACTIVATIONS`.
        clamp: A block scales a coordinate by at most exp(clamp). Small is robust: far from the
            data the scales of all blocks multiply.
        seed: Makes weights and permutations reproducible without touching anybody's random state;
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
    check_choice("coupling", options["coupling"], _COUPLINGS)
    check_count("blocks", options["blocks"])
    check_positive("clamp", options["clamp"])
    if dim == 1:
        return ScalarWarp(blocks=options["blocks"])
    with seeded(seed):
        return CouplingINN(dim, depth=depth, **options)


def resolve_inn(inn: str | Mapping[str, Any], dim: int) -> Bijection:
    """Builds what `inn` describes: a preset's name, or `make_inn`'s options as a mapping."""
    if isinstance(inn, str):
        return make_inn(dim, check_choice("inn", inn, INN_PRESETS))
    if isinstance(inn, Mapping):
        return make_inn(dim, **inn)
    raise TypeError(f"inn must be a preset's name or a mapping, got {type(inn).__name__}")
