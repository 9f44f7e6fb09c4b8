"""`tritium sign`, `tritium verify`, and what `tritium check` says of signatures and of code."""

import json
import os
import shutil
import stat
import subprocess

import minisign
import pytest

from engine.__main__ import main
from engine.provenance.minisign import SecretKey
from engine.settings.settings import Settings, SettingsError
from tests.engine.cli.conftest import onnx_model
from tests.support.signing import new_key, write

FILES: dict[str, str | bytes] = {"config.pbtxt": 'backend: "onnxruntime"', "1/model.onnx": onnx_model(4)}
PYTHON: dict[str, str | bytes] = {
    "config.pbtxt": 'backend: "python" output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]',
    "1/model.py": "raise SystemExit",
}


@pytest.fixture
def run(capsys):
    """Run a command; returns (status, standard output, standard error)."""

    def ran(*words):
        status: object
        try:
            status = main([str(word) for word in words])
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return status, out, err

    return ran


@pytest.fixture
def key(tmp_path, run):
    """A secret key on disk, as the command makes it."""
    assert run("sign", "--new-key", tmp_path / "release.key")[0] == 0
    return tmp_path / "release.key"


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "models" / "m", FILES)


def public(key):
    return key.with_name(key.name + ".pub")


def test_a_new_key_is_for_the_signer_alone_and_its_public_half_for_minisign(key, run):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = SecretKey.read(key.read_text())
    assert minisign.PublicKey.from_file(public(key)).to_base64().decode() == secret.public.text
    assert minisign.SecretKey.from_file(key).get_public_key() == minisign.PublicKey.from_file(public(key))


@pytest.mark.parametrize("there", ["release.key", "release.key.pub"])
def test_no_key_is_overwritten(tmp_path, run, there):
    (tmp_path / there).write_text("mine")
    status, _, err = run("sign", "--new-key", tmp_path / "release.key")
    assert (status, (tmp_path / there).read_text()) == (1, "mine")
    assert "is there already, and no key is overwritten" in err


def test_a_model_is_signed_and_verified(model, key, run):
    status, out, err = run("sign", "--key", key, model)
    assert (status, err) == (0, "")
    name = SecretKey.read(key.read_text()).public.name
    assert out == f"m: 2 files signed with the key {name}\n"
    status, out, _ = run("verify", "--trusted-keys", public(key), model.parent)
    size = sum(path.stat().st_size for path in (model / "config.pbtxt", model / "1/model.onnx"))
    assert (status, out) == (0, f"m: signed with the key {name}, 2 files, {size} bytes\n")
    assert run("verify", "--trusted-keys", public(key), model)[0] == 0


@pytest.mark.system
def test_sha256sum_agrees(model, key, run):
    run("sign", "--key", key, model)
    subprocess.run(["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"], cwd=model, check=True)


def test_what_minisign_signs_of_a_manifest_is_verified(model, tmp_path, run):
    pair = minisign.KeyPair.generate()
    (tmp_path / "their.pub").write_bytes(bytes(pair.public_key))
    assert run("sign", "--manifest-only", model)[1] == "m: 2 files listed, not signed\n"
    assert not (model / "SHA256SUMS.sig").exists()
    signature = pair.secret_key.sign((model / "SHA256SUMS").read_bytes(), trusted_comment="model:m")
    (model / "SHA256SUMS.sig").write_bytes(bytes(signature))
    assert run("verify", "--trusted-keys", tmp_path / "their.pub", model)[0] == 0


def test_every_model_is_told_of_and_one_that_is_refused_decides_the_status(model, key, run, tmp_path):
    other = shutil.copytree(model, tmp_path / "models" / "other")
    run("sign", "--key", key, model, other)
    write(other, {"1/new.bin": "x"})
    status, out, _ = run("verify", "--trusted-keys", public(key), model.parent)
    assert status == 1
    first, second = out.splitlines()
    assert first.startswith("m: signed with the key")
    assert second == (
        "other: refused: SHA256SUMS does not list '1/new.bin'"
        " (remove what is not part of the model, or sign it anew)"
    )


def test_signing_again_covers_what_has_changed(model, key, run):
    run("sign", "--key", key, model)
    write(model, {"1/new.bin": "x"})
    run("sign", "--key", key, model)
    assert run("verify", "--trusted-keys", public(key), model)[0] == 0


def test_a_link_in_the_place_of_a_manifest_is_replaced_and_not_followed(model, key, run, tmp_path):
    outside = write(tmp_path, {"outside": "mine"}) / "outside"
    (model / "SHA256SUMS").symlink_to(outside)
    # A link out of the repository is no part of a model in any case.
    assert "is a link out of the model repository" in run("sign", "--key", key, model)[2]
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sign", "{models}", "--key", "{key}"], "is a repository: name the folders of its models"),
        (["sign", "{models}/none", "--key", "{key}"], "is no folder"),
        (["sign", "{empty}", "--key", "{key}"], "there is no file in it"),
        (["sign", "{hollow}", "--key", "{key}"], "holds no file, and a manifest lists files only"),
        (
            ["sign", "{models}/m", "--key", "{models}/none"],
            "can't be read: No such file or directory; `tritium sign --new-key",
        ),
        (["sign", "{models}/m", "--key", "{models}/m/1/model.onnx"], "is no secret key file"),
        (["sign", "{models}/m", "--key", "{models}/m/config.pbtxt"], "is no secret key file"),
        (["sign", "{models}/m", "--key", "{foreign}"], "is damaged: its public key"),
        (["sign", "--new-key", "{models}/none/key"], "can't be written: No such file"),
        (["verify", "--trusted-keys", "{models}/none", "{models}"], "can't be read: No such file"),
        (
            ["verify", "--trusted-keys", "{models}/m/config.pbtxt", "{models}"],
            "config.pbtxt:1: expected one key",
        ),
        (["verify", "--trusted-keys", "{key}.pub", "{models}/none"], "is no folder: name a repository"),
        (["verify", "--trusted-keys", "{key}.pub", "{empty}"], "has no models"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_line(model, key, run, tmp_path, words, told):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "hollow", {"config.pbtxt": ""})
    (tmp_path / "hollow" / "1").mkdir()
    one, other = new_key(), new_key("other")
    (tmp_path / "foreign").write_text(SecretKey(one.key_id, one.seed, other.point).file("x"))
    places = {name: tmp_path / name for name in ("models", "empty", "hollow", "foreign")}
    status, out, err = run(*(word.format(key=key, **places) for word in words))
    assert (status, out) == (1, "")
    assert told in err
    assert err.count("\n") == 1
    assert not (model / "SHA256SUMS").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["sign"],
        ["sign", "m"],
        ["sign", "--key", "k"],
        ["sign", "--new-key", "k", "m"],
        ["sign", "--key", "k", "--new-key", "k", "m"],
        ["verify", "m"],
        ["verify", "--trusted-keys", "k"],
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(run, words):
    status, _, err = run(*words)
    assert status == 2
    assert "usage: tritium" in err


def test_a_key_that_others_can_read_earns_a_warning(model, key, run):
    key.chmod(0o644)
    status, _, err = run("sign", "--key", key, model)
    assert status == 0
    assert err == f"warning: {key} can be read or written by others; chmod 600 {key}\n"


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_the_help_has_examples(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert "examples:" in out
    assert max(map(len, out.splitlines())) <= 110


class TestCheck:
    """`tritium check` with the flags of a server."""

    def test_it_says_what_a_server_that_requires_signatures_would(self, model, key, run):
        flags = ("--require-signed", "--trusted-keys", public(key))
        status, out, _ = run("check", "--quiet", *flags, model.parent)
        assert status == 1
        assert (
            f"m: {model}: error: --require-signed refuses it: it is not signed: there is no SHA256SUMS" in out
        )
        run("sign", "--key", key, model)
        assert run("check", "--quiet", *flags, model.parent)[:2] == (0, "m: ok\n")
        (model / "config.pbtxt").write_text('backend: "onnxruntime" ')
        report = json.loads(run("check", "--json", *flags, model.parent)[1])
        assert "does not match SHA256SUMS" in str(report)

    def test_it_says_what_a_server_without_code_would_and_runs_none(self, tmp_path, run):
        write(tmp_path / "models" / "p", PYTHON)
        status, out, _ = run("check", "--no-code-models", tmp_path / "models")
        assert status == 1
        assert "backend 'python' may run code that a model brings; --no-code-models forbids" in out
        assert "'1/model.py' is Python code" in out

    def test_it_wants_the_keys_too(self, model, run):
        status, _, err = run("check", "--require-signed", model.parent)
        assert status == 1
        assert "--require-signed needs the keys that it trusts: --trusted-keys=FILE" in err


class TestFlags:
    """The flags of `tritium serve`."""

    def read(self, *flags, **environ):
        return Settings.from_argv(["--model-repository=m", *flags], environ)

    def test_nothing_is_required_or_forbidden_by_default(self):
        settings = self.read().provenance
        assert (settings.require_signed, settings.trusted_keys, settings.no_code) == (False, (), False)
        assert list(settings.options()) == []

    def test_they_are_told_at_the_start(self):
        settings = self.read("--require-signed", "--trusted-keys=a", "--trusted-keys=b", "--no-code-models")
        assert list(settings.provenance.options()) == [
            ("require_signed", "keys of a, b"),
            ("no_code_models", "1"),
        ]
        assert settings.provenance.options

    def test_variables_do_as_well(self):
        variables = {
            "TRITIUM_REQUIRE_SIGNED": "true",
            "TRITIUM_TRUSTED_KEYS": "a;b",
            "TRITIUM_NO_CODE_MODELS": "1",
        }
        settings = self.read(**variables).provenance
        assert (settings.require_signed, settings.trusted_keys, settings.no_code) == (True, ("a", "b"), True)

    @pytest.mark.parametrize(
        "flags", [("--require-signed",), ("--require-signed", "--trusted-keys="), ("--require-signed=true",)]
    )
    def test_what_would_be_open_by_mistake_is_refused(self, flags):
        with pytest.raises(SettingsError):
            self.read(*flags)

    def test_a_variable_that_is_no_switch_is_refused(self):
        with pytest.raises(SettingsError):
            self.read(TRITIUM_NO_CODE_MODELS="yes please")

    def test_keys_without_a_need_for_them_earn_a_warning(self):
        (warning,) = self.read("--trusted-keys=a").warnings
        assert warning == "--trusted-keys has no effect: only --require-signed asks for signatures"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_can_not_be_written_to_is_said(model, key, run):
    model.chmod(0o555)
    assert "can't be written to" in run("sign", "--key", key, model)[2]
