"""What workers see of the server's environment, and which addresses can be bound."""

import socket
import sys
import types
from importlib import import_module

import pytest

from engine.processes.backends import BUILT_IN, GROUP, BackendTraits, discover, traits_of
from engine.processes.inheritance import for_workers, inherited, scrubbed
from engine.server.sockets import AddressInUse, bind
from engine.settings.settings import Settings, SettingsError
from engine.worker.backends.base import Backend


def test_a_minimal_environment_has_what_programs_need():
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "2",
        "HF_HOME": "/hf",
    }
    assert scrubbed(environ) == {**environ, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
        "TRITIUM_TOKEN",
        "HF_TOKEN",
        "NVIDIA_API_KEY",
        "ORT_SECRET",
        "TORCH_PASSWORD",
        "PATHS",
    ],
)
def test_a_minimal_environment_has_no_secret(name):
    assert scrubbed({name: "hidden"}) == {"PYTHONUNBUFFERED": "1"}


def test_a_listener_gets_its_address():
    with bind("127.0.0.1", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def test_a_taken_address_is_refused_in_the_contracts_words():
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(AddressInUse) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == f"Socket '127.0.0.1:{port}' already in use "


@pytest.mark.parametrize(
    ("address", "shown", "reason"),
    [
        ("192.0.2.1", "192.0.2.1:0", "[^(]+"),  # the system's reason, and no more
        ("2001:db8::1", r"\[2001:db8::1\]:0", "[^(]+"),
        ("[::1]", r"\[::1\]:0", "an IPv6 address is given without brackets, such as ::1"),
    ],
)
def test_an_address_that_is_not_ours_is_refused_with_the_reason(address, shown, reason):
    with pytest.raises(AddressInUse, match=f"^Socket '{shown}' can't be opened: {reason}$"):
        bind(address, 0)


# -- which backends there are


class Mine(Backend):
    pure = False
    concurrent = False
    default_artifact = "model.mine"
    platforms = ("mine_v1",)

    def load(self, model):
        raise NotImplementedError

    def execute(self, batch):
        raise NotImplementedError


@pytest.fixture
def entry_point(monkeypatch, tmp_path):
    """Install a distribution that names these backends."""

    def install(**targets):
        info = tmp_path / "theirs-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        lines = [f"[{GROUP}]", *(f"{name} = {target}" for name, target in targets.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # the last to name a backend counts
        theirs = types.ModuleType("their_backend")
        vars(theirs)["Mine"] = Mine
        monkeypatch.setitem(sys.modules, "their_backend", theirs)

    return install


def test_the_class_s_attributes_are_the_traits():
    assert traits_of(Mine, name="mine", target="a:B") == BackendTraits(
        name="mine",
        pure=False,
        concurrent=False,
        default_artifact="model.mine",
        platforms=("mine_v1",),
        target="a:B",
    )


@pytest.mark.parametrize("name", ["mine", "python"])
def test_an_installed_backend_is_found_and_goes_before_our_own_table(entry_point, name):
    entry_point(**{name: "their_backend:Mine"})
    assert discover()[name] == traits_of(Mine, name=name, target="their_backend:Mine")


def test_our_own_are_found_in_a_checkout(entry_point):
    entry_point()
    assert set(discover()) == set(BUILT_IN)


@pytest.mark.parametrize("ours", BUILT_IN.values(), ids=lambda ours: ours.name)
def test_what_the_server_knows_of_our_own_is_what_their_classes_say(ours):
    module, _, name = ours.target.partition(":")
    assert traits_of(getattr(import_module(module), name), name=ours.name, target=ours.target) == ours


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module_anywhere:X", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("their_backend:Absent", "AttributeError: module 'their_backend' has no attribute 'Absent'"),
    ],
)
def test_a_backend_that_can_t_be_imported_is_listed_with_the_reason(entry_point, target, reason):
    entry_point(bad=target)
    assert discover()["bad"].unavailable == reason


# -- the environment variables that workers inherit: by default all but those for the server alone


OF_THE_MODELS = {
    "HF_TOKEN": "t",
    "MY_ENV": "1",
    "DATABASE_URL": "postgres://",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "SCORES_PORT_8000_TCP": "tcp://10.0.0.2:8000",
    "https_proxy": "http://proxy",
}
S3 = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token"}
OWN = {
    "TRITIUM_HTTP_RESTRICTED_API": "health:key=secret",
    "TRITIUM_WORKER": "mark",
    "TRITIUM_SERVICE_HOST": "10.0.0.3",
    "TRITONCACHE_REDIS_USERNAME": "u",
    "TRITONCACHE_REDIS_PASSWORD": "p",
    "NOTIFY_SOCKET": "/run/notify",
    "LISTEN_FDS": "2",
}


def test_a_worker_has_the_servers_environment_but_for_the_servers_own():
    environ = {**OF_THE_MODELS, **S3, **OWN}
    assert inherited(environ) == {**OF_THE_MODELS, **S3, "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("repository", "own"),
    [
        ("s3://bucket/models", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/models", "AWS_SESSION_TOKEN"),
        ("s3://bucket/models", "TRITON_CLOUD_CREDENTIAL_PATH"),
        ("gs://bucket/models", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("gs://bucket/models", "TRITON_CLOUD_CREDENTIAL_PATH"),
        ("as://account/container", "AZURE_STORAGE_KEY"),
    ],
)
def test_credentials_of_a_storage_are_the_servers_own_where_it_uses_them(repository, own):
    assert own in inherited({own: "x"}, repositories=["/models"])
    assert own not in inherited({own: "x"}, repositories=["/models", repository])


def test_credentials_of_another_storage_are_the_models():
    assert "AWS_SECRET_ACCESS_KEY" in inherited(S3, repositories=["gs://bucket/models"])


def test_a_minimal_environment_is_that_of_a_strict_sandbox():
    environ = {**OF_THE_MODELS, **S3, **OWN, "PATH": "/bin"}
    assert inherited(environ, mode="minimal") == {"PATH": "/bin", "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("flags", "has"), [((), True), (("inherit",), True), (("minimal",), False), (("MINIMAL",), False)]
)
def test_the_operator_chooses(flags, has):
    argv = ["--model-repository=/models", *(f"--worker-environment={flag}" for flag in flags)]
    assert ("MY_ENV" in for_workers(Settings.from_argv(argv), {"MY_ENV": "1"})) is has


def test_there_are_two_choices():
    with pytest.raises(SettingsError, match="invalid argument for --worker-environment"):
        Settings.from_argv(["--model-repository=/models", "--worker-environment=none"])
