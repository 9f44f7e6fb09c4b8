"""The pages say what the tables of settings say."""

from tests.house import metrics, reference


def test_the_pages_follow_from_the_tables():
    again = "`python -m tests.house.reference` writes it"
    assert reference.OPTIONS.read_text(encoding="utf-8") == reference.options(), again
    assert reference.METRICS_PAGE.read_text(encoding="utf-8") == metrics.page(), again
    assert reference.PARAMETERS_PAGE.read_text(encoding="utf-8") == reference.parameters(), again
