"""`tritium fleet`: servers that stand side by side, steered by a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from engine.cli.client import ServerUnavailable
from engine.cli.fleet.options import fleet_parser
from engine.settings.extras import how_to_install

__all__ = ["fleet", "fleet_parser"]

_MISSING: Final = "tritium fleet needs {name}, which is not installed here: {command}"


def fleet(argv: Sequence[str]) -> int:
    """Run one of the commands; return the process's exit status."""
    if argv and argv[0] == "launch":
        from engine.cli.fleet.launch import launch

        return launch(argv[1:])
    parser = fleet_parser()
    options = parser.parse_args(argv)
    if options.what == "proxy-config":
        if options.watch is not None and options.output is None:
            parser.error("--watch takes --output=FILE: a file is what follows the fleet")
        if options.reload and options.watch is None:
            parser.error("--reload takes --watch: it is run when the file has changed")
    try:
        from engine.cli.fleet.doing import COMMANDS
        from engine.cli.fleet.steering import Unfinished
        from engine.fleet.document.nodes import BadDocument
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{_MISSING.format(name=error.name, command=how_to_install('fleet'))}\n")
        return 1
    try:
        return COMMANDS[options.what](options)
    except (BadDocument, ServerUnavailable) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Unfinished as error:
        sys.stderr.write(f"{error}\n")
        return error.status
