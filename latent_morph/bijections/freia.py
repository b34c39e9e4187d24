"""FreiaINN: coupling networks made of FrEIA's own modules; the only file that imports FrEIA.

They reproduce published work. The default, `latent_morph.bijections.coupling`, is faster on a CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.bijections.base import Bijection
from latent_morph.bijections.coupling import map_in_chunks, merge_permutations
from latent_morph.checks import check_choice, check_count, check_positive
from latent_morph.nn import mlp

# FrEIA's class for each name.
FREIA_COUPLINGS = {
    "rnvp": "RNVPCouplingBlock",
    "glow": "GLOWCouplingBlock",
    "nice": "NICECouplingBlock",
    "gin": "GINCouplingBlock",
    "all-in-one": "AllInOneBlock",
}


@final
class FreiaINN(Bijection):
    """A sequence of FrEIA's coupling blocks of one kind.

    Each block has a random permutation of the coordinates, which is undone after it, so that the
    network starts as the identity. `"all-in-one"` has permutations of its own and starts as a
    permutation.

    Args:
        dim: Number of coordinates, at least 2.
        coupling: A name from `FREIA_COUPLINGS`.
        blocks: Number of blocks.
        width: Hidden units of the subnets.
        depth: Hidden layers of the subnets.
        activation: A name from `latent_morph.nn.ACTIVATIONS`.
        clamp: A block scales a coordinate by at most exp(clamp); `"nice"` does not scale.
    """

    enter: Tensor  # (blocks, dim): permutation of the coordinates before each block
    leave: Tensor  # (dim,): permutation after the last block

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
        # FrEIA imports scipy.stats, which takes about a second: not when this module is imported.
        from FrEIA import modules

        make_block: Callable[..., nn.Module] = partial(
            getattr(modules, FREIA_COUPLINGS[coupling]),
            [(dim,)],
            subnet_constructor=partial(
                mlp, width=width, depth=depth, activation=activation, zero_last=True
            ),
            **_make_clamp_options(coupling, clamp),
        )
        with _seed_numpy_from_torch():
            self.blocks = nn.ModuleList(make_block() for _ in range(blocks))
        make_order = torch.arange if coupling == "all-in-one" else torch.randperm
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
        if not len(rows):  # not supported by all of FrEIA's modules
            return x
        return map_in_chunks(function, rows, dim=0, width=self.width).view(x.shape)

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


def _make_clamp_options(coupling: str, clamp: float) -> dict[str, Any]:
    if coupling == "nice":
        return {}
    if coupling == "all-in-one":
        return {"affine_clamping": clamp}
    return {"clamp": clamp, "clamp_activation": _soft_clamp}


def _soft_clamp(u: Tensor) -> Tensor:
    """Maps to (-1, 1) as `CouplingINN` does; FrEIA's default, the arctangent, is slower."""
    return 2 * torch.sigmoid(u) - 1


@contextmanager
def _seed_numpy_from_torch() -> Iterator[None]:
    """Seeds NumPy's global generator, which FrEIA uses, from torch's, and restores it."""
    state = np.random.get_state()
    np.random.seed(int(torch.randint(2**31 - 1, (), device="cpu")))
    try:
        yield
    finally:
        np.random.set_state(state)
