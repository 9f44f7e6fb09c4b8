"""`python -m chaos`: does the server keep its promises while everything around it, and in it, fails?"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from chaos.plan import Plan
    from chaos.runner import Setting

_SHOWN: Final = 5  # pieces of evidence against a goal; the report has more

DESCRIPTION: Final = """\
Starts a real server on a reference workload, sends it an open-loop load over HTTP and gRPC, and injects faults by a schedule
that follows from the seed: workers die, hang, leak and talk nonsense, actors of the server crash, the repository is half copied
and corrupted, clients misbehave, the clock jumps, the disk is full. Everything is written down, and judged afterwards by what was
written down alone. Exit status: 0 if all goals were reached, 1 if some were missed, 2 if the run could not be done.
"""

EXAMPLES: Final = """\
commands (without one: a run):
  run      a run, and the verdict on it
  check    judge the record of a run again
  faults   list all faults, and what must be seen of each
  soak     the load alone or with faults for a long time, and whether anything grows

examples:
  python -m chaos --minutes 10 --seed 1
  python -m chaos --minutes 2 --only worker_sigkill worker_sigstop --folder /tmp/run
  python -m chaos check /tmp/run
  python -m chaos soak --minutes 120

See also: python -m chaos.simulation --help, python -m chaos.mutations --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "run": _run,
        "check": _check,
        "faults": _faults,
        "soak": _soak,
    }
    command = commands.get(words[0]) if words else None
    try:
        return _run(words) if command is None else command(words[1:])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return 0
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"error: {error}; chaos runs need more than the server does: pip install -e '.[test]'\n"
        )
        return 2


def _parser(command: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m chaos{command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _run(words: Sequence[str]) -> int:
    parser = _parser("", DESCRIPTION, EXAMPLES)
    _add_load(parser, minutes=10, faults=12, rate=150)
    return _planned_and_done(parser, words, long=False)


def _soak(words: Sequence[str]) -> int:
    description = (
        "Has the server under the load, with a fault now and then, for so long that a leak must show; the verdict has the slope of its"
        " memory,\ndescriptors, threads and children."
    )
    parser = _parser(" soak", description, "example: python -m chaos soak --minutes 120 --rate 50")
    _add_load(parser, minutes=120, faults=1, rate=50)
    return _planned_and_done(parser, words, long=True)


def _planned_and_done(parser: argparse.ArgumentParser, words: Sequence[str], *, long: bool) -> int:
    from chaos.flags import EXCLUSIONS, MODES, chosen, mode_of
    from chaos.plan import LONG_SHARES, SHARES, plan
    from chaos.runner import Setting
    from chaos.workload.backends.kinds import BACKENDS, left_out

    options = parser.parse_args(words)
    mode = MODES[options.mode] if options.mode else mode_of(options.seed)
    try:
        catalogue = chosen(mode, options.only, backends=options.backends)
        what = plan(
            seed=options.seed,
            minutes=options.minutes,
            rate=options.rate,
            faults_per_minute=options.faults_per_minute,
            weights={name: fault.weight for name, fault in catalogue.items()},
            exclusions=[each & catalogue.keys() for each in EXCLUSIONS],
            shares=LONG_SHARES if long else SHARES,
        )
    except ValueError as error:
        parser.error(str(error))
    folder = options.folder.absolute() if options.folder else Path(tempfile.mkdtemp(prefix="chaos-run-"))
    tensorflow = str(options.tensorflow.absolute()) if options.tensorflow else ""
    missing = left_out(tensorflow)
    setting = Setting(
        folder=folder,
        catalogue=catalogue,
        flags=mode.flags,
        writes_traces=mode.writes_traces,
        command=shlex.join([*parser.prog.split(), *_without_places(words)]),
        end=not options.no_endings,
        backends=[each for each in BACKENDS if options.backends and each not in missing],
        tensorflow=tensorflow,
    )
    tell = (lambda _: None) if options.quiet else _teller()
    tell(
        f"-- {options.minutes:g} minutes, seed {options.seed}, {len(what.faults)} faults; the record: {folder}"
    )
    if options.backends:
        without = "; ".join(f"{name}: {why}" for name, why in missing.items())
        tell(f"-- backends: {', '.join(setting.backends)}; left out: {without}")
    failure = _carried_out(what, setting, tell)
    if failure:
        sys.stderr.write(f"error: {failure}\nthe record so far: {folder}\n")
        return 2
    return _judged(folder, options, long=long)


def _without_places(words: Sequence[str]) -> list[str]:
    """Leave out where the record and the report go: a repetition of the run elsewhere has no use for that."""
    places = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    places.add_argument("--folder")
    places.add_argument("--report")
    return places.parse_known_args(words)[1]


def _teller() -> Callable[[str], None]:
    began = time.monotonic()

    def tell(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:7.1f} s  {line}\n")

    return tell


def _carried_out(what: Plan, setting: Setting, tell: Callable[[str], None]) -> str:
    """Do a run; return why it could not be done."""
    from chaos.runner import FolderTaken, run
    from chaos.subject.server import ServerFailed

    failures: list[str] = []

    async def run_until_told() -> None:
        """SIGTERM, which a job's time limit sends, must not leave a server behind either."""
        with trio.open_signal_receiver(signal.SIGTERM) as told:
            async with trio.open_nursery() as nursery:

                async def listen() -> None:
                    await anext(told)
                    failures.append("ended by SIGTERM")
                    nursery.cancel_scope.cancel()

                nursery.start_soon(listen)
                await run(what, setting, tell)
                nursery.cancel_scope.cancel()

    try:
        try:
            trio.run(run_until_told)
        except* (ServerFailed, FolderTaken, OSError) as group:
            failures += map(str, _leaves(group))
    except* KeyboardInterrupt:
        failures.append("interrupted")
    return "; ".join(failures)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


# -- the verdict


def _check(words: Sequence[str]) -> int:
    parser = _parser(
        " check", "Judges the record of a run again and writes its report. Exit status as of a run."
    )
    parser.add_argument("folder", type=Path, help="where the record is")
    parser.add_argument("--soak", action="store_true", help="it is that of a soak: judge the slopes, too")
    _add_verdict(parser)
    options = parser.parse_args(words)
    if not (options.folder / "manifest.json").is_file():
        parser.error(
            f"there is no manifest.json in {options.folder}, as in every record of a run; name its --folder"
        )
    try:
        return _judged(options.folder, options, long=options.soak)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _judged(folder: Path, options: argparse.Namespace, *, long: bool) -> int:
    """Judge a record, write its report, and print the result."""
    from chaos.checker.judge import judge_folder
    from chaos.checker.rules.limits import Limits
    from chaos.flags import EVERY_FAULT
    from chaos.report.markdown import markdown
    from chaos.workload.answers import expected

    # A slow machine takes its time to answer what has queued up: how much of it decides nothing then.
    limits = Limits(draining=math.inf) if options.judge == "answers" else Limits()
    judgement = judge_folder(folder, expected, limits, long=long)
    verdict = judgement.verdict
    behaviours = {name: fault.expected for name, fault in EVERY_FAULT.items()}
    (folder / "report.md").write_text(markdown(judgement, behaviours), encoding="utf-8")
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / "report.md", options.report)
    for goal in verdict.goals:
        said = {True: "reached", False: "MISSED", None: "not measured"}[goal.passed]
        figure = "" if goal.figure is None else f"{goal.figure:.4g}{goal.unit and f' {goal.unit}'}"
        print(f"{said:<12} {goal.name:<40} {figure:>12}   {goal.sense} {goal.limit:g}, of {goal.measured}")
        if goal.passed is False:
            for each in goal.evidence[:_SHOWN]:
                print(f"{'':13}{each.id}: {each.story}")
    print(f"the report: {folder / 'report.md'}")
    decides = verdict.answers_passed if options.judge == "answers" else verdict.passed
    return 0 if decides else 1


def _faults(words: Sequence[str]) -> int:
    from chaos.flags import EVERY_FAULT, MODES

    parser = _parser(" faults", "Lists all faults, and what must be seen of each from outside.")
    parser.add_argument("--markdown", action="store_true", help="as a table")
    options = parser.parse_args(words)
    if options.markdown:
        print("| fault | lasts | what must be seen | in mode |\n|---|---|---|---|")
    for name, fault in EVERY_FAULT.items():
        modes = [mode.name for mode in MODES.values() if name in mode.catalogue]
        where = "both" if len(modes) == len(MODES) else "".join(modes) or "`--backends`"
        if options.markdown:
            print(
                f"| `{name}` | {f'{fault.lasts:g} s' if fault.lasts else 'a blow'} | {fault.expected} | {where} |"
            )
        else:
            print(f"{name}\n{textwrap.indent(textwrap.fill(fault.expected, 110), '    ')}")
    return 0


# -- options


def _add_load(parser: argparse.ArgumentParser, *, minutes: float, faults: float, rate: float) -> None:
    parser.add_argument(
        "--minutes", type=float, default=minutes, help="how long, endings apart (default: %(default)g)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="what the schedule and the load follow from (default: 1)"
    )
    parser.add_argument("--rate", type=float, default=rate, help="requests a second (default: %(default)g)")
    parser.add_argument(
        "--faults-per-minute",
        type=float,
        default=faults,
        metavar="N",
        help="in phases with faults (default: %(default)g)",
    )
    parser.add_argument(
        "--folder", type=Path, help="where the record is kept (default: a new temporary folder)"
    )
    parser.add_argument(
        "--backends",
        action="store_true",
        help="have one model of each backend that is installed, too, and the faults of workers",
    )
    parser.add_argument(
        "--tensorflow", type=Path, metavar="FOLDER", help="an environment with TensorFlow, for --backends"
    )
    parser.add_argument("--only", nargs="+", default=(), metavar="FAULT", help="these faults and no others")
    parser.add_argument(
        "--mode",
        help="how the server learns of changes in its repository, poll or explicit; by default odd seeds poll, even ones use the"
        " repository API",
        choices=("poll", "explicit"),
    )
    parser.add_argument("--no-endings", action="store_true", help="leave out the ways to end a server")
    parser.add_argument("--quiet", action="store_true", help="only the verdict, no news")
    _add_verdict(parser)


def _add_verdict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", type=Path, metavar="FILE", help="copy the report there")
    parser.add_argument(
        "--judge",
        choices=("all", "answers"),
        default="all",
        help="which goals decide the exit status: all, or only those that no slow machine can miss (default: all)",
    )


if __name__ == "__main__":
    sys.exit(main())
