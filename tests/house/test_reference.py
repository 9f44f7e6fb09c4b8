"""The pages say what the tables of settings say."""

from tests.house import c_functions, metrics, migration, openai_fields, reference


def test_the_pages_follow_from_the_tables():
    again = "`python -m tests.house.reference` writes it"
    assert reference.OPTIONS.read_text(encoding="utf-8") == reference.options(), again
    assert reference.METRICS_PAGE.read_text(encoding="utf-8") == metrics.page(), again
    assert openai_fields.PAGE.read_text(encoding="utf-8") == openai_fields.page(), again
    assert c_functions.PAGE.read_text(encoding="utf-8") == c_functions.page(), again
    assert migration.PAGE.read_text(encoding="utf-8") == migration.page(), again
    assert reference.PARAMETERS_PAGE.read_text(encoding="utf-8") == reference.parameters(), again
