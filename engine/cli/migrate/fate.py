"""What becomes of a tritonserver command line here: flag by flag, then as a whole. Pure.

The table of options decides what is known, honoured, and without effect. What differs in spite of a known
flag is listed here, in the words of docs/differences.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from engine.cli.migrate.scripts import Found
from engine.processes.backends import BUILT_IN
from engine.settings.extras import how_to_install
from engine.settings.forms import SWITCH, SettingsError
from engine.settings.option import Flag, Given
from engine.settings.scanning import scan_argv
from engine.settings.secrets import HIDDEN
from engine.settings.settings import BY_NAME, Settings
from engine.settings.uris import is_remote


class Fate(Enum):
    """What becomes of one thing that is asked for. The values are how a report begins its line."""

    SAME = "works"
    DIFFERS = "differs"
    NO_EFFECT = "no effect"
    REFUSED = "change"
    OPEN = "open"


class Verdict(Enum):
    """What becomes of the whole."""

    WORKS = "works as it is"
    DIFFERS = "works, with differences"
    CHANGE = "does not work as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What becomes of a flag, an image or a model, and why."""

    fate: Fate
    what: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A whole command line."""

    judgements: tuple[Judgement, ...]
    flags: tuple[str, ...] = ()  # for `tritium serve`: without what has no effect or can't be taken
    repositories: tuple[str, ...] = ()


_NO_ENGINES: Final = "TensorRT-LLM's engines are not served: serve the checkpoint itself (docs/llm.md)"
DIFFERENCES: Final = MappingProxyType(
    {
        "repoagent-directory": "agents are Python classes, NAME/agent.py, and no libraries (docs/agents.md)",
        "backend-directory": "backends that come with Tritium go before what lies there; C libraries run"
        " in workers of their own (docs/backends/c_libraries.md)",
        "allow-gpu-metrics": "GPUs are asked by NVML, which the extra 'gpu' brings (docs/metrics.md)",
        "strict-readiness": "a load at run time does not make the server unready (docs/readiness.md)",
    }
)
_IMAGES: Final = (
    ("trtllm", Fate.REFUSED, _NO_ENGINES),
    (
        "tf2",
        Fate.DIFFERS,
        "models of TensorFlow are served where the extra 'tensorflow' is installed"
        " (docs/backends/tensorflow.md)",
    ),
    (
        "vllm",
        Fate.DIFFERS,
        "models of vLLM are served where vllm is installed; text, KServe and OpenAI APIs as in docs/llm.md",
    ),
)
_FILES: Final = ("backend-directory", "auth-file", "trusted-keys", "log-file", "audit-log")


def judge(found: Found) -> Judged:
    """Return what becomes of a command line."""
    if found.launcher:
        launched = Judgement(fate=Fate.REFUSED, what="launch_triton_server.py", why=_NO_ENGINES)
        return Judged(judgements=(launched, *_of_image(found.image)))
    judgements: list[Judgement] = []
    flags: list[str] = []
    repositories: list[str] = []
    for flag, given, value in _pieces(found.words):
        each = _of_flag(flag, given, value)
        judgements += each
        if all(one.fate not in {Fate.REFUSED, Fate.NO_EFFECT} for one in each):
            flags.append(_written(flag, value) if flag is not None else given)
        if flag is not None and flag.name == "model-repository":
            repositories.append(value)
    judgements += _as_a_whole(flags, judgements, bool(repositories))
    judgements += _of_image(found.image)
    return Judged(judgements=tuple(judgements), flags=tuple(flags), repositories=tuple(repositories))


def verdict(judgements: Sequence[Judgement]) -> Verdict:
    """Return what the judgements come to."""
    fates = {each.fate for each in judgements}
    if Fate.REFUSED in fates:
        return Verdict.CHANGE
    return Verdict.DIFFERS if fates - {Fate.SAME, Fate.OPEN} else Verdict.WORKS


def is_open(value: str) -> bool:
    """Whether a word has a variable or a template in it, so that its value is not known."""
    return "$" in value


def _pieces(words: Sequence[str]) -> Iterator[tuple[Flag | None, str, str]]:
    """Yield (flag, as it was given, value) for each flag, with no flag for what is none."""
    given = iter(words)
    for word in given:
        name, equals, value = word.removeprefix("--").partition("=")
        flag = BY_NAME.get(name) or _shortened(name)
        if not word.startswith("--") or flag is None:
            yield None, word, value
        elif equals or flag.form is SWITCH:
            yield flag, word, value
        else:
            following = next(given, None)
            if following is None:
                yield None, word, ""
            else:
                yield flag, f"{word}={following}", following


def _shortened(name: str) -> Flag | None:
    try:
        (found,) = scan_argv([f"--{name}=x"], BY_NAME)
    except (SettingsError, ValueError):
        return None
    return BY_NAME[found]


def _of_flag(flag: Flag | None, given: str, value: str) -> list[Judgement]:
    if flag is None:
        return [_no_flag(given)]
    shown = _shown(flag, value)
    if not is_open(value):
        try:
            Given({flag.name: [value or "true"]}, BY_NAME)
        except SettingsError as error:
            return [Judgement(fate=Fate.REFUSED, what=shown, why=_said(error))]
    if flag.no_effect:
        return [Judgement(fate=Fate.NO_EFFECT, what=shown, why=flag.no_effect)]
    difference = _difference(flag, value)
    if difference is not None:
        return [Judgement(fate=difference[0], what=shown, why=difference[1])]
    if is_open(value):
        return [
            Judgement(fate=Fate.OPEN, what=shown, why="the flag is known; its value is filled in elsewhere")
        ]
    if flag.help.startswith("Deprecated"):
        return [Judgement(fate=Fate.SAME, what=shown, why=flag.help.rstrip("."))]
    return [Judgement(fate=Fate.SAME, what=shown)]


def _no_flag(given: str) -> Judgement:
    if is_open(given) and not given.startswith("--"):
        return Judgement(fate=Fate.OPEN, what=given, why="what this stands for is filled in elsewhere")
    if not given.startswith("-"):
        why = f"tritonserver takes no such word; did you mean --model-repository={given}?"
        return Judgement(fate=Fate.REFUSED, what=given, why=why)
    try:
        scan_argv([given], BY_NAME)
    except SettingsError as error:
        return Judgement(fate=Fate.REFUSED, what=given.partition("=")[0], why=_said(error))
    return Judgement(fate=Fate.REFUSED, what=given, why="it needs a value")


def _difference(flag: Flag, value: str) -> tuple[Fate, str] | None:
    """Return what is other than in Triton in spite of the flag."""
    match flag.name:
        case "model-repository" if is_remote(value):
            return (
                Fate.DIFFERS,
                f"a remote repository needs the extra 'cloud': {how_to_install('cloud')} (docs/storage.md)",
            )
        case "cache-config" if value.startswith("redis"):
            return (
                Fate.DIFFERS,
                f"entries are Tritium's own (docs/cache.md); extra 'redis': {how_to_install('redis')}",
            )
        case "trace-config" if "opentelemetry" in value:
            return (
                Fate.DIFFERS,
                f"there are more spans (docs/opentelemetry.md); extra 'otel': {how_to_install('otel')}",
            )
        case "backend-config":
            return _of_backend(*value.partition("=")[0].rpartition(",")[::2])
        case "model-control-mode" if value.lower() == "poll":
            return (
                Fate.DIFFERS,
                "a directory is reloaded when its content has changed and come to rest, and one that can't be"
                " read unloads nothing",
            )
        case "allow-gpu-metrics" if value.lower() in {"false", "off", "0"}:
            return None
        case name if name in DIFFERENCES:
            return Fate.DIFFERS, DIFFERENCES[name]
    return None


def _of_backend(backend: str, setting: str) -> tuple[Fate, str] | None:
    if backend == "tensorrtllm":
        return Fate.DIFFERS, f"it sets nothing here, since {_NO_ENGINES}"
    if backend == "python" and setting.startswith(("shm-", "stub-")):
        return Fate.NO_EFFECT, "workers share memory without names and sizes (docs/python_backend.md)"
    if backend and backend not in BUILT_IN and not is_open(backend):
        return (
            Fate.DIFFERS,
            f"backend '{backend}' does not come with Tritium: its library goes to --backend-directory",
        )
    return None


def _as_a_whole(
    flags: Sequence[str], judgements: Sequence[Judgement], repository: bool
) -> Iterator[Judgement]:
    """Yield what only shows when the flags are taken together, if all their values are known."""
    if any(each.fate in {Fate.REFUSED, Fate.OPEN} for each in judgements):
        return
    taken = [flag for flag in flags if not _reads_files(flag.removeprefix("--").partition("=")[0])]
    try:
        Settings.from_argv([*taken, *([] if repository else ["--model-repository=."])])
    except SettingsError as error:
        if "ssl" not in error.message:  # its files are where the server is to run
            yield Judgement(fate=Fate.REFUSED, what="the flags together", why=_said(error))
    if not repository:
        yield Judgement(fate=Fate.OPEN, what="--model-repository", why="no repository is named here")


def _reads_files(name: str) -> bool:
    return name in _FILES or name.endswith(("-file", "-cert", "-key", "-use-ssl", "-ssl-mutual"))


def _of_image(image: str) -> Iterator[Judgement]:
    if not image or "tritonserver" not in image:
        return
    tag = image.rpartition(":")[2]
    for part, fate, why in _IMAGES:
        if part in tag:
            yield Judgement(fate=fate, what=image, why=why)
            return
    why = "an image of Tritium takes the same arguments: deploy/Dockerfile (docs/cloud_platforms.md)"
    yield Judgement(fate=Fate.DIFFERS, what=image, why=why)


def _written(flag: Flag, value: str) -> str:
    return f"--{flag.name}" if flag.form is SWITCH else f"--{flag.name}={value}"


def _shown(flag: Flag, value: str) -> str:
    if flag.secret is not None and flag.secret(value):
        return f"--{flag.name}={HIDDEN}"
    return _written(flag, value)


def _said(error: SettingsError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def hidden(words: Sequence[str]) -> list[str]:
    """Return flags to be shown: without their secrets."""
    return [word if flag is None else _shown(flag, value) for flag, word, value in _pieces(words)]
