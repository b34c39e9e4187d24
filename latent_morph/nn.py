"""Plain fully connected networks, the parts that bijections and vector fields are made of."""

from torch import nn

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
        zero_last: Start with the last layer at zero, so that the network starts as the zero map.
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
