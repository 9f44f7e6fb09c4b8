"""`tritium init`: a model repository out of bare model files."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from engine.cli.init.configuring import CONFIG, Configured, configure
from engine.cli.init.laying import Copying, NotLaidOut, Way, put_in_place, staging, stand_in, thrown_away
from engine.cli.init.telling import Outcome, report
from engine.processes.backends import BackendTraits, discover
from engine.processes.gpus.nvml import find_gpus
from engine.processes.placement import DEVICES
from engine.repository.bare.finding import BareModel, Found, find, find_at_home, home_of
from engine.repository.bare.policy.formats import Engine

_DEFAULT: Final = "model_repository"

_DESCRIPTION: Final = """\
Make a model repository out of model files: each gets a folder with its version, its file under the name
that its backend looks for, and a config.pbtxt with the inputs and outputs that the file tells. PATH is one
file, or a folder, which is searched. Formats are recognised by what is in the files, not by their names.

PATH stays as it is. A model that REPOSITORY has already is left alone unless --force is given.

Where PATH lies in a repository already, such as models/resnet/1/model.onnx, nothing is copied: what is
written is models/resnet/config.pbtxt, if there is none. With --to another repository, it is copied there.
"""

_EPILOG: Final = """\
What is recognised, and which backend runs it:
  onnxruntime    ONNX, with or without external data; ONNX Runtime's own format
  pytorch        TorchScript, torch.export programs, AOTInductor packages
  python         a file with a class TritonPythonModel, or with @tritium.model, and the modules beside it
                 that it imports
  transformers   a language model's folder: config.json, *.safetensors and the tokenizer
  openvino       OpenVINO IR (.xml and .bin), TensorFlow Lite, PaddlePaddle; ONNX and TensorFlow where their
                 own backend is missing
  tensorflow     SavedModels, frozen graphs
  fil            XGBoost (JSON, UBJ), LightGBM (text), treelite checkpoints
  tensorrt       TensorRT plans
Of pickles, weights without their program, Keras, GGUF, Core ML and others, it is said what to do with them.
Pickles are never loaded. A backend that is not installed here is named with the command that installs it.

Folders called 1, 2, … with one model each become its versions. `tritium check` completes and checks
configurations in the same way.

exit status: 0 where a server here would load every model that was found; 1 where something is left to do;
2 for a command line that makes no sense.

examples:
  tritium init ./exports
  tritium init ./exports --to ./models --dry-run
  tritium init resnet50.onnx --to ./models --link
  tritium init ./models/resnet/1/model.onnx
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What is asked for."""

    repository: Path
    at_home: bool  # the models lie in the repository already
    force: bool
    dry: bool
    copying: Copying
    backends: Mapping[str, BackendTraits]
    gpus: int
    run_model_code: bool


def init(argv: Sequence[str], *, devices: Path = DEVICES) -> int:
    """Make the repository; return the process's exit status. `devices` is where the kernel shows its GPUs."""
    parser = init_parser()
    options = parser.parse_args(argv)
    source, repository = Path(options.path), Path(options.to or _DEFAULT)
    if not source.exists():
        return _complain(f"there is no file or folder '{source}'")
    home = home_of(source)
    at_home = home is not None and (not options.to or _same(repository, home.parent))
    if home is not None and at_home:
        repository = home.parent if source.is_absolute() else Path(os.path.relpath(home.parent))
    elif repository.exists() and not repository.is_dir():
        return _complain(f"--to names '{repository}', which is a file", "it is the repository's folder")
    elif _same(source, repository) or (source.is_dir() and _same(source.parent, repository)):
        return _complain(
            f"the repository would be '{repository}', where the models lie already",
            "name another folder by --to: the files stay as they are",
        )
    try:
        found = find_at_home(home) if home is not None and at_home else find(source, without=repository)
    except OSError as error:
        return _complain(f"'{source}' can't be read: {error.strerror or error}")
    task = _Task(
        repository=repository,
        at_home=at_home,
        force=options.force,
        dry=options.dry_run,
        copying=Copying(Way.POINT if options.dry_run else Way.LINK if options.link else Way.COPY),
        backends=discover(),
        gpus=len(find_gpus(os.environ, devices)),
        run_model_code=not options.no_model_code,
    )
    try:
        outcomes = _carry_out(found, task)
    except OSError as error:
        return _complain(f"'{error.filename or repository}' can't be written: {error.strerror or error}")
    lines = report(
        source, repository, found, outcomes, dry=task.dry, symbolic=task.copying.symbolic, at_home=at_home
    )
    sys.stdout.writelines(f"{line}\n" for line in lines)
    served = bool(found.served) and not outcomes
    return 0 if served or (outcomes and all(outcome.ok for outcome in outcomes)) else 1


def init_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium init",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("path", metavar="PATH", help="a model's file, or a folder with models")
    parser.add_argument(
        "--to",
        metavar="REPOSITORY",
        default="",
        help=f"the repository's folder, which is made if it is not there (default: {_DEFAULT}, or the"
        " repository that PATH lies in)",
    )
    parser.add_argument(
        "--link",
        action="store_true",
        help="link the files and copy nothing: hard links, and symbolic ones where those can't be",
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and write nothing")
    parser.add_argument("--force", action="store_true", help="replace models that REPOSITORY has already")
    parser.add_argument(
        "--no-model-code", action="store_true", help="do not run Python models' auto_complete_config"
    )
    return parser


def _carry_out(found: Found, task: _Task) -> list[Outcome]:
    """Lay out every model that a backend runs. Raises OSError."""
    if not any(_is_servable(model) for model in found.models):
        return [Outcome(model=model) for model in found.models]
    with thrown_away() if task.dry else staging(task.repository) as place:
        return [
            _one(model, place, task) if _is_servable(model) else Outcome(model=model)
            for model in found.models
        ]


def _is_servable(model: BareModel) -> bool:
    return bool(model.form.engines) and not model.problem


def _one(model: BareModel, place: Path, task: _Task) -> Outcome:
    engine = _choose(model.form.engines, task.backends)
    prepared, final = place / model.name, task.repository / model.name
    if task.at_home:
        engine = _with_its_name(engine, model)
        stand_in(final, prepared)
    elif os.path.lexists(final) and not task.force:
        return Outcome(model=model, engine=engine, refused=f"{final} is there already; --force replaces it")
    else:
        try:
            task.copying.lay_out(model, engine, prepared)
        except NotLaidOut as error:
            return Outcome(model=model, engine=engine, refused=str(error))
    done = configure(
        model,
        engine,
        prepared,
        task.backends,
        gpus=task.gpus,
        run_model_code=task.run_model_code,
    )
    if not task.dry and task.at_home:
        shutil.move(prepared / CONFIG, final / CONFIG)  # the model may be a link to another file system
    elif not task.dry:
        put_in_place(prepared, final)
    return Outcome(
        model=model,
        engine=engine,
        done=done,
        errors=tuple(_errors(done, prepared, final)),
        missing=_missing(engine, task),
    )


def _errors(done: Configured, prepared: Path, final: Path) -> Iterator[str]:
    """Yield what keeps a model from loading, with the places where its files will be."""
    for problem in done.problems:
        if problem.is_error:
            hint = f" ({problem.hint})" if problem.hint else ""
            yield f"{problem.brief}{hint}".replace(str(prepared), str(final))


def _with_its_name(engine: Engine, model: BareModel) -> Engine:
    """Return the engine with the name that the model's file has where it lies."""
    first = model.versions[-1].pieces[0]
    if not engine.file or first.target or first.source.name == engine.file:
        return engine
    return replace(engine, file=first.source.name, named=True)


def _choose(engines: Sequence[Engine], backends: Mapping[str, BackendTraits]) -> Engine:
    """Return the first engine that works here, else the first that is known, else the first."""
    known = [engine for engine in engines if engine.backend in backends]
    working = [engine for engine in known if not _fault(backends[engine.backend])]
    return (working or known or list(engines))[0]


def _fault(traits: BackendTraits) -> str:
    return traits.missing or traits.unavailable


def _missing(engine: Engine, task: _Task) -> str:
    """Return what keeps a backend from running here; nothing if it runs."""
    traits = task.backends.get(engine.backend)
    if traits is None:
        return f"this Tritium has no backend '{engine.backend}'"
    return _fault(traits)


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _complain(message: str, hint: str = "") -> int:
    sys.stderr.write(f"{message}\n" + (f"{hint}\n" if hint else "") + "`tritium init --help` tells more.\n")
    return 1
