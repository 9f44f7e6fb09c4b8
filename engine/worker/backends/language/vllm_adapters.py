"""LoRA adapters in vLLM, which loads them, and keeps as many as it has room for, least recently used last.

An adapter is vLLM's under a name that has the identity of its files, and a number of its own. So files that
have changed are another adapter: a stream goes on with the one that it began with as long as vLLM holds it,
and no part of the cache that the old one has filled is taken for the new one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.values.errors import InvalidArgument
from engine.worker.backends.language.model_folder import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class VllmAdapters:
    """See the module. Used by the engine's thread alone."""

    def __init__(self, engine: Any) -> None:
        """`engine` is an `LLMEngine` that has adapters enabled."""
        self._engine = engine
        self._requests: dict[tuple[str, str], Any] = {}  # vLLM's own, by path and identity

    def load(self, adapter: Mapping[str, str]) -> Any:
        """Return vLLM's `LoRARequest` for an adapter that it has loaded now, if it had not.

        Raises InvalidArgument if it can't be loaded. In a step, that would be the engine's end.
        """
        name, path, identity = adapter["name"], adapter["path"], adapter["id"]
        request = self._requests.get((path, identity))
        if request is not None and request.lora_int_id in self._engine.list_loras():
            return request
        if identity and identity_of([path]) != identity:
            raise InvalidArgument(
                f"LoRA adapter '{name}': the files in '{path}' are not those that were loaded; load it again"
                " in their place (load_inplace)"
            )
        if request is None:
            from vllm.lora.request import LoRARequest

            request = LoRARequest(f"{name}@{identity}", len(self._requests) + 1, path)
        try:
            self._engine.add_lora(request)
        except MemoryError:
            raise
        except Exception as error:  # it raises what it likes
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:500]
            said = said.replace(request.lora_name, name)
            raise InvalidArgument(f"LoRA adapter '{name}' can't be loaded from '{path}': {said}") from error
        self._requests[path, identity] = request
        return request
