"""The manual page tritium(1). Pure: the tables in, roff out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from engine.cli.manual.table import Line, Word
from engine.settings.option import Group
from engine.settings.settings import FLAGS


def page(table: Sequence[Line], *, version: str) -> str:
    """Return the page."""
    return "\n".join(_page(table, version)) + "\n"


def _page(table: Sequence[Line], version: str) -> Iterator[str]:
    yield f'.TH TRITIUM 1 "" "Tritium {_plain(version)}" "User Commands"'
    yield ".SH NAME\ntritium \\- serve machine learning models as Triton Inference Server does"
    yield ".SH SYNOPSIS\n.B tritium\n.I COMMAND\n[\\fIOPTIONS\\fR]"
    yield ".SH DESCRIPTION"
    yield _plain(
        "Tritium serves the models of a Triton model repository over the KServe v2 protocol. Every model"
        " instance runs in a worker process under a supervisor, so a crash, a hang or a poisonous request"
        " costs at most what that instance was doing."
    )
    yield ".SH COMMANDS"
    for line in table:
        yield f".TP\n.B tritium {_plain(line.name)}\n{_plain(line.about)}"
    yield ".SH OPTIONS OF TRITIUM SERVE"
    yield _plain(
        "Also those of `tritium run` and `tritium sagemaker`. Each can be set by an environment variable:"
        " TRITIUM_ and its name in capitals, with _ for -. A flag on the command line wins. Bool values are"
        " true, on, 1 and false, off, 0."
    )
    words = {
        name: word for line in table if line.name == "serve" for word in line.words for name in word.names
    }
    for group in Group:
        yield f'.SS "{_plain(group.value)}"'
        for flag in FLAGS:
            if flag.group is group:
                yield from _word(words[f"--{flag.name}"])
    for line in table:
        own = [word for word in line.words if word.about and f"{word.names[0]}" not in words]
        if own:
            yield f'.SH "OPTIONS OF TRITIUM {_plain(line.name.upper())}"'
            for word in own:
                yield from _word(word)
    yield ".SH EXIT STATUS"
    yield _plain(
        "0: done, or the server was told to stop and did. 1: it could not be done; standard error says why."
        " 2: a command line that makes no sense."
    )


def _word(word: Word) -> Iterator[str]:
    heads = ", ".join(
        rf"\fB{_plain(name)}\fR" + (rf"=\fI{_plain(word.metavar)}\fR" if word.metavar else "")
        for name in word.names
    )
    yield f".TP\n{heads}\n{_plain(word.about)}"


def _plain(text: str) -> str:
    """Return text that roff prints as it is, in lines that are not too long."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    escaped = "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in escaped)
    lines = textwrap.wrap(escaped, 100, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rf"\&{line}" if line.startswith(".") else line for line in lines)
