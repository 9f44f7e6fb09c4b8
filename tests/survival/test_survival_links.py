"""Models whose files are links to other places: polled, in the strict sandbox, and where that is refused."""

import pytest

from tests.survival.changing import Workshop, code, identity, load
from tests.survival.server import eventually

pytestmark = [pytest.mark.slow, pytest.mark.system]

STRICT = 'parameters { key: "tritium.sandbox" value { string_value: "strict" } }\n'
READING = """
from helper import LABEL

assert (HERE / "weights" / "deep" / "data").read_text() == "weights"
assert LABEL == "helped"
try:
    (HERE / "weights" / ".." / "secret").resolve().read_text()
except OSError:
    pass
else:
    raise RuntimeError("it can read what is beside its weights")
"""


@pytest.fixture
def workshop(repository):
    return Workshop(repository.path)


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def moved_out(model, elsewhere):
    """Move the versions of a model elsewhere, and link them."""
    for version in [path for path in model.iterdir() if path.is_dir()]:
        target = elsewhere / f"{model.name}-{version.name}"
        version.rename(target)
        version.symlink_to(target)
    return model


async def test_polling_sees_what_changes_where_links_lead(tritium_server, workshop, elsewhere):
    moved_out(workshop.model("telling"), elsewhere)
    async with tritium_server("--model-control-mode=poll", "--repository-poll-secs=0.1") as server:
        assert await identity(server, "telling") == (1, 1)
        workshop.write(str(elsewhere / "telling-1/model.py"), code(2))

        async def changed():
            return await identity(server, "telling") == (1, 2)

        await eventually(changed)


async def test_a_strict_sandbox_lets_a_model_read_what_it_links_to(tritium_server, workshop, elsewhere):
    (elsewhere / "weights/deep").mkdir(parents=True)
    (elsewhere / "weights/deep/data").write_text("weights")
    (elsewhere / "secret").write_text("secret")
    (elsewhere / "helper").write_text("LABEL = 'helped'\n")
    model = workshop.model("telling", extra=STRICT)
    text = (model / "1/model.py").read_text()
    (elsewhere / "code").write_text(text.replace("\n\nclass ", f"\n{READING}\n\nclass ", 1))
    (model / "1/model.py").unlink()
    for name, target in (("model.py", "code"), ("helper.py", "helper"), ("weights", "weights")):
        (model / "1" / name).symlink_to(elsewhere / target)
    async with tritium_server() as server:
        assert await identity(server, "telling") == (1, 1)


async def test_where_links_stay_inside_a_model_elsewhere_is_refused_by_name(
    tritium_server, workshop, elsewhere
):
    workshop.model("telling")
    moved_out(workshop.model("elsewhere"), elsewhere)
    inside = ("--model-repository-links=inside", "--model-control-mode=explicit")
    async with tritium_server(*inside) as server:
        refused = await load(server, "elsewhere")
        assert (refused.status, "'1' is a link out of the model repository" in refused.error) == (500, True)
        assert (await load(server, "telling")).status == 200
        assert await identity(server, "telling") == (1, 1)
