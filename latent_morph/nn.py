"""Fully connected networks, dropout and an initialiser."""

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_count

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "relu": nn.ReLU,
}


def mlp(
    n_in: int,
    n_out: int,
    *,
    width: int,
    depth: int = 1,
    activation: str = "silu",
    zero_last: bool = False,
) -> nn.Sequential:
    """Builds a network of `depth` hidden layers of `width` units.

    Args:
        n_in: Size of the input's last axis.
        n_out: Size of the output's last axis.
        width: Units of each hidden layer.
        depth: Number of hidden layers; 0 gives one affine map.
        activation: A name from `ACTIVATIONS`.
        zero_last: Initialize the last layer with zeros, so that the network starts as zero.
    """
    check_count("width", width)
    check_count("depth", depth, least=0)
    make_activation = ACTIVATIONS[check_choice("activation", activation, ACTIVATIONS)]
    layers: list[nn.Module] = []
    size = n_in
    for _ in range(depth):
        layers += [nn.Linear(size, width), make_activation()]
        size = width
    last = nn.Linear(size, n_out)
    if zero_last:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def dropout(x: Tensor, p: float, *, training: bool) -> Tensor:
    """Zeroes a fraction `p` of the entries of `x`, rounded to 1/256, and scales the others up.

    One random byte per entry is drawn. torch's own dropout draws a float per entry, which took
    longer than the layer around it.
    """
    n_kept = round(256 * (1 - p))
    if not training or n_kept == 256:
        return x
    words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
    words.random_(torch.iinfo(torch.int64).min, None)
    keep = words.view(torch.uint8)[: x.numel()].view(x.shape) < n_kept
    return x * keep.to(x.dtype).mul_(256 / max(1, n_kept))


def init_input_weights(gru: nn.GRU | nn.GRUCell) -> None:
    """Draws the weights of the inputs within 1 / sqrt(number of inputs), as `nn.Linear` does.

    torch draws them within 1 / sqrt(hidden size). With few inputs and many units, states then
    start almost independent of the inputs, and the first epochs learn nothing.
    """
    for name, parameter in gru.named_parameters():
        if name.startswith("weight_ih"):
            bound = parameter.shape[1] ** -0.5
            nn.init.uniform_(parameter, -bound, bound)
