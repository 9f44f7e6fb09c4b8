"""How the Python backend finds the model in a file, whichever of the two ways it is written in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.authoring.adapting import adapted
from engine.worker.authoring.declaring import declared_in
from engine.worker.authoring.tensors import DeclarationError

if TYPE_CHECKING:
    from types import ModuleType


def model_class(module: ModuleType, *, called: str = "") -> Any:
    """Return the class to make the model's object of.

    That is `TritonPythonModel`, or what stands for a `tritium.model`. `called` is what its author calls the
    module, if that is not its name. Raises DeclarationError if the module has both, and AttributeError if it
    has neither.
    """
    declared = declared_in(module)
    if declared is None:
        found = getattr(module, "TritonPythonModel", None)
        if found is None:
            raise AttributeError(
                f"module '{called or module.__name__}' has no attribute 'TritonPythonModel', and nothing that is declared"
                " with tritium.model"
            )
        return found
    if hasattr(module, "TritonPythonModel"):
        raise DeclarationError(
            f"'{declared.signature.name}' is declared with tritium.model beside a class TritonPythonModel: a file has one model"
        )
    return adapted(declared)
