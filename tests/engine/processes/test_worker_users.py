"""User ids of workers' own: who may give them, which are free, and what keeps another user from files."""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from actors.values.confinement import Confinement, Sandbox
from actors.values.specs import Runtime
from engine.models.links import held
from engine.processes import users
from engine.processes.confining import command, confining_environ, own_user
from engine.worker.limits import VARIABLE

EVERYTHING = "CapEff:\t000001ffffffffff\n"
WHOLE = "         0          0 4294967295\n"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give user ids away")


@pytest.mark.parametrize(
    ("user", "status", "uid_map", "gid_map", "why"),
    [
        (0, EVERYTHING, WHOLE, WHOLE, None),
        (0, EVERYTHING, "0 100000 65536\n", "0 100000 65536\n", None),
        (1000, EVERYTHING, WHOLE, WHOLE, ""),
        (0, "CapEff:\t00000000a80425fb\n", WHOLE, WHOLE, "the server runs as root without CAP_SYS_PTRACE"),
        (0, "", WHOLE, WHOLE, "root without CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE"),
        (0, EVERYTHING, "0 1000 1\n", WHOLE, "the server's user namespace has no ids 61184 to 65519"),
        (0, EVERYTHING, "", WHOLE, "has no ids 61184 to 65519"),
        (0, EVERYTHING, WHOLE, "0 1000 1\n", "the server's user namespace has no group id 61184"),
    ],
)
def test_root_with_the_capabilities_for_it_gives_ids_away(user, status, uid_map, gid_map, why):
    told = users.why_none(user, status, uid_map, gid_map)
    assert told == why if not why else told is not None and why in told


def test_no_id_is_lent_twice_at_a_time():
    with users.lent(True) as one, users.lent(True) as other:
        assert one is not None
        assert other is not None
        assert users.FIRST <= one < other <= users.LAST
    with users.lent(True) as again:
        assert again == one
    with users.lent(False) as none:
        assert none is None


@pytest.mark.system
def test_the_user_of_a_process_is_read_and_none_of_a_process_that_is_gone():
    with subprocess.Popen(["/bin/true"]) as process:
        pass
    assert users.user_of(os.getpid()) == os.getuid()
    assert users.user_of(process.pid) is None


@as_root
@pytest.mark.system
def test_an_id_that_a_process_has_is_not_lent():
    with subprocess.Popen(["/bin/cat"], user=users.FIRST, stdin=subprocess.PIPE) as other:
        with users.lent(True) as user:
            assert user is not None
            assert user > users.FIRST
        other.communicate()


@pytest.fixture
def model():
    """A model's folder that every user may read: pytest's own directories are private."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text("")
        for each in (folder.parent, folder, folder / "1", folder / "1" / "model.py"):
            each.chmod(0o755)
        yield folder


@pytest.mark.parametrize(
    ("path", "mode", "letters"),
    [
        ("", 0o700, "rx"),
        ("1", 0o700, "rx"),
        ("1", 0o705, ""),
        ("1/model.py", 0o600, "r"),
        ("1/model.py", 0o640, "r"),
        ("1/model.py", 0o604, ""),
    ],
)
def test_what_keeps_a_worker_from_its_model_is_told_with_the_remedy(model, path, mode, letters):
    place = model / path
    place.chmod(mode)
    told = users.barred([model])
    if letters:
        assert told.startswith(f"'{place}' (mode {mode:04o}, owner {os.getuid()}) keeps another user from")
        assert f"chmod o+{letters} '{place}'" in told
    else:
        assert told == ""


def test_an_inherited_directory_needs_no_way_to_it(model):
    model.parent.chmod(0o700)
    descriptor = os.open(model.parent, os.O_RDONLY)
    try:
        within = held(descriptor, model.name)
        assert f"chmod o+x '{held(descriptor, '.')}'" in users.barred([within])
        model.parent.chmod(0o711)
        assert users.barred([within]) == ""
    finally:
        os.close(descriptor)


def test_a_directory_on_the_way_needs_only_to_be_entered(model):
    model.parent.chmod(0o711)
    assert users.barred([model]) == ""
    model.parent.chmod(0o700)
    assert f"chmod o+x '{model.parent}'" in users.barred([model])


def test_a_program_is_reached_by_its_own_path_and_by_that_of_its_link(model):
    program = model / "python"
    program.symlink_to(model / "1" / "model.py")
    assert users.barred([], [program]) == ""
    (model / "1").chmod(0o700)
    assert f"'{model / '1'}'" in users.barred([], [program])
    (model / "1").chmod(0o755)
    (model / "1" / "model.py").chmod(0o644)
    assert "chmod o+x" in users.barred([], [program])


def test_what_is_missing_is_no_barrier(model):
    (model / "1" / "link").symlink_to(model / "nowhere")
    assert users.barred([model, model / "missing"]) == ""


@as_root
def test_a_directory_that_is_shared_can_be_read_by_workers_and_not_by_others(model):
    model.chmod(0o700)
    users.share(model)
    assert users.barred([model]) == ""
    assert model.stat().st_mode & 0o7 == 0


@as_root
@pytest.mark.parametrize(
    ("mode", "becomes"), [(0o700, 0o710), (0o750, 0o750), (0o711, 0o711), (0o755, 0o755), (0o704, 0o714)]
)
def test_a_private_directory_on_the_way_is_passed_and_not_listed(model, mode, becomes):
    group = model.stat().st_gid
    model.chmod(mode)
    users.let_through(model)
    assert model.stat().st_mode & 0o777 == becomes
    assert model.stat().st_gid == (group if mode == becomes else users.GROUP)


@as_root
@pytest.mark.parametrize("lets", [users.let_through, users.share])
def test_a_directory_that_can_not_change_its_group_is_left_as_it_is(model, monkeypatch, lets):
    def refused(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    model.chmod(0o700)
    monkeypatch.setattr(os, "chown", refused)
    lets(model)
    assert model.stat().st_mode & 0o777 == 0o700
    assert str(model) in users.barred([model])


# -- what that comes to for a worker


@pytest.mark.parametrize("level", [Sandbox.OFF, Sandbox.GUARD, Sandbox.BASIC])
def test_only_a_strict_sandbox_has_a_user_of_its_own(level, model):
    assert own_user(Confinement(sandbox=level), [model], Runtime(), {}) == (False, [])


@as_root
def test_a_worker_whose_files_are_private_keeps_the_servers_user_unless_the_operator_asked(model):
    model.chmod(0o700)
    runtime = Runtime(interpreter="/bin/true")
    granted, (told,) = own_user(Confinement(sandbox=Sandbox.STRICT), [model], runtime, {})
    assert not granted
    assert told.startswith(f"a user of its own: '{model}'")
    imposed = Confinement(sandbox=Sandbox.STRICT, imposed=True)
    with pytest.raises(OSError, match="a strict sandbox that the server imposes"):
        own_user(imposed, [model], runtime, {})


@as_root
def test_a_worker_that_can_read_its_files_has_a_user_of_its_own(model):
    runtime = Runtime(interpreter="/bin/true")
    granted, told = own_user(Confinement(sandbox=Sandbox.STRICT), [model], runtime, {})
    # These sources may be for root alone.
    assert granted or re.match(r"a user of its own: '.*' \(mode 0.00, owner 0\)", told[0])


# -- a Python that the model has brought


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("level", [Sandbox.GUARD, Sandbox.STRICT])
def test_a_models_own_python_runs_no_line_outside_its_sandbox(tmp_path, level):
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "environment" / "lib").glob("python*/site-packages")
    status = "[line.split()[1] for line in open('/proc/self/status') if line[:7] in ('Seccomp', 'NoNewPr')]"
    (packages / "early.pth").write_text(f"import sys; print({status})\n")
    (tmp_path / "main.py").write_text("import os, sys; print(sys.prefix, sys.argv[1:], os.environ['NAME'])\n")
    python = tmp_path / "environment" / "bin" / "python"
    confined = confining_environ(
        Confinement(sandbox=level), [tmp_path], runtime=Runtime(interpreter=str(python))
    )
    line, environ = command(tmp_path / "main.py", ["x", "y"], {**confined, "NAME": "value"}, str(python))
    told = subprocess.run(line, env=environ, capture_output=True, text=True, check=True).stdout.splitlines()
    # No new privileges, a filter, and one of it: before the first line of the environment's own.
    assert set(told[:-1]) == {"['1', '2', '1']"}
    assert told[-1] == f"{tmp_path / 'environment'} ['x', 'y'] value"


@pytest.mark.parametrize("environ", [{}, {VARIABLE: json.dumps({"sandbox": "off"})}])
def test_without_a_sandbox_a_models_python_is_started_as_it_is(tmp_path, environ):
    assert command(tmp_path, ["x"], environ, "/opt/python") == (["/opt/python", str(tmp_path), "x"], environ)


def test_the_servers_own_python_enters_by_itself(tmp_path):
    environ = {VARIABLE: json.dumps({"sandbox": "strict"})}
    assert command(tmp_path, [], environ, sys.executable) == ([sys.executable, str(tmp_path)], environ)
