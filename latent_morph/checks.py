"""Argument checks, whose messages read "NAME must be ..., got ..."."""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real

import torch
from torch import Tensor


class NotFiniteError(ValueError):
    """A tensor holds NaN or infinity where numbers are needed."""


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """Returns `value` if it is one of `known`; the error lists them and suggests one."""
    names = list(known)
    if isinstance(value, str) and value in names:
        return value
    close = get_close_matches(value, names, n=1) if isinstance(value, str) else []
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(f"{name} must be one of {', '.join(names)}, got {value!r}{hint}")


def check_count(name: str, value: object, *, least: int = 1) -> int:
    """Returns `value` as an int if it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_positive(name: str, value: object) -> float:
    """Returns `value` as a float if it is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__})")
    number = float(value)
    if not 0.0 < number < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return number


def check_state(name: str, state: object, dim: int) -> Tensor:
    """Returns `state` if it is a real floating-point tensor whose last axis has size `dim`."""
    if not isinstance(state, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(state).__name__}")
    if not state.is_floating_point():
        raise TypeError(f"{name} must be real floating point, got dtype {state.dtype}")
    if state.ndim == 0 or state.shape[-1] != dim:
        raise ValueError(
            f"{name} must have a last axis of size {dim}, got shape {tuple(state.shape)}"
        )
    return state


def check_device(name: str, device: str) -> torch.device:
    """Returns `device` if torch can put a tensor there."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).splitlines()[0]
        raise ValueError(
            f"{name} must be a device that torch can use, got {device!r}: {reason}"
        ) from problem


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """Returns `tensor` if it holds no NaN and no infinity."""
    if torch.compiler.is_compiling() or tensor.is_meta:  # no values to check
        return tensor
    # A NaN or infinity makes the sum non-finite, and a sum is one operation instead of several.
    # The sum of finite numbers can overflow, so elements are checked before an error is raised.
    if not math.isfinite(tensor.detach().sum()) and not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        raise NotFiniteError(
            f"{name} must be finite, got {bad} NaN or infinite of {tensor.numel()}"
        )
    return tensor
