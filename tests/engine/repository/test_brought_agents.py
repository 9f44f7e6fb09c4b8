"""Repository agents that a load's configuration asks for, where uploaded models are shut in."""

import json

import pytest

from engine.processes.agents.process import AgentFailed
from engine.repository.agents import AgentRunner
from engine.settings.models import AgentSettings
from tests.support.logged import Logged

OWN = 'backend: "python" model_repository_agents { agents { name: "fetch" parameters { key: "a" value: "b" } } }'
FETCH = {"name": "fetch", "parameters": {"a": "b"}}


@pytest.fixture
def chain(tmp_path):
    (tmp_path / "agents" / "fetch").mkdir(parents=True)
    (tmp_path / "agents" / "fetch" / "agent.py").touch()
    (tmp_path / "m").mkdir()
    settings = AgentSettings(directory=str(tmp_path / "agents"), timeout=1.0, memory=0)
    runner = AgentRunner(settings, environ={}, log=Logged())

    def chain(agents, *, own=OWN, own_only=True):
        (tmp_path / "m" / "config.pbtxt").write_text(own)
        override = None
        if agents is not None:
            override = json.dumps({"backend": "python", "model_repository_agents": {"agents": agents}})
        return runner.chain(
            "m", tmp_path / "m", config_name="", override=override, signed=False, own_only=own_only
        )

    return chain


@pytest.mark.parametrize("agents", [None, [FETCH]])
def test_those_of_the_repository_run(chain, agents):
    assert chain(agents) is not None


@pytest.mark.parametrize(
    "agents", [[{"name": "fetch", "parameters": {"a": "c"}}], [FETCH, FETCH], [{"name": "fetch"}]]
)
@pytest.mark.parametrize("own", [OWN, 'backend: "python"', "{"])
def test_others_do_not(chain, agents, own):
    # A parameter may say where files come from, which would then run outside of the sandbox of uploads.
    with pytest.raises(AgentFailed, match="its agents came with the load"):
        chain(agents, own=own)
    assert chain(agents, own=own, own_only=False) is not None


def test_a_configuration_without_agents_is_taken(chain):
    assert chain([], own='backend: "python"') is None


@pytest.mark.parametrize("own_only", [False, True])
@pytest.mark.parametrize(
    "own", [OWN, OWN + "max_batch_size: many"], ids=["good", "with a field that can't be read"]
)
def test_a_configuration_that_leaves_the_repository_s_agents_out_does_not_turn_them_off(chain, own, own_only):
    """They may be what tells whether the files are genuine."""
    assert chain([], own=own, own_only=own_only) is not None
