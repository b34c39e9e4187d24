"""Flows move a latent state through time; all are called as `flow(z0, times)`."""

from latent_morph.flows.base import Flow
from latent_morph.flows.linear import LinearFlow
from latent_morph.flows.morph import MorphFlow
from latent_morph.flows.registry import FLOWS, FlowRecipe, register, resolve_flow
from latent_morph.flows.solver import METHODS, IntegrationError, SolverFlow

__all__ = [
    "FLOWS",
    "METHODS",
    "Flow",
    "FlowRecipe",
    "IntegrationError",
    "LinearFlow",
    "MorphFlow",
    "SolverFlow",
    "register",
    "resolve_flow",
]
