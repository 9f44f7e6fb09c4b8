"""docs/kubernetes.md: what its YAML names is there.

The long tier renders it (`test_chart.py`) and validates it (`test_kubernetes_schemas.py`).
"""

import json
import re

import yaml

from engine.settings.scanning import scan_argv
from engine.settings.settings import BY_NAME
from tests.deploy.helm.charts import CHART, SETS, VALUES
from tests.deploy.helm.pages import PAGE, blocks
from tests.house.board.declared import families
from tests.house.board.promql import family_of, metrics_in

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES_OF_CHART = yaml.safe_load((CHART / "values.yaml").read_text())
PAGE_TEXT = PAGE.read_text(encoding="utf-8")
README = (CHART / "README.md").read_text(encoding="utf-8")


def leaves(schema=None, prefix=""):
    """Yield the names of values, with dots; what Kubernetes or the user names within one is left out."""
    for name, each in (schema or SCHEMA)["properties"].items():
        if each.get("additionalProperties") is False:
            yield from leaves(each, f"{prefix}{name}.")
        elif prefix or name in VALUES_OF_CHART:
            yield f"{prefix}{name}"


def test_every_block_is_a_manifest_or_values():
    charts = [block.chart for block in blocks()]
    assert set(charts) == {"", "tritium", "prometheus-adapter"}
    assert charts.count("tritium") > 8


def test_values_that_the_page_shows_are_values_of_the_chart():
    for block in blocks():
        if block.chart == "tritium":
            assert set(block.values) <= set(VALUES_OF_CHART), block.line


def test_the_readme_names_every_value():
    rows = [set(re.findall(r"\w+", row)) for row in README.splitlines() if row.startswith("| `")]
    named = [each for each in leaves() if any(set(each.split(".")) <= row for row in rows)]
    assert named == list(leaves())


def test_values_that_the_readme_and_the_page_name_are_there():
    checked = 0
    for name in re.findall(r"`((?:\w+\.)+\w+)`", README + PAGE_TEXT):
        here = VALUES_OF_CHART
        if name.split(".")[0] in here and name != "auth.toml":
            checked += 1
            for part in name.split("."):
                assert part in here, name
                here = here[part] if isinstance(here[part], dict) else {}
    assert checked > 40


def test_command_lines_of_the_page_have_flags_of_the_server():
    checked = 0
    for block in blocks():
        for document in block.documents:
            if document.get("kind") == "Deployment":
                (container,) = document["spec"]["template"]["spec"]["containers"]
                assert container["args"][0] == "tritonserver"
                assert scan_argv(container["args"][1:], BY_NAME)
                checked += 1
    assert checked


def test_rules_for_the_adapter_read_metrics_that_exist():
    (block,) = (each for each in blocks() if each.chart == "prometheus-adapter")
    for rule in block.values["rules"]["custom"]:
        query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod").replace("<<.LabelMatchers>>", 'pod="a"')
        for each in (query, rule["seriesQuery"]):
            assert {m for m in metrics_in(each) if family_of(m, families()) is None} == set()


def test_metrics_for_the_endpoint_picker_exist():
    (config,) = (
        each for block in blocks() for each in block.documents if each.get("kind") == "EndpointPickerConfig"
    )
    (engine,) = config["plugins"][0]["parameters"]["engineConfigs"]
    named = {value for name, value in engine.items() if name.endswith("Spec")}
    assert {each for each in named if family_of(each, families()) is None} == set()


def test_the_page_counts_the_sets_of_values():
    assert "for eleven sets of values" in PAGE_TEXT
    assert len(SETS) == len(list(VALUES.glob("*.yaml"))) == 11
