"""The commands of `tritium`: the table that dispatch, help, completion and the manual page share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Command:
    """One command: a function of its name in a module of `engine.cli`, and what it does in a line."""

    module: str
    about: str


COMMANDS: Final = {
    "serve": Command("serve", "serve the models of one or more repositories"),
    "run": Command(
        "run", "serve the model in one Python file, or a language model in a folder, without a repository"
    ),
    "sagemaker": Command("sagemaker", "serve as Amazon SageMaker has its containers serve"),
    "init": Command(
        "init.command", "make a model repository out of model files: ONNX, PyTorch, XGBoost and more"
    ),
    "check": Command(
        "check",
        "validate models and auth files offline: what would load, who may do what, what is wrong where",
    ),
    "migrate": Command(
        "migrate.command",
        "say what a server of Triton would be here: flags, manifests and models, with a verdict",
    ),
    "convert": Command("convert", "make a checkpoint of a scikit-learn forest: servers load no pickles"),
    "sign": Command("signing", "sign models, for servers that load signed ones only"),
    "verify": Command(
        "signing",
        "say which models of a repository are signed with a trusted key, and what keeps the others from it",
    ),
    "key": Command("keys", "make, list and revoke the API keys of an auth file"),
    "auth": Command(
        "auth", "explain which rule of an auth file lets a client do something, or keeps it from it"
    ),
    "tree": Command("tree.command", "show the live supervision tree of a running server"),
    "traffic": Command(
        "traffic",
        "show or change how a model's requests are shared out over versions: canaries, mirrors, rollback",
    ),
    "fleet": Command(
        "fleet.command", "steer servers that stand side by side: changes that roll, placement, drains, status"
    ),
    "events": Command(
        "events", "show what happens in a running server, as it happens: deaths, restarts, loads, rollbacks"
    ),
    "logs": Command(
        "logs",
        "read a server's log: filter it, follow it, trace a request, see outages, rates and what was slow",
    ),
    "audit": Command(
        "audit",
        "read a server's audit log: who changed what, who was denied what; and check that it is whole",
    ),
    "completion": Command(
        "manual.command", "print what makes bash, zsh or fish complete the words of this command"
    ),
    "man": Command("manual.command", "print the manual page: `tritium man | man -l -`"),
}
