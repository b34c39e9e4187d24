"""Invertible networks from FrEIA's coupling blocks; the only file that imports FrEIA."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from latent_morph.bijections.base import Bijection
from latent_morph.bijections.coupling import BY_HAND, Chain, Mover, coupled
from latent_morph.bijections.scalar import ScalarWarp
from latent_morph.bijections.wiring import Wiring
from latent_morph.by_hand import ByHand, in_a_row, wants_plain
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
# FrEIA's names for the subnets that move the first half, then for those that move the second.
_SUBNETS = {
    "glow": (("subnet2",), ("subnet1",)),
    "rnvp": (("subnet_s2", "subnet_t2"), ("subnet_s1", "subnet_t1")),
}


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
        self.coupling, self.activation = coupling, activation
        self.width, self.clamp = width, clamp
        self._by_hand = (coupling, depth, activation) == ("glow", 1, BY_HAND)
        # FrEIA pulls in scipy.stats, about a second: pay when a network is built, not at import.
        from FrEIA import modules

        make_block: Callable[..., Any] = getattr(modules, _COUPLINGS[coupling])
        subnet = partial(mlp, width=width, depth=depth, activation=activation, zero_last=True)
        made = [
            make_block(
                [(dim,)], subnet_constructor=subnet, clamp=clamp, clamp_activation=_soft_clamp
            )
            for _ in range(blocks)
        ]
        self._halves = (made[0].split_len1, made[0].split_len2)
        # What moves the first half, then what moves the second: their subnets, and the layers.
        self.movers = nn.ModuleList(
            nn.ModuleList(nn.ModuleList(_together(made, name)) for name in side)
            for side in _SUBNETS[coupling]
        )
        self.blocks = nn.ModuleList(made)
        # Block k works in the order `orders[k]`. To go from one block's order to the next's:
        # undo the old, apply the new, in a single gather.
        orders = [torch.arange(dim), *(torch.randperm(dim) for _ in range(blocks))]
        undo = [order.argsort() for order in orders]
        steps = [undo[k][orders[k + 1]] for k in range(blocks)]
        self.register_buffer("enter", torch.stack(steps))
        self.register_buffer("leave", undo[-1])
        self._known_wiring: tuple[Tensor, Tensor, Wiring] | None = None

    enter: Tensor  # (blocks, dim): the gather before each block
    leave: Tensor  # (dim,): the gather after the last one

    def _movers(self) -> Iterable[Iterable[Iterable["LayerOfBlocks"]]]:
        return self.movers  # type: ignore[return-value]  # ModuleList forgets its element type

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        *args: Any,  # noqa: ANN401
    ) -> None:
        for old, new in self._former_names(prefix):
            if all(name in state_dict for name in old):
                state_dict[new] = torch.stack([state_dict.pop(name) for name in old])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _former_names(self, prefix: str) -> Iterator[tuple[list[str], str]]:
        """Until version 2 of model files, each block had its weights to itself."""
        for i, mover in enumerate(self._movers()):
            for j, subnet in enumerate(mover):
                name = _SUBNETS[self.coupling][i][j]
                for k, _ in enumerate(subnet):
                    for kind in ("weight", "bias"):
                        old = [
                            f"{prefix}blocks.{block}.{name}.{2 * k}.{kind}"
                            for block in range(len(self.blocks))
                        ]
                        yield old, f"{prefix}movers.{i}.{j}.{k}.{kind}"

    def _forward(self, x: Tensor) -> Tensor:
        return self._mapped(x.movedim(-1, 0), self._passes()[0]).movedim(0, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._mapped(y.movedim(-1, 0), self._passes()[1]).movedim(0, -1)

    def on_columns(self, x: Tensor) -> Tensor:
        """See `Bijection.on_columns`; this is how the network works inside."""
        if self._compiled_call_impl is not None:  # torch compiles a module's call, nothing else
            return self(x.movedim(0, -1)).movedim(-1, 0)
        return self._mapped(x, self._passes()[0])

    def both_ways(self, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """See `Bijection.both_ways`."""
        if self._compiled_call_impl is not None:
            return super().both_ways(y)
        forwards, backwards = self._passes()
        return self._mapped(y.mT, backwards).mT, partial(self._mapped, function=forwards)

    def conjugated(self, y: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Bijection.conjugated`; where gradients are wanted, one function by hand."""
        compiled = self._compiled_call_impl is not None
        if (
            compiled
            or wants_plain()
            or not torch.is_grad_enabled()
            or not self._by_hand
            or not isinstance(inner, ByHand)
        ):
            return super().conjugated(y, inner)
        chain = self._chain()
        return in_a_row(chain.backwards, inner, chain.forwards)(y)

    def piece(self, dtype: torch.dtype) -> int:
        """How many points of `dtype` pass at once, where there are more and no gradient."""
        return max(1, _LAYER_BYTES // (self.width * dtype.itemsize))

    def _mapped(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Applies `function`, which maps points as columns (dim, M), to (dim, ...)."""
        columns = x.reshape(self.dim, -1)
        # With gradients every intermediate result is kept anyway, and there is nothing to save.
        whole = torch.is_grad_enabled() or torch.compiler.is_compiling()
        size = self.piece(x.dtype)
        if whole or columns.shape[1] <= size:
            return function(columns).view(x.shape)
        done = [function(piece) for piece in columns.split(size, dim=1)]
        return torch.cat(done, dim=1).view(x.shape)

    def _passes(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The map of points as columns (dim, M), and its inverse."""
        if self._by_hand:
            chain = self._chain()
            return chain.forwards, chain.backwards
        function = partial(coupled, wiring=self._wiring(), movers=self._weights())
        return partial(function, inverse=False), partial(function, inverse=True)

    def _chain(self) -> Chain:
        return Chain(self._wiring(), self._weights())

    def _weights(self) -> list[Mover]:
        return [
            [[(layer.weight, layer.bias) for layer in subnet] for subnet in mover]
            for mover in self._movers()
        ]

    def _wiring(self) -> Wiring:
        """From `enter` and `leave`, and kept: to sort takes longer than to compare."""
        if wants_plain() or self.enter.is_meta:  # where there are no numbers to compare
            return self._wired(self.enter, self.leave)
        if self._known_wiring is not None:
            enter, leave, wiring = self._known_wiring
            if enter.device == self.enter.device and (
                torch.equal(enter, self.enter) and torch.equal(leave, self.leave)
            ):
                return wiring
        with torch.inference_mode(mode=False):  # gradients may be wanted later
            enter, leave = self.enter.clone(), self.leave.clone()
            wiring = self._wired(enter, leave)
        self._known_wiring = enter, leave, wiring
        return wiring

    def _wired(self, enter: Tensor, leave: Tensor) -> Wiring:
        there = [*enter.unbind(), leave]
        back = [leave.argsort(), *reversed(enter.argsort().unbind())]
        return Wiring(
            gathers=(there, back),
            halves=self._halves,
            clamp=self.clamp,
            activation=self.activation,
        )


# FrEIA's blocks define the map and how it starts. It is evaluated with points as columns, so that
# halves and permutations are whole rows of memory, with the weights of all blocks together, and
# without the log-determinant, which no trajectory needs. The tests hold it against FrEIA's own.


@final
class LayerOfBlocks(nn.Module):
    """The same layer of every block: weights (B, n_out, n_in) and biases (B, n_out)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))


def _together(blocks: Sequence[Any], name: str) -> list[LayerOfBlocks]:
    """Takes the layers of a subnet out of all blocks, which see windows on them from then on."""
    subnets = [getattr(block, name) for block in blocks]
    n_layers = (len(subnets[0]) + 1) // 2  # between them are activations
    layers = [LayerOfBlocks([subnet[2 * k] for subnet in subnets]) for k in range(n_layers)]
    for number, block in enumerate(blocks):
        setattr(block, name, _SubnetOfBlock(layers, number, subnets[0][1:2]))
    return layers


@final
class _SubnetOfBlock(nn.Module):
    """A subnet as FrEIA's block `number` calls it; the weights are not its own."""

    def __init__(
        self, layers: Sequence[LayerOfBlocks], number: int, activation: nn.Sequential
    ) -> None:
        super().__init__()
        self._layers, self._number, self._activation = tuple(layers), number, activation

    def forward(self, x: Tensor) -> Tensor:
        """(N, n_in) to (N, n_out)."""
        for k, layer in enumerate(self._layers):
            if k:
                x = self._activation(x)
            x = nn.functional.linear(x, layer.weight[self._number], layer.bias[self._number])
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
