"""Fixtures shared by all tests."""

import pytest
import torch


@pytest.fixture
def float64():
    """Everything the test makes is double, so that laws hold to rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
