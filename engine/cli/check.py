"""`tritium check`: validate model repositories without starting anything."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.specs import Direct, InstanceSpec, ModelSpec
from engine.cli.text import aligned, printable
from engine.config.backends import discover
from engine.config.load import LoadedConfig, load_model_config
from engine.config.problems import Problem
from engine.devices import gpu_count
from engine.repository.layout import DUPLICATE_REASON, scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known about one model: its configuration, or why there is none to speak of."""

    name: str
    config: LoadedConfig | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the model would be loaded."""
        return self.config is not None and self.config.ok


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found in the repositories."""

    findings: tuple[Finding, ...]
    problems: tuple[Problem, ...]  # of the repositories themselves

    @property
    def ok(self) -> bool:
        """Whether all of it would be served."""
        return all(finding.ok for finding in self.findings) and not any(p.is_error for p in self.problems)


def check(argv: Sequence[str]) -> int:
    """Validate and report; return the process's exit status: 1 where anything would not load."""
    options = _parser().parse_args(argv)
    missing = [path for path in options.repositories if not path.is_dir()]
    if missing:
        sys.stderr.write("".join(f"{path}: not a directory\n" for path in missing))
        return 1
    report = inspect(
        options.repositories,
        gpus=gpu_count(os.environ),
        config_name=options.model_config_name,
        auto_complete=not options.disable_auto_complete_config,
    )
    if options.json:
        sys.stdout.write(json.dumps(as_json(report), indent=2) + "\n")
    else:
        sys.stdout.write(as_text(report))
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tritium check",
        description="Validate model repositories offline. No model is loaded, no port is opened.",
        epilog="Exits with status 1 where a model would not load. example: tritium check ./models",
        allow_abbrev=False,
    )
    parser.add_argument("repositories", metavar="REPO", nargs="+", type=Path, help="a model repository")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--model-config-name", default="", metavar="NAME", help="as for serve")
    parser.add_argument("--disable-auto-complete-config", action="store_true", help="as for serve")
    return parser


def inspect(
    repositories: Sequence[Path], *, gpus: int, config_name: str = "", auto_complete: bool = True
) -> Report:
    """Read every model of the repositories, as a server on a machine with so many GPUs would at its start."""
    found = scan(repositories)
    backends = discover()
    findings = [Finding(name=name, reason=DUPLICATE_REASON) for name in found.duplicates]
    for name, directory in found.models.items():
        config = load_model_config(
            directory.path,
            backends=backends,
            gpus=gpus,
            config_name=config_name,
            auto_complete=auto_complete,
        )
        findings.append(Finding(name=name, config=config))
    return Report(findings=tuple(sorted(findings, key=lambda f: f.name)), problems=tuple(found.problems))


def advice(spec: ModelSpec) -> Iterator[str]:
    """Yield what an operator should know about a configuration that is valid."""
    if spec.isolation == "thread":
        yield (
            'tritium.isolation is "thread": the model runs in the server process, and a crash of it takes the server down;'
            ' "process" contains it'
        )
    if spec.execution_timeout == 0:
        yield (
            "tritium.execution_timeout is off: hangs are not contained; set it to the seconds that a batch may take"
        )


# -- as text


def as_text(report: Report) -> str:
    """Return the report for a reader."""
    parts = [f"{printable(str(problem))}\n" for problem in report.problems]
    parts.extend(_finding_text(finding) for finding in report.findings)
    good = sum(finding.ok for finding in report.findings)
    total = len(report.findings)
    if not total:
        parts.append("no models found\n")
    else:
        parts.append(f"\n{good} of {total} model{'s' if total != 1 else ''} would load\n")
    return "".join(parts)


def _finding_text(finding: Finding) -> str:
    name = printable(finding.name)
    if finding.config is None:
        return f"✗ {name}\n    error: {printable(finding.reason)}\n"
    config = finding.config
    lines = [f"{'✓' if finding.ok else '✗'} {name}{_versions(config.versions)}\n"]
    lines.extend(f"    {printable(str(problem))}\n" for problem in config.problems)
    if config.specs:
        spec = config.specs[-1]
        lines.extend(f"    warning: {words}\n" for words in advice(spec))
        lines.extend(f"    {line}\n" for line in aligned(list(_settings(spec))).splitlines())
    return "".join(lines)


def _versions(versions: Sequence[int]) -> str:
    if not versions:
        return ""
    return f"  version{'s' if len(versions) > 1 else ''} {', '.join(map(str, versions))}"


def _settings(spec: ModelSpec) -> Iterator[tuple[str, str]]:
    yield "backend", spec.backend if spec.platform == spec.backend else f"{spec.backend} ({spec.platform})"
    yield "file", spec.artifact
    yield "batching", _batching(spec)
    yield "instances", _instances(spec.instances)
    yield "isolation", f"{spec.isolation}, retry {spec.retry.value}"
    yield "execution timeout", f"{spec.execution_timeout:g} s" if spec.execution_timeout else "off"
    for io in spec.inputs:
        optional = ", optional" if io.optional else ""
        yield "input", f"{io.name} {io.datatype} {list(io.dims)}{optional}"
    for out in spec.outputs:
        yield "output", f"{out.name} {out.datatype} {list(out.dims)}"
    for key, value in sorted(spec.parameters.items()):
        yield "parameter", f"{key} = {value}"


def _batching(spec: ModelSpec) -> str:
    if not spec.batches:
        return "none"
    if isinstance(spec.scheduling, Direct):
        return f"up to {spec.max_batch_size} rows in one request"
    delay = spec.scheduling.max_queue_delay
    return f"dynamic, up to {spec.max_batch_size} rows" + (
        f", waiting {delay * 1e3:g} ms for more" if delay else ""
    )


def _instances(instances: Sequence[InstanceSpec]) -> str:
    return ", ".join(
        f"{instance.name} ({_device(instance)}{f', {instance.lanes} lanes' if instance.lanes > 1 else ''})"
        for instance in instances
    )


def _device(instance: InstanceSpec) -> str:
    return f"gpu:{instance.device_id}" if instance.kind == "GPU" else instance.kind.lower()


# -- as JSON


def as_json(report: Report) -> Mapping[str, Any]:
    """Return the report for a program."""
    return {
        "ok": report.ok,
        "problems": [_problem_json(problem) for problem in report.problems],
        "models": [_finding_json(finding) for finding in report.findings],
    }


def _finding_json(finding: Finding) -> Mapping[str, Any]:
    config = finding.config
    if config is None:
        return {"name": finding.name, "ok": False, "reason": finding.reason, "versions": [], "problems": []}
    entry: dict[str, Any] = {
        "name": finding.name,
        "ok": config.ok,
        "reason": config.reason,
        "path": str(config.path),
        "versions": list(config.versions),
        "problems": [_problem_json(problem) for problem in config.problems],
    }
    if config.specs:
        spec = config.specs[-1]
        entry["advice"] = list(advice(spec))
        entry["backend"] = spec.backend
        entry["instances"] = [
            {"name": i.name, "kind": i.kind, "device": i.device_id, "lanes": i.lanes} for i in spec.instances
        ]
        entry["isolation"] = spec.isolation
        entry["retry"] = spec.retry.value
        entry["execution_timeout"] = spec.execution_timeout
        entry["config"] = json.loads(spec.config_json)
    return entry


def _problem_json(problem: Problem) -> Mapping[str, Any]:
    return {
        "severity": problem.severity.value,
        "message": problem.message,
        "path": None if problem.path is None else str(problem.path),
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "hint": problem.hint,
    }
