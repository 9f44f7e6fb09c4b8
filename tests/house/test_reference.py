"""The pages say what the tables of settings say, and every field and variable is on one."""

import re

import pytest

from engine.settings.settings import FLAGS
from protocols.http.routes import TABLE, match
from tests.house import reference
from tests.house.tables import endpoints, fields, variables


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.stem)
def test_the_pages_follow_from_the_tables(page):
    assert page.read_text(encoding="utf-8") == reference.PAGES[page](), (
        "`python -m tests.house.reference` writes it"
    )


def test_each_variable_that_the_code_reads_is_documented():
    known = {name for table in variables.OTHERS.values() for name in table}
    told = known | variables.GIVEN | variables.NO_VARIABLES
    read = variables.read() - {flag.variable for flag in FLAGS}
    assert (read - told, told - read) == (set(), set())


@pytest.mark.parametrize(
    "message",
    ["ModelConfig", "ModelInput", "ModelOutput", "ModelInstanceGroup", "ModelOptimizationPolicy"],
)
def test_what_becomes_of_each_field_is_told(message):
    """Of the fields of messages further inside, the field that holds them tells."""
    about = fields.ABOUT.read_text(encoding="utf-8").partition("## Field by field")[2]
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", about))))
    (descriptor,) = (each for each in fields.messages() if each.name == message)
    assert {field.name for field in descriptor.fields} - told == set()


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in TABLE], ids=lambda pattern: pattern.pattern)
def test_a_path_of_the_page_is_one_of_the_server(pattern):
    paths = endpoints.templates(pattern)
    assert paths
    assert all(match(re.sub(r"\[[^]]*\]", "", path)) for path in paths)


def test_a_part_of_a_path_that_may_be_left_out_is_shown_so():
    pattern = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?(?:/(?:one|two))?")
    start = "/v2/models/{model}[/versions/{version}]"
    assert endpoints.templates(pattern) == [start, f"{start}/one", f"{start}/two"]
