"""What an option is: a field of a settings class, declared once, with the flags that set it.

A settings class is a frozen dataclass whose fields are declared by `Group.option`, `Group.collected`, `combined` and `section`.
The class is the table: the command line, the variables, the help, the errors and docs/options.md follow from it.
A flag stands in one of two relations to this server:

- *honoured*: it does what its help says, and a field declares it;
- *without effect* (`no_effect`): it tunes a part of Triton that has no counterpart here, so no answer can
  differ for it. Giving it earns a warning, so that command lines written for Triton keep working.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from engine.settings.forms import AnyForm, Form, text, to_bool
from engine.settings.sheet import declared, entries_of, read_sheet

T = TypeVar("T")
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. Its `default` is a word such as an operator would give."""

    group: Group
    name: str
    form: AnyForm
    default: str = ""
    help: str = ""
    repeatable: bool = False
    separator: str = ";"  # between the words of a repeatable flag in its environment variable
    aliases: tuple[str, ...] = ()
    no_effect: str = ""
    # Whether a word holds a secret; None if none ever does. See `engine.settings.secrets`.
    secret: Callable[[str], bool] | None = None

    @property
    def own(self) -> bool:
        """Whether it is Tritium's own, and none of Triton's."""
        return self.help.startswith("Tritium's own")

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "TRITIUM_" + self.name.upper().replace("-", "_")


class Given:
    """The words that were given for each flag of a table, checked one by one, and the environment."""

    def __init__(
        self,
        words: Mapping[str, Sequence[str]] = _NOTHING,
        table: Mapping[str, Flag] = _NOTHING,
        environ: Mapping[str, str] = _NOTHING,
        filed: Mapping[str, Sequence[str]] = _NOTHING,
    ) -> None:
        """`filed` are those among the words that were read from files."""
        self._words = words
        self._filed = filed
        self._table = table
        self.environ = environ
        self.warnings: list[str] = []
        for name, each in words.items():
            self._check(table[name], each)

    def _check(self, flag: Flag, words: Sequence[str]) -> None:
        for word in words:
            flag.form.check(word, flag.name)
        if flag.no_effect:
            self.warn_of(flag.name, flag.no_effect)

    def has(self, name: str) -> bool:
        """Whether the flag was given."""
        return name in self._words

    def all(self, name: str) -> Sequence[str]:
        """Return all its words, in order."""
        return self._words.get(name, ())

    def filed(self, name: str) -> Sequence[str]:
        """Return those of its words that were read from a file, which may all be secret."""
        return self._filed.get(name, ())

    def word(self, name: str, default: str | None = None) -> str:
        """Return the word that counts: the last one, or the default, which the table knows."""
        if name in self._words:
            return self._words[name][-1]
        if default is None:
            return self._table[name].default if name in self._table else ""
        return default

    def on(self, name: str) -> bool:
        """Whether a flag of type BOOL, or a switch, is on."""
        word = self.word(name)
        return bool(word) and to_bool(word, name)

    def warn_of(self, name: str, why: str) -> None:
        """Have a flag that changes nothing named in a warning."""
        self.warnings.append(f"--{name} has no effect: {why}")


def combined(read: Callable[[Given], T], *flags: Flag) -> T:
    """Declare a field that several flags decide, or a part of one."""
    return declared(read, Given, *flags, secret=any(flag.secret is not None for flag in flags))


class Group(Enum):
    """Headings of the help text, in its order."""

    SERVER = "Server"
    MODELS = "Model repository"
    INSTANCES = "Model instances"
    BACKENDS = "Backends"
    CACHE = "Response cache"
    HTTP = "HTTP"
    GRPC = "gRPC"
    LANGUAGE = "Language models"
    CLOUD = "SageMaker and Vertex AI"
    MANAGEMENT = "Management"
    METRICS = "Metrics"
    LOGGING = "Logging"
    TRACING = "Tracing"
    COMPATIBLE = "Accepted for Triton's sake, without effect (each one given is named in a warning)"

    def flag(
        self,
        spec: str,
        form: AnyForm,
        about: str,
        *,
        repeatable: bool = False,
        separator: str = ";",
        aliases: tuple[str, ...] = (),
        secret: Callable[[str], bool] | None = None,
    ) -> Flag:
        """Return a flag of this group that decides a field together with others; see `combined`.

        `spec` is the flag with its default, as an operator would write them: `--http-port=8000`.
        """
        name, _, default = spec.removeprefix("--").partition("=")
        return Flag(self, name, form, default, about, repeatable, separator, aliases, secret=secret)

    def option(
        self, spec: str, form: Form[T], then: Callable[[T, Given], T] = lambda value, given: value
    ) -> Option[T]:
        """Begin to declare a field that one flag decides.

        `then` may hold its value against other flags, and may warn.
        """

        def read(given: Given, flag: Flag) -> T:
            return then(form.read(given.word(flag.name, flag.default), flag.name), given)

        return Option(self.flag(spec, form, ""), read)

    def collected(
        self,
        name: str,
        metavar: str,
        read: Callable[[Given, str], T],
        *,
        secret: Callable[[str], bool] | None = None,
    ) -> Option[T]:
        """Begin to declare a field that all words of a repeatable flag decide.

        `secret` tells whether a word holds one. Then the flag has a second one, that names a file of words.
        """
        flag = self.flag(name, text(metavar), "", repeatable=True, secret=secret)
        return Option(flag, lambda given, flag: read(given, flag.name))


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """A field that one flag decides, but for what it means."""

    flag: Flag
    read: Callable[[Given, Flag], T]

    def means(self, about: str) -> T:
        """Declare the field. `about` is its help."""
        flag = replace(self.flag, help=about)
        return combined(lambda given: self.read(given, flag), flag)


def section(settings: type[T]) -> T:
    """Declare a field that is a settings class of its own."""
    return combined(lambda given: read_sheet(settings, given), *entries_of(settings))
