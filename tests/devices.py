"""The devices that a test runs on: a CUDA device, where there is one (`make cuda`), and in the sweep the CPU too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("cpu", marks=pytest.mark.sweep)]


@contextmanager
def deterministic_kernels() -> Iterator[None]:
    """A span in which a CUDA device computes the same bits every time; the first use of cuBLAS must be within one."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
