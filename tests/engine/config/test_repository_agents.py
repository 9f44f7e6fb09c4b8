"""The agent `checksum`, which is built in, and which others are known."""

import hashlib
import json

import pytest

from actors.values.errors import ErrorCode
from engine.processes.agents.declared import KnownAgents

CONTENT = b"import nothing\n"
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
AGENT = "model_repository_agents.agents[0]"


def config(parameters, name="checksum"):
    entries = "".join(f' parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
    return f'backend: "python"\nmodel_repository_agents {{ agents {{ name: "{name}"{entries} }} }}\n'


@pytest.fixture
def check(load):
    def load_without_code(text, **options):
        files = {"1/model.py": CONTENT, "weights/a.bin": CONTENT}
        return load(text, files=files, run_model_code=False, **options)

    return load_without_code


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"MD5:1/model.py": MD5},
        {"MD5:1/model.py": MD5.upper()},
        {"SHA256:weights/a.bin": SHA256},
        {"MD5:1/model.py": MD5, "SHA256:1/model.py": SHA256},
    ],
)
def test_a_model_whose_files_are_as_they_should_be_is_loaded(check, parameters):
    assert check(config(parameters)).ok


def brought(*agents):
    """A configuration in a load, with agents given as their parameters."""
    named = [{"name": "checksum", "parameters": each} for each in agents]
    return json.dumps({"backend": "python", "model_repository_agents": {"agents": named}})


@pytest.mark.parametrize(
    "override", ['{"backend": "python"}', brought(), brought({"MD5:1/model.py": MD5}), brought({})]
)
def test_a_load_s_configuration_does_not_turn_the_repository_s_agents_off(check, override):
    loaded = check(config({"MD5:1/model.py": "0" * 32}), override=override)
    assert [error.key for error in loaded.errors] == [f'{AGENT}.parameters["MD5:1/model.py"]']


def test_the_agents_of_a_load_s_configuration_come_behind_the_repository_s(check):
    own, other = {"MD5:1/model.py": MD5}, {"SHA256:1/model.py": SHA256}
    loaded = check(config(own), override=brought(other, own, own))
    assert loaded.ok
    agents = loaded.configs[0].completed.config.model_repository_agents.agents
    assert [dict(each.parameters) for each in agents] == [own, other, own]


def test_the_agents_of_a_load_s_configuration_are_told_of_by_their_places_behind_the_repository_s(check):
    own = {"MD5:1/model.py": MD5}
    loaded = check(config(own), override=brought({"SHA256:1/model.py": "0" * 64}))
    assert [error.key for error in loaded.errors] == [
        'model_repository_agents.agents[1].parameters["SHA256:1/model.py"]'
    ]


def test_a_load_s_configuration_has_no_agents_where_there_are_none(check):
    loaded = check('backend: "python"', override='{"backend": "python"}')
    assert loaded.ok
    assert not loaded.configs[0].completed.config.HasField("model_repository_agents")


# Each: an id, the parameter, its value, the message, the hint.
REFUSED = [
    ("another content", "MD5:1/model.py", "0" * 32,
     f"file '1/model.py' of model 'm' has MD5 {MD5}, but {'0' * 32} is expected",
     "the file was changed or is not complete; or the digest in the configuration is of another file"),
    ("no file", "MD5:1/absent.py", MD5,
     "failed to read file '1/absent.py' for the checksum agent of model 'm': No such file or directory", ""),
    ("a directory", "MD5:weights", MD5,
     "failed to read file 'weights' for the checksum agent of model 'm': it is no regular file", ""),
    ("a file elsewhere", "MD5:../other/model.py", MD5,
     "file '../other/model.py', which the checksum agent of model 'm' reads, is outside model directory", ""),
    ("another algorithm", "CRC32:1/model.py", MD5,
     "repository agent 'checksum' of model 'm' does not know the parameter 'CRC32:1/model.py'",
     "use 'MD5:<file>' or 'SHA256:<file>', the file relative to the model directory"),
    ("no algorithm", "1/model.py", MD5,
     "repository agent 'checksum' of model 'm' does not know the parameter '1/model.py'",
     "use 'MD5:<file>' or 'SHA256:<file>', the file relative to the model directory"),
    ("no digest", "SHA256:1/model.py", MD5,
     f"'{MD5}' of model 'm' is no SHA256 digest of file '1/model.py'", "use its 64 hexadecimal digits"),
    ("other digits", "MD5:1/model.py", "z" * 32,
     f"'{'z' * 32}' of model 'm' is no MD5 digest of file '1/model.py'", "use its 32 hexadecimal digits"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parameter", "value", "message", "hint"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
def test_what_the_agent_finds_wrong_keeps_the_model_from_loading(check, parameter, value, message, hint):
    (problem,) = check(config({parameter: value})).errors
    assert (problem.message, problem.hint) == (message, hint)
    assert (problem.key, problem.line) == (f'{AGENT}.parameters["{parameter}"]', 2)
    assert problem.code is ErrorCode.INVALID_ARG


def test_an_agent_that_is_not_installed_is_refused(check):
    loaded = check(config({"key": "value"}, name="checksums"))
    (problem,) = loaded.errors
    told = "unable to find 'libtritonrepoagent_checksums.so' for repo agent 'checksums', searched: "
    assert problem.message.startswith(told)
    assert (problem.code, problem.hint) == (ErrorCode.INVALID_ARG, "did you mean 'checksum'?")
    assert (problem.line, problem.column) == (2, 36)


def test_an_agent_of_a_directory_is_known(check, tmp_path):
    (tmp_path / "agents" / "decrypt").mkdir(parents=True)
    (tmp_path / "agents" / "decrypt" / "agent.py").touch()
    known = KnownAgents(str(tmp_path / "agents"))
    assert check(config({}, name="decrypt"), agents=known).ok
    assert known.names() == ("checksum", "decrypt")


def test_an_agent_without_a_name_is_a_mistake(check):
    (problem,) = check(config({}, name="")).errors
    assert problem.message == "repository agent 0 of model 'm' has no name"
    assert problem.code is ErrorCode.INVALID_ARG


def test_python_code_that_is_not_what_it_should_be_is_not_run(load, tmp_path):
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').close()\nclass TritonPythonModel: pass\n"
    assert not load(config({"MD5:1/model.py": MD5}), files={"1/model.py": code}).ok
    assert not mark.exists()
