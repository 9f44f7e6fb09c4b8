"""The argument of `auto_complete_config` (contract, python_backend.md section 11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")
_PORT = ("name", "data_type", "dims")


class ModelConfig:
    """A model's configuration, for the model to complete. Raises ValueError for what contradicts it."""

    def __init__(self, model_config: dict[str, Any]) -> None:
        self._model_config = model_config
        self._where = f"auto-complete-config function for model '{model_config.get('name', '')}'"

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration itself, in the JSON form; changing it changes the configuration."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch; it must not be smaller than a configured one."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in {self._where} specified"
                f" max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Switch dynamic batching on, if it is not."""
        found = next((name for name in _SCHEDULERS if name in self._model_config), None)
        if found is not None:
            raise ValueError(
                f"Configuration specified scheduling_choice as '{found}', but {self._where} tries to set"
                " scheduling_choice as 'dynamic_batching'"
            )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:  # noqa: A002  # the name is the contract's
        """Add an input, or complete the configured one of that name.

        Its keys are `name`, `data_type`, `dims` and `optional`.
        """
        self._add("input", input, (*_PORT, "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or complete the configured one of that name: `name`, `data_type`, `dims`."""
        self._add("output", output, _PORT)

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set `decoupled`, which must not contradict a configured value."""
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in {self._where} contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            name = self._model_config.get("name", "")
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{name}', which is already set"
                f" to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    def _add(self, side: str, given: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
        if set(given) - set(allowed):
            who = f"{side} '{given['name']}'" if "name" in given else side
            raise ValueError(f"{who} in {self._where} contains property other than {_listed(allowed)}.")
        if "name" not in given:
            raise ValueError(f"{side} in {self._where} is missing 'name' property.")
        for required in ("data_type", "dims"):
            if required not in given:
                raise ValueError(
                    f"{side} '{given['name']}' in {self._where} is missing '{required}' property."
                )
        entries: list[dict[str, Any]] = self._model_config.setdefault(side, [])
        existing = next((entry for entry in entries if entry.get("name") == given["name"]), None)
        if existing is None:
            entries.append(dict(given))
        else:
            self._merge(side, existing, given)

    def _merge(self, side: str, existing: dict[str, Any], given: Mapping[str, Any]) -> None:
        """Complete a configured entry; everything is compared before anything is changed."""
        model, name = self._model_config.get("name", ""), given["name"]
        configured = existing.get("data_type", "TYPE_INVALID")
        if configured not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {configured} for {side} '{name}',"
                f" model provides {given['data_type']}"
            )
        dims = [int(dim) for dim in existing.get("dims", ())]
        if dims and dims != [int(dim) for dim in given["dims"]]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {_plain(given['dims'])} but the model"
                f" configuration specifies dims {dims}"
            )
        if "optional" in given and existing.get("optional", given["optional"]) != given["optional"]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects optional {given['optional']} but the model"
                f" configuration specifies optional {existing['optional']}"
            )
        existing.update(given)


def _plain(dims: Iterable[Any]) -> list[int]:
    return [int(dim) for dim in dims]


def _listed(names: tuple[str, ...]) -> str:
    return f"{', '.join(map(repr, names[:-1]))} and {names[-1]!r}"
