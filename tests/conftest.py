"""Fixtures shared by all tests."""

import pytest
import torch

# Everything here is small: threads that wait for each other cost more than they give, on a busy
# machine by a factor of ten.
torch.set_num_threads(1)


@pytest.fixture
def float64():
    """Everything the test makes is double, so that laws hold to rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
