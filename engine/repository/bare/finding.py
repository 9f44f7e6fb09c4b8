"""Finds the models among bare files: each with its format, its versions and the files that belong to it.

Nothing is written, nothing of the models is run, and a folder is looked at within bounds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from engine.config.inspection.wire import Unreadable
from engine.repository.bare.looking import external_files, look, recognised
from engine.repository.bare.policy import formats
from engine.repository.bare.policy.forests import Forest, forest_of
from engine.repository.bare.policy.formats import ModelFormat
from engine.repository.bare.policy.naming import distinct, wished_name
from engine.repository.bare.policy.recognition import Recognised, recognise
from engine.worker.backends.base import LoadError
from engine.worker.backends.language.model_folder import check_folder
from engine.worker.text.loading import SOURCES

MOST_ENTRIES: Final = 5000
"""Files and folders that are looked at."""
_DEEPEST: Final = 4
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".ot")
_TOKENIZERS: Final = ("tokenizer.json", *SOURCES)
_IMPORT: Final = re.compile(r"^[ \t]*(?:from[ \t]+\.?(\w+)|import[ \t]+([\w, \t]+))", re.MULTILINE)
_LARGEST_SOURCE: Final = 1024 * 1024
_MOST_MODULES: Final = 200
_IGNORED: Final = ("__pycache__", "node_modules")


@dataclass(frozen=True, slots=True)
class Piece:
    """A file or folder, and its name in the version folder; empty: the name that the backend looks for."""

    source: Path
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BareVersion:
    """One version of a model that has no repository yet."""

    number: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BareModel:
    """One model that has no repository yet.

    `problem` says why it can't have one. `name` is empty for a format that no backend runs.
    """

    source: Path
    form: ModelFormat
    versions: tuple[BareVersion, ...] = ()
    problem: str = ""
    forest: Forest | None = None
    name: str = ""


@dataclass(slots=True)
class Found:
    """What is below a path: models, directories that are models of a repository already, and other files."""

    models: list[BareModel] = field(default_factory=list)
    served: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    looked_at: int = 0

    @property
    def cut(self) -> bool:
        """Whether there is more than was looked at."""
        return self.looked_at > MOST_ENTRIES


def find(path: Path, *, without: Path | None = None) -> Found:
    """Return the models in a file or a folder, but for those below `without`. Raises OSError."""
    found = Found()
    path = path.absolute()
    if path.is_dir():
        _Folder(path, found, without.absolute() if without is not None else None).visit()
    else:
        path.stat()
        _Folder(path.parent, found, None).file(path)
    can = [each for each in found.models if each.form.engines]
    names = dict(zip(map(id, can), distinct([(each.name, each.form.tag) for each in can]), strict=True))
    found.models = [replace(each, name=names.get(id(each), "")) for each in found.models]
    return found


def home_of(path: Path) -> Path | None:
    """Return the directory of a repository's model that `path` is, or that it lies in."""
    path = path.absolute()
    if path.is_dir() and is_laid_out(path):
        return path
    version = path if path.is_dir() else path.parent
    return version.parent if _VERSION.fullmatch(version.name) and is_laid_out(version.parent) else None


def find_at_home(directory: Path) -> Found:
    """Return the model of such a directory with all its versions, or the directory as one that is complete.

    It is complete with a configuration, or where a version holds something else than one model.
    """
    found = Found()
    if (directory / "config.pbtxt").exists() or not _Folder(directory, found, None).of_versions():
        return Found(served=[directory])
    found.models = [replace(each, name=directory.name) for each in found.models]
    return found


def is_laid_out(directory: Path) -> bool:
    """Whether this is a model's directory as a repository has it: a configuration, or a usual file name."""
    if (directory / "config.pbtxt").is_file():
        return True
    return any(formats.FILES & set(_names(version)) for _, version in _versions(directory))


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _versions(directory: Path) -> list[tuple[int, Path]]:
    places = [
        (int(name), directory / name) for name in _names(directory)[:MOST_ENTRIES] if _VERSION.fullmatch(name)
    ]
    return sorted(each for each in places if each[1].is_dir())


class _Folder:
    """One folder that is looked into."""

    def __init__(self, path: Path, found: Found, without: Path | None, depth: int = 0) -> None:
        self._path = path
        self._found = found
        self._without = without
        self._depth = depth
        self._taken: set[str] = set()  # names of files that belong to others

    def visit(self) -> None:
        """Add the models in this folder, and in those below it."""
        if is_laid_out(self._path):
            self._found.served.append(self._path)
            return
        whole = _whole_folder(self._path)
        if whole is not None:
            self._found.models.append(whole)
            return
        if self.of_versions():
            return
        names = [name for name in _names(self._path) if not name.startswith(".") and name not in _IGNORED]
        self._found.looked_at += len(names)
        for name in names[: max(0, MOST_ENTRIES - self._found.looked_at + len(names))]:
            path = self._path / name
            if path.is_dir():
                if path != self._without and self._depth < _DEEPEST:
                    _Folder(path, self._found, self._without, self._depth + 1).visit()
            else:
                self.file(path)
        self._found.others = [each for each in self._found.others if not self._is_taken(each)]

    def _is_taken(self, path: Path) -> bool:
        return path.is_relative_to(self._path) and str(path.relative_to(self._path)) in self._taken

    def of_versions(self) -> bool:
        """Add a model whose versions are numbered folders with one model each; return whether it is one."""
        each: list[tuple[int, BareModel]] = []
        for number, place in _versions(self._path):
            inner = Found()
            _Folder(place, inner, self._without, self._depth + 1).visit()
            if len(inner.models) != 1 or inner.served:
                return False
            each.append((number, inner.models[0]))
        if not each or any(model.form is not each[-1][1].form for _, model in each):
            return False
        newest = each[-1][1]
        versions = tuple(
            replace(model.versions[0], number=number) for number, model in each if model.versions
        )
        problem = next((model.problem for _, model in each if model.problem), "")
        name = wished_name(self._path.name, self._path.parent.name)
        self._found.models.append(
            replace(newest, source=self._path, versions=versions, problem=problem, name=name)
        )
        return True

    def file(self, path: Path) -> None:
        """Add the model in one file, if it is one."""
        try:
            glimpse = look(path)
        except OSError:
            glimpse = None
        what = None if glimpse is None else recognise(glimpse)
        if glimpse is None or what is None or _only_tells(path, what):
            self._found.others.append(path)
            return
        pieces, problem = self._belonging(path, what)
        number, name = 1, wished_name(path.stem, path.parent.name)
        if name == path.parent.name and _VERSION.fullmatch(name):
            number, name = int(name), wished_name(path.stem, path.parent.parent.name)
        self._found.models.append(
            BareModel(
                source=path,
                form=what.form,
                versions=(BareVersion(number=number, pieces=pieces),),
                problem=problem,
                forest=forest_of(what.form, glimpse.head, glimpse.tail),
                name=name,
            )
        )

    def _belonging(self, path: Path, what: Recognised) -> tuple[tuple[Piece, ...], str]:
        """Return the files of a model, and what is wrong with them."""
        pieces, problem = [Piece(path)], what.damage
        if problem:
            return tuple(pieces), problem
        if what.form is formats.ONNX:
            beside, problem = self._external(path)
            pieces += beside
        elif what.form is formats.OPENVINO:
            pieces += self._weights(path, ".bin", "model.bin")
            if len(pieces) == 1:
                problem = f"its weights are missing: '{path.stem}.bin' should be beside it"
        elif what.form is formats.PADDLE:
            pieces += self._weights(path, ".pdiparams", "model.pdiparams")
        elif what.form is formats.PYTHON:
            pieces += self._imported(path)
        return tuple(pieces), problem

    def _weights(self, path: Path, suffix: str, target: str) -> Iterator[Piece]:
        beside = path.with_suffix(suffix)
        if beside.is_file():
            self._taken.add(beside.name)
            yield Piece(beside, target)

    def _external(self, path: Path) -> tuple[list[Piece], str]:
        try:
            places = external_files(path)
        except Unreadable as error:
            return [], str(error)
        for place in places:
            if os.path.isabs(place) or ".." in Path(place).parts:
                return [], f"its weights are in '{place}', which leads out of its folder"
            if not (path.parent / place).is_file():
                return [], f"its weights are missing: '{place}' should be beside it"
        self._taken.update(places)
        return [Piece(path.parent / place, place) for place in places], ""

    def _imported(self, path: Path) -> Iterator[Piece]:
        """Yield the modules and packages beside a Python model that it imports."""
        waiting, seen = [path], {path.stem}
        while waiting and len(seen) < _MOST_MODULES:
            for name in _imports(waiting.pop()):
                if name in seen:
                    continue
                seen.add(name)
                module, package = path.parent / f"{name}.py", path.parent / name
                if module.is_file():
                    self._taken.add(module.name)
                    waiting.append(module)
                    yield Piece(module, module.name)
                elif (package / "__init__.py").is_file():
                    self._taken.update(str(each.relative_to(path.parent)) for each in package.rglob("*.py"))
                    yield Piece(package, name)


def _only_tells(path: Path, what: Recognised) -> bool:
    """Whether a file has a Python model in it and is another document."""
    return what.form in (formats.PYTHON, formats.DALI) and path.suffix in (
        ".md",
        ".rst",
        ".txt",
        ".ipynb",
        ".html",
    )


def _imports(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            source = file.read(_LARGEST_SOURCE).decode(errors="replace")
    except OSError:
        return
    for origin, several in _IMPORT.findall(source):
        for name in [origin] if origin else several.split(","):
            yield name.split()[0] if name.split() else ""


def _whole_folder(path: Path) -> BareModel | None:
    """Return the model that a folder is as a whole."""
    names = set(_names(path))
    name = wished_name(path.name if not _VERSION.fullmatch(path.name) else "", path.parent.name)
    if "saved_model.pb" in names:
        what = recognised(path / "saved_model.pb")
        damage = what.damage if what is not None else "its saved_model.pb is damaged, or none of TensorFlow's"
        return _model(path, formats.SAVED_MODEL, (Piece(path),), damage, name)
    if "Manifest.json" in names and path.suffix == ".mlpackage":
        return _model(path, formats.COREML, (), "", name)
    if "model_index.json" in names:
        return _model(path, formats.DIFFUSERS, (), "", name)
    if "config.json" in names and any(each.endswith((".safetensors", ".bin")) for each in names):
        files = [each for each in sorted(names) if not each.startswith(".") and not each.endswith(_PICKLES)]
        pieces = tuple(Piece(path / each, each) for each in files if (path / each).is_file())
        return _model(path, formats.LANGUAGE, pieces, _wrong_with(path, names), name)
    return None


def _model(path: Path, form: ModelFormat, pieces: tuple[Piece, ...], problem: str, name: str) -> BareModel:
    version = BareVersion(number=1, pieces=pieces)
    return BareModel(source=path, form=form, versions=(version,), problem=problem, name=name)


def _wrong_with(path: Path, names: set[str]) -> str:
    try:
        check_folder(str(path))
    except LoadError as error:
        return str(error)
    if not names & set(_TOKENIZERS):
        return f"it has no tokenizer: put {' or '.join(_TOKENIZERS)} beside config.json"
    return ""


def bare_files(paths: Sequence[Path]) -> str:
    """Return the format of the first file among some that is a model; nothing if none is."""
    for path in paths:
        what = recognised(path)
        if what is not None and what.form.engines:
            return what.form.name
    return ""
