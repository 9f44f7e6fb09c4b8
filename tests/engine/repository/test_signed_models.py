"""Signed models: what differs from what was signed is refused, and what was checked is what is loaded."""

import errno
import os
import shutil
import threading

import pytest

from engine.provenance.manifest import MANIFEST, SIGNATURE, write_manifest
from engine.repository.signed import FOLDER, Refused, SignedModels, digests_of, verify
from engine.repository.source import FetchCancelled
from tests.support.signing import listing, new_key, sign_model, trusted, write

KEY = new_key()
FILES: dict[str, str | bytes] = {
    "config.pbtxt": "max_batch_size: 8",
    "1/model.onnx": b"\0" * 3_000_000,
    "1/weights/a.bin": "a",
}


@pytest.fixture
def model(tmp_path):
    """A signed model in a repository, beside another folder."""
    (tmp_path / "repository" / "other").mkdir(parents=True)
    (tmp_path / "repository" / "other" / "secret").write_text("other")
    return sign_model(write(tmp_path / "repository" / "m", FILES), KEY)


@pytest.fixture
def signed(tmp_path):
    return SignedModels(trusted(tmp_path, KEY), tmp_path / "cache")


def refused(model, keys):
    with pytest.raises(Refused) as error:
        verify(model, keys)
    return f"{error.value} {error.value.hint}"


def test_a_signed_model_is_copied_as_it_was_checked(model, signed):
    (model / "1/weights/a.bin").chmod(0o755)
    admitted = signed.admit(model)
    copy = admitted.removal.path
    assert copy.name == "m"
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()) == sorted(FILES)
    assert (copy / "1/model.onnx").read_bytes() == FILES["1/model.onnx"]
    assert os.access(copy / "1/weights/a.bin", os.X_OK)
    assert not os.stat(copy / "config.pbtxt").st_mode & 0o222
    (model / "1/model.onnx").write_bytes(b"evil")
    assert (copy / "1/model.onnx").read_bytes() == FILES["1/model.onnx"]


def test_a_copy_goes_with_its_removal_and_leaves_nothing(model, signed, tmp_path):
    first, second = signed.admit(model), signed.admit(model)
    assert first.removal.path != second.removal.path
    first.removal.run()
    assert not first.removal.path.exists()
    assert second.removal.path.exists()
    second.removal.run()
    left = [path for path in (tmp_path / "cache" / FOLDER).rglob("*") if path.is_file()]
    assert left == []


def test_the_contents_of_a_copy_are_those_of_the_model(model, signed):
    before = signed.admit(model).contents
    sign_model(model, KEY)  # signing again changes nothing
    assert signed.admit(model).contents == before
    write(model, {"1/weights/a.bin": "b"})
    sign_model(model, KEY)
    assert signed.admit(model).contents.versions != before.versions


def test_a_copy_can_be_read_whatever_the_mask_of_the_server_is(model, signed):
    """A worker in a strict sandbox may have a user of its own."""
    before = os.umask(0o077)
    try:
        copy = signed.admit(model).removal.path
    finally:
        os.umask(before)
    for path in (copy.parent, copy, copy / "1", copy / "1/weights"):
        assert path.stat().st_mode & 0o755 == 0o755
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in copy.rglob("*") if path.is_file())


def test_what_an_earlier_server_left_is_removed(model, tmp_path):
    left = SignedModels(trusted(tmp_path, KEY), tmp_path / "cache").admit(model).removal.path
    held = left.parent.with_name(left.parent.name + ".lease")
    # As if its process had ended, which gives up the lock.
    held.unlink()
    held.touch()
    SignedModels(trusted(tmp_path, KEY), tmp_path / "cache").admit(model)
    assert not left.exists()


class TestRefused:
    """Attacks, each on a model that is signed but for it."""

    @pytest.fixture(autouse=True)
    def _keys(self, tmp_path):
        self.keys = trusted(tmp_path, KEY)
        self.tmp_path = tmp_path

    def test_nothing_is_wrong_with_the_model_itself(self, model):
        checked = verify(model, self.keys)
        assert (checked.key.key, checked.listed.keys()) == (KEY.public, FILES.keys())
        assert checked.nbytes == 3_000_000 + 18

    @pytest.mark.parametrize("name", [MANIFEST, SIGNATURE])
    def test_a_model_that_is_not_signed(self, model, name):
        (model / name).unlink()
        assert "it is not signed: there is no" in refused(model, self.keys)

    def test_a_changed_byte(self, model):
        with (model / "1/model.onnx").open("r+b") as file:
            file.seek(2_999_999)
            file.write(b"\1")
        assert "'1/model.onnx' does not match SHA256SUMS" in refused(model, self.keys)

    @pytest.mark.parametrize(
        "path", ["1/extra.py", "2/model.onnx", "config.pbtxt.bak", "1/SHA256SUMS", "1/_SUCCESS"]
    )
    def test_a_file_that_is_not_listed(self, model, path):
        write(model, {path: "x"})
        assert f"does not list '{path}'" in refused(model, self.keys)

    def test_a_file_that_is_missing(self, model):
        (model / "1/model.onnx").unlink()
        assert "lists what is not there: '1/model.onnx'" in refused(model, self.keys)

    def test_a_file_that_was_renamed(self, model):
        (model / "1/model.onnx").rename(model / "1/model2.onnx")
        assert "lists what is not there: '1/model.onnx'" in refused(model, self.keys)

    def test_two_files_that_were_swapped(self, model):
        write(model, {"1/weights/b.bin": "b"})
        sign_model(model, KEY)
        (model / "1/weights/a.bin").rename(model / "1/c")
        (model / "1/weights/b.bin").rename(model / "1/weights/a.bin")
        (model / "1/c").rename(model / "1/weights/b.bin")
        assert "does not match SHA256SUMS" in refused(model, self.keys)

    def test_a_folder_that_holds_no_file(self, model):
        (model / "2").mkdir()
        assert "the folder '2' holds no file" in refused(model, self.keys)

    def test_a_pipe(self, model):
        os.mkfifo(model / "1/pipe")
        assert "'1/pipe' in it: neither a file nor a folder" in refused(model, self.keys)

    def test_a_link_out_of_the_repository(self, model):
        outside = self.tmp_path / "outside"
        outside.write_bytes(b"\0" * 3_000_000)
        (model / "1/model.onnx").unlink()
        (model / "1/model.onnx").symlink_to(outside)
        assert "is a link out of" in refused(model, self.keys)

    def test_a_link_to_another_model_even_to_the_same_bytes(self, model):
        other = model.parent / "other" / "model.onnx"
        (model / "1/model.onnx").rename(other)
        (model / "1/model.onnx").symlink_to("../../other/model.onnx")
        assert "'1/model.onnx' is a link out of the model's folder" in refused(model, self.keys)

    def test_a_folder_that_is_a_link_to_another_model(self, model):
        shutil.move(model / "1/weights", model.parent / "other" / "weights")
        (model / "1/weights").symlink_to("../../other/weights")
        assert "'1/weights/a.bin' is a link out of the model's folder" in refused(model, self.keys)

    @pytest.mark.parametrize("name", [MANIFEST, SIGNATURE])
    def test_a_manifest_or_signature_that_is_a_link_to_another_models(self, model, name):
        shutil.move(model / name, model.parent / "other" / name)
        (model / name).symlink_to(f"../other/{name}")
        assert f"{name} is a link out of the model's folder" in refused(model, self.keys)

    def test_the_signed_manifest_of_another_model(self, model):
        copy = shutil.copytree(model, model.parent / "n")
        assert "signed as 'm', and this is the model 'n'" in refused(copy, self.keys)

    def test_a_signature_by_a_key_that_is_not_trusted(self, model):
        sign_model(model, new_key("unknown"))
        assert "which is none of the trusted ones" in refused(model, self.keys)

    def test_a_signature_by_a_revoked_key(self, model):
        trusted(self.tmp_path, KEY, new_key("second"), revoked=KEY.public.name)
        assert "revokes" in refused(model, self.keys)

    def test_keys_that_can_not_be_read(self, model):
        (self.tmp_path / "trusted.keys").unlink()
        assert "the trusted keys" in refused(model, self.keys)

    @pytest.mark.parametrize("path", ["../other/secret", "/etc/hostname", "1/../../other/secret"])
    def test_a_signed_manifest_that_lists_what_is_outside(self, model, path):
        sign_model(model, KEY, manifest=listing(model) + f"{'0' * 64}  {path}\n".encode())
        assert "is no plain path inside the model's folder" in refused(model, self.keys)

    def test_a_manifest_that_is_too_large_is_not_read(self, model):
        os.truncate(model / MANIFEST, (16 << 20) + 1)
        assert "larger than" in refused(model, self.keys)

    def test_a_model_that_is_not_there(self, model):
        assert "there is no folder" in refused(model.parent / "none", self.keys)

    def test_a_model_that_is_a_link_out_of_the_repository(self, model):
        shutil.move(model, self.tmp_path / "m")
        model.symlink_to(self.tmp_path / "m")
        assert "link out of the model repository" in refused(model, self.keys)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_can_not_be_read(self, model):
        (model / "1/model.onnx").chmod(0)
        assert "can't be read" in refused(model, self.keys)


class TestNotRefused:
    """What is let through, and does not reach what is loaded."""

    def test_links_within_the_folder_become_files(self, model, signed):
        (model / "1/weights/a.bin").rename(model / "a")
        (model / "1/weights/a.bin").symlink_to("../../a")
        (model / "1/more").symlink_to("weights")
        sign_model(model, KEY, manifest=write_manifest(digests_of(model)))
        copy = signed.admit(model).removal.path
        assert (copy / "1/weights/a.bin").read_text() == (copy / "1/more/a.bin").read_text() == "a"
        assert not (copy / "1/weights/a.bin").is_symlink()
        assert not (copy / "1/more").is_symlink()

    def test_a_hard_link_is_a_file(self, model, signed):
        os.link(model / "1/weights/a.bin", model.parent / "other" / "a")
        copy = signed.admit(model).removal.path
        (model.parent / "other" / "a").write_text("evil")
        assert (copy / "1/weights/a.bin").read_text() == "a"

    def test_a_marker_is_no_part_of_the_model(self, model, signed):
        write(model, {"_SUCCESS": "import os"})
        assert not (signed.admit(model).removal.path / "_SUCCESS").exists()


class Changing:
    """What a caller asks with each piece that is read; it changes a file at the first of them."""

    def __init__(self, change):
        self.change = change
        self.lock = threading.Lock()

    def __call__(self):
        with self.lock:
            change, self.change = self.change, lambda: None
            change()
        return False


def test_a_file_that_changes_while_it_is_read_fails_the_load(model, signed):
    """It is found by its times, even where the bytes that were read were the right ones."""

    def change():
        with (model / "1/model.onnx").open("r+b") as file:
            file.seek(2_999_999)
            file.write(b"\1")

    with pytest.raises(Refused, match=r"changed while it was read|does not match"):
        signed.admit(model, cancelled=Changing(change))


def test_a_file_that_is_replaced_before_it_is_read_fails_the_load(model, signed):
    def change():
        for path in ("config.pbtxt", "1/model.onnx", "1/weights/a.bin"):
            (model / "new").write_bytes((model / path).read_bytes())
            (model / "new").replace(model / path)

    with pytest.raises(Refused, match="changed while it was read"):
        verify(model, signed.keys, cancelled=Changing(change))


def test_a_load_that_is_given_up_leaves_no_copy(model, signed, tmp_path):
    with pytest.raises(FetchCancelled):
        signed.admit(model, cancelled=lambda: True)
    assert list((tmp_path / "cache" / FOLDER / "models").iterdir()) == []
    assert list((tmp_path / "cache" / FOLDER / "staging").iterdir()) == []


def test_a_folder_for_copies_that_others_can_write_to_is_refused(model, tmp_path):
    (tmp_path / "cache" / FOLDER).mkdir(parents=True)
    (tmp_path / "cache" / FOLDER).chmod(0o777)
    with pytest.raises(Refused, match="can be written by others") as error:
        SignedModels(trusted(tmp_path, KEY), tmp_path / "cache").admit(model)
    assert "--model-cache-directory" in error.value.hint


def test_a_repository_that_does_not_answer_says_nothing_about_the_model(tmp_path):
    with pytest.raises(OSError, match="No such file") as error:
        verify(tmp_path / "nowhere" / "m", trusted(tmp_path, KEY))
    assert error.value.errno == errno.ENOENT


def test_only_a_model_with_files_can_be_listed(tmp_path):
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(Refused, match="there is no file in it"):
        digests_of(tmp_path / "m")
    (tmp_path / "m" / "config.pbtxt").touch()
    with pytest.raises(Refused, match="holds no file") as error:
        digests_of(tmp_path / "m")
    assert "1/.keep" in error.value.hint
