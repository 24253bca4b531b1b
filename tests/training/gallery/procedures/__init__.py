"""The procedures of the gallery, one per module; each module has a `PROCEDURE`."""

from __future__ import annotations

import importlib
import pkgutil

from tests.procedure import Procedure


def all_procedures() -> dict[str, Procedure]:
    """Every procedure by its name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {module.PROCEDURE.name: module.PROCEDURE for module in modules}
