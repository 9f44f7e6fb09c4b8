"""What a declaration says to a configuration: to complete it, or to be held against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.worker.authoring.tensors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.worker.authoring.declaring import Declared
    from engine.worker.authoring.requests import Instance
    from engine.worker.backends.python.completion import ModelConfig

_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def complete(config: ModelConfig, declared: Declared) -> ModelConfig:
    """Complete a configuration from a declaration.

    Raises ValueError if the two contradict each other (contract, section 11).
    """
    signature = declared.signature
    config.set_max_batch_size(declared.max_batch_size)
    values = config.as_dict()
    for name, each in signature.inputs.items():
        if name not in _of_sequences(values, "input"):
            config.add_input(each.port(name))
    for name, type_ in signature.outputs.items():
        if name not in _of_sequences(values, "output"):
            config.add_output(type_.port(name))
    if signature.kind.decoupled:
        config.set_model_transaction_policy({"decoupled": True})
    if declared.max_batch_size > 1 and not any(name in values for name in _SCHEDULERS):
        delay = declared.max_queue_delay or 0
        values["dynamic_batching"] = {"max_queue_delay_microseconds": round(delay * 1e6)} if delay else {}
    return config


def compare(declared: Declared, instance: Instance) -> None:
    """Compare the configuration that an instance runs with with the declaration.

    Raises DeclarationError if they differ. Completion has checked that already, if it is on.
    """
    signature, config = declared.signature, instance.config
    who = f"model '{instance.model}': '{signature.name}'"
    inputs = {name: each.port(name) for name, each in signature.inputs.items()}
    outputs = {name: each.port(name) for name, each in signature.outputs.items()}
    for side, declares in (("input", inputs), ("output", outputs)):
        wanted = {name: port for name, port in declares.items() if name not in _of_sequences(config, side)}
        given = {port["name"]: port for port in config.get(side, ())}
        if set(given) != set(wanted):
            raise DeclarationError(
                f"{who} declares the {side}s {_listed(wanted)}, and the configuration has {_listed(given)}"
            )
        for name, port in wanted.items():
            _compare_ports(f"{who} declares {side} '{name}'", port, given[name])
    if bool(declared.max_batch_size) != bool(config.get("max_batch_size", 0)):
        raise DeclarationError(
            f"{who} declares max_batch_size={declared.max_batch_size}, and the configuration {config.get('max_batch_size', 0)}:"
            " both batch, or neither does"
        )
    decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
    if decoupled != signature.kind.decoupled:
        raise DeclarationError(
            f"{who} is {'a' if signature.kind.decoupled else 'no'} generator, and the configuration says"
            f" decoupled: {str(decoupled).lower()}"
        )


def _of_sequences(config: Mapping[str, Any], side: str) -> set[str]:
    """Return the tensors that `sequence_batching` gives a model, or takes from it.

    They are no inputs and outputs of clients.
    """
    batching = config.get("sequence_batching", {})
    controls = batching.get("control_input", ()) if side == "input" else ()
    return {each["name"] for each in controls} | {
        state[f"{side}_name"] for state in batching.get("state", ())
    }


def _compare_ports(who: str, wanted: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    dims = [int(dim) for dim in given["dims"]]
    if given["data_type"] != wanted["data_type"] or dims != wanted["dims"]:
        raise DeclarationError(
            f"{who} as {wanted['data_type']} {wanted['dims']}, and the configuration as {given['data_type']} {dims}"
        )
    if given.get("optional", False) and not wanted.get("optional", False):
        raise DeclarationError(f"{who} without a default, and the configuration says that it is optional")


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
