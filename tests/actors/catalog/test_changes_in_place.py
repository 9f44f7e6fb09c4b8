"""What of a new configuration a version that serves takes up, and what starts another. Without a loop."""

from dataclasses import replace
from pathlib import Path

from actors.catalog.changes import VersionChange, plan_change
from actors.values.generation.adapters import Adapter
from actors.values.specs import Direct, InstanceSpec, LanguageServing
from tests.support.model_doubles import make_spec

TONE = Adapter("tone", "tone", "/tone", "1f")
BEFORE = make_spec(content="c", scheduling=LanguageServing())


def planned(after, *, before=BEFORE, forced=False):
    return plan_change({1: before}, [after], forced=forced)


def test_other_adapters_are_taken_up():
    after = replace(BEFORE, scheduling=LanguageServing(adapters=(TONE,)))
    assert planned(after) == planned(after, forced=True) == VersionChange(scale=(after,))
    assert planned(BEFORE, before=after) == VersionChange(scale=(BEFORE,))


def test_where_a_load_has_put_an_instance_is_no_change():
    open_ = InstanceSpec(name="m_0", kind="GPU", candidates=(0, 1))
    before = replace(BEFORE, instances=(replace(open_, device_id=1, visible="GPU-b"),))
    after = replace(BEFORE, instances=(open_,))
    assert planned(after, before=before) == VersionChange(stay=(1,))
    two = replace(after, instances=(open_, replace(open_, name="m_1")))
    assert planned(two, before=before) == VersionChange(scale=(two,))


def test_nothing_else_is():
    adapted = LanguageServing(adapters=(TONE,))
    for after in (
        replace(BEFORE, scheduling=adapted, content="d"),
        replace(BEFORE, scheduling=adapted, version_directory=Path("/elsewhere")),
        replace(BEFORE, scheduling=replace(adapted, streams=3)),
        replace(BEFORE, scheduling=Direct()),
    ):
        assert planned(after) == VersionChange(start=(after,))
    assert planned(BEFORE) == VersionChange(stay=(1,))
    assert planned(BEFORE, forced=True) == VersionChange(start=(BEFORE,))
