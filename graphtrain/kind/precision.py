"""The number formats in which a kind may compute."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Precision = Literal["32-true", "64-true", "bf16-true", "bf16-mixed", "16-mixed"]

# The types that `Trainer` gives models before they are trained; those of other precisions stay as they are.
MODEL_DTYPES: Mapping[str, str] = MappingProxyType({"64-true": "float64", "bf16-true": "bfloat16"})
