"""What the pages say of chaos runs is true: the table of faults, goals and limits, a soak's tolerances."""

import re
from pathlib import Path

import pytest

from chaos.__main__ import main
from chaos.checker.rules.limits import Limits
from chaos.checker.soak import QUANTITIES
from chaos.flags import EVERY_FAULT, EXCLUSIONS, MODES
from chaos.mutations.targets import TARGETS
from chaos.plan import LONGEST, plan
from tests.chaos.made_runs import made_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reliability" / "chaos.md").read_text()
FAULTS = (DOCS / "reliability" / "faults.md").read_text()
MUTATIONS = (DOCS / "reliability" / "mutations.md").read_text()


def rows(title):
    """Return the cells of the first table under a heading of the page."""
    section = PAGE.split(f" {title}\n", 1)[1]
    [table, *_] = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def words(text):
    return set(re.findall(r"\w+", text))


def test_the_table_of_faults_is_what_the_command_prints(capsys):
    assert main(["faults", "--markdown"]) == 0
    assert FAULTS[FAULTS.index("| fault ") :] == capsys.readouterr().out, (
        "the table in docs/reliability/faults.md is not what `python -m chaos faults --markdown` prints"
    )


def test_every_goal_of_a_run_is_explained_with_its_limit():
    explained = rows("The goals")
    for goal in made_run().judged(Limits()).verdict.goals:
        limits = [limit for name, limit, _ in explained if words(goal.name) <= words(name)]
        said = {number for limit in limits for number in re.findall(r"[\d.]+", limit)}
        assert said & {f"{goal.limit:g}", f"{goal.limit * 1e3:g}"}, goal


def test_what_a_soak_tolerates_is_told():
    told = dict(rows("Soak"))
    for quantity in QUANTITIES:
        last = quantity.name.replace("server memory", "server").replace("workers' memory", "workers")
        [limit] = [limit for name, limit in told.items() if last in words(name)]
        assert limit == f"{quantity.tolerated:g}{quantity.unit and f' {quantity.unit}'} an hour"


def test_the_page_counts_rightly():
    assert f"has all {len(EVERY_FAULT)}, " in PAGE
    assert f"{len(TARGETS)} functions" in " ".join(MUTATIONS.split())


@pytest.mark.parametrize("mode", MODES.values(), ids=lambda mode: mode.name)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_minutes_have_room_for_every_fault_of_a_mode(mode, seed):
    planned = plan(
        seed=seed,
        minutes=10,
        rate=150,
        faults_per_minute=12,
        weights={name: fault.weight for name, fault in mode.catalogue.items()},
        exclusions=[each & mode.catalogue.keys() for each in EXCLUSIONS],
    )
    assert {each.fault for each in planned.faults} == mode.catalogue.keys()


@pytest.mark.parametrize("fault", EVERY_FAULT.values(), ids=lambda fault: fault.name)
def test_each_fault_says_in_a_sentence_what_is_to_be_seen_and_is_short(fault):
    assert fault.expected.endswith(".")
    assert fault.weight > 0
    assert 0 <= fault.lasts <= LONGEST


def test_links_lead_somewhere():
    for page in (DOCS / "reliability.md", *(DOCS / "reliability").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
