"""FreiaINN: coupling networks made of FrEIA's own modules; the only file that imports FrEIA.

For fidelity to published work and for choice. The compact default of this package is
`latent_morph.bijections.coupling`, which is faster on a CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.bijections.base import Bijection
from latent_morph.bijections.coupling import PIECE_BYTES, merge_permutations
from latent_morph.checks import check_choice, check_count, check_positive
from latent_morph.nn import mlp

# Our names to FrEIA's classes.
FREIA_COUPLINGS = {
    "rnvp": "RNVPCouplingBlock",
    "glow": "GLOWCouplingBlock",
    "nice": "NICECouplingBlock",
    "gin": "GINCouplingBlock",
    "all-in-one": "AllInOneBlock",
}


@final
class FreiaINN(Bijection):
    """A chain of one kind of FrEIA's coupling blocks.

    Blocks work on random permutations of the coordinates and hand them back in the old order, so
    that the network starts as the identity; `"all-in-one"` has permutations of its own and starts
    as one of them.

    Args:
        dim: Number of coordinates, at least 2.
        coupling: A name from `FREIA_COUPLINGS`.
        blocks: Number of blocks.
        width: Hidden units of the subnets.
        depth: Hidden layers of the subnets.
        activation: A name from `latent_morph.nn.ACTIVATIONS`.
        clamp: A block scales a coordinate by at most exp(clamp); `"nice"` does not scale.
    """

    enter: Tensor  # (blocks, dim): the order of coordinates before each block
    leave: Tensor  # (dim,): and after the last one

    def __init__(
        self,
        dim: int,
        *,
        coupling: str = "rnvp",
        blocks: int = 2,
        width: int = 16,
        depth: int = 1,
        activation: str = "silu",
        clamp: float = 1.0,
    ) -> None:
        super().__init__(dim)
        check_count("dim", dim, least=2)
        check_count("blocks", blocks)
        check_positive("clamp", clamp)
        self.coupling = check_choice("coupling", coupling, FREIA_COUPLINGS)
        self.width = width
        # FrEIA imports scipy.stats, about a second: pay when a network is built, not at import.
        from FrEIA import modules

        make_block: Callable[..., nn.Module] = partial(
            getattr(modules, FREIA_COUPLINGS[coupling]),
            [(dim,)],
            subnet_constructor=partial(
                mlp, width=width, depth=depth, activation=activation, zero_last=True
            ),
            **_clamp_options(coupling, clamp),
        )
        with _numpy_seeded_by_torch():
            self.blocks = nn.ModuleList(make_block() for _ in range(blocks))
        permutes_itself = coupling == "all-in-one"
        make_order = torch.arange if permutes_itself else torch.randperm
        enter, leave = merge_permutations([make_order(dim) for _ in range(blocks)])
        self.register_buffer("enter", enter)
        self.register_buffer("leave", leave)

    def _forward(self, x: Tensor) -> Tensor:
        return self._map(self._forward_rows, x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._map(self._inverse_rows, y)

    def _map(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Applies a function of rows (M, dim) to points (..., dim); see `CouplingINN._map`."""
        rows = x.reshape(-1, self.dim)
        if not len(rows):  # which not all of FrEIA's modules take
            return x
        size = max(1, PIECE_BYTES // (self.width * x.element_size()))
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or len(rows) <= size:
            return function(rows).view(x.shape)
        return torch.cat([function(piece) for piece in rows.split(size)]).view(x.shape)

    def _forward_rows(self, x: Tensor) -> Tensor:
        for block, order in zip(self.blocks, self.enter, strict=True):
            (x,), _ = block((x.index_select(1, order),), jac=False)
        return x.index_select(1, self.leave)

    def _inverse_rows(self, y: Tensor) -> Tensor:
        y = y.index_select(1, self.leave.argsort())
        undo: Sequence[Tensor] = self.enter.argsort(dim=1).unbind()
        for block, order in zip(reversed(list(self.blocks)), reversed(undo), strict=True):
            (y,), _ = block((y,), rev=True, jac=False)
            y = y.index_select(1, order)
        return y


def _clamp_options(coupling: str, clamp: float) -> dict[str, Any]:
    if coupling == "nice":
        return {}
    if coupling == "all-in-one":
        return {"affine_clamping": clamp}
    return {"clamp": clamp, "clamp_activation": _soft_clamp}


def _soft_clamp(u: Tensor) -> Tensor:
    """From -1 to 1, as our own coupling has it; FrEIA's default, the arctangent, is slower."""
    return 2 * torch.sigmoid(u) - 1


@contextmanager
def _numpy_seeded_by_torch() -> Iterator[None]:
    """FrEIA draws from NumPy's global generator: let torch's decide, and restore NumPy's."""
    before = np.random.get_state()
    np.random.seed(int(torch.randint(2**31 - 1, (), device="cpu")))
    try:
        yield
    finally:
        np.random.set_state(before)
