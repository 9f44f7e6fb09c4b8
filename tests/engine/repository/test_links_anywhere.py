"""Links are followed wherever they lead: what is there of a model, and what would never end."""

import hashlib
import os
import time

import pytest

from actors.catalog.settling import Complete, Incomplete, Unknown
from engine.models.links import Links
from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.manifest import verify_manifest
from engine.repository.source import FetchFailed


class Model:
    """The model `m`, as ModelMesh's adapter for Triton lays it out: its version lies in another folder."""

    def __init__(self, directory):
        self.repository = directory / "models/_triton_models"
        self.path = self.repository / "m"
        self.path.mkdir(parents=True)
        self.target = directory / "models/m/1"
        self.target.mkdir(parents=True)
        (self.target / "model.onnx").write_text("one")
        (self.path / "config.pbtxt").write_text("max_batch_size: 1")
        (self.path / "1").symlink_to(self.target)
        self.source = self.source_of(Links.ANYWHERE)

    def source_of(self, links):
        digests = Digests(wall_ns=lambda: time.time_ns() + 10**12)  # nothing is fresh
        return LocalSource(self.repository, digests=digests, links=links)

    def fetch(self):
        return self.source.fetch("m", progress=lambda _: None, cancelled=lambda: False)

    def messages(self):
        return [problem.message for problem in self.source.problems("m")]

    def list(self, directory, *names):
        """Write a manifest as `sha256sum` does."""
        digests = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in names}
        lines = [f"{digest}  {name}\n" for name, digest in digests.items()]
        (directory / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture
def model(tmp_path):
    return Model(tmp_path)


class TestWhatIsThere:
    """Links lead to files as if these lay in the repository."""

    def test_a_version_elsewhere_is_one_of_the_model(self, model):
        fetched = model.fetch()
        assert fetched.path == model.path
        assert set(fetched.contents.versions) == {1}

    def test_its_content_is_that_of_a_copy(self, model):
        linked = model.fetch().contents
        (model.path / "1").unlink()
        model.target.rename(model.path / "1")
        assert model.fetch().contents == linked

    def test_a_model_elsewhere_is_one_of_the_repository(self, model, tmp_path):
        model.path.rename(tmp_path / "m")
        model.path.symlink_to(tmp_path / "m")
        assert model.source.names() == ("m",)
        assert set(model.fetch().contents.versions) == {1}

    def test_files_elsewhere_are_the_model_s(self, model, tmp_path):
        (tmp_path / "labels").write_text("cat\n")
        before = model.fetch().contents
        (model.path / "labels.txt").symlink_to(tmp_path / "labels")
        assert model.fetch().contents.shared != before.shared

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: (model.target / "model.onnx").write_text("two"),
            lambda model: (model.target / "weights").write_text("more"),
            lambda model: (model.target / "model.onnx").unlink(),
            lambda model: model.target.rename(model.target.with_name("2")),
        ],
        ids=["written", "added", "removed", "moved away"],
    )
    def test_what_changes_elsewhere_is_seen(self, model, change):
        before = model.source.look("m")
        assert model.source.look("m") == before
        change(model)
        assert model.source.look("m") != before

    def test_a_link_that_leads_elsewhere_than_before_is_seen(self, model):
        before = model.source.stamp("m")
        other = model.target.with_name("2")
        other.mkdir()
        (other / "model.onnx").write_text("two")
        (model.path / "1").unlink()
        (model.path / "1").symlink_to(other)
        assert model.source.stamp("m") != before

    def test_inside_the_same_is_refused(self, model):
        source = model.source_of(Links.INSIDE)
        with pytest.raises(FetchFailed, match=r"^'1' is a link out of the model repository$"):
            source.fetch("m", progress=lambda _: None, cancelled=lambda: False)

    def test_a_link_to_nothing_is_no_problem_until_something_needs_it(self, model, tmp_path):
        (model.path / "labels.txt").symlink_to(tmp_path / "labels")
        before = model.source.stamp("m")
        assert model.messages() == []
        (tmp_path / "labels").write_text("cat\n")
        assert model.source.stamp("m") != before


class TestWhatWouldNotEnd:
    """A link may lead to a tree without an end. It is told, and not walked over."""

    @pytest.mark.parametrize("above", ["/", "{root}", "{root}/models", "{root}/models/_triton_models"])
    @pytest.mark.parametrize("name", ["all", "1/all"])
    def test_a_link_to_what_holds_the_repository_is_refused(self, model, tmp_path, name, above):
        (model.path / name).symlink_to(above.format(root=tmp_path))
        assert model.messages() == [f"'{name}' is a link to a directory that the repository lies in"]
        with pytest.raises(FetchFailed, match="that the repository lies in"):
            model.fetch()

    def test_a_model_may_not_be_such_a_link_either(self, model):
        (model.repository / "n").symlink_to("/")
        (problem,) = model.source.problems("n")
        assert problem.message == "'n' is a link to a directory that the repository lies in"

    @pytest.mark.parametrize("target", ["/proc", "/proc/kmsg", "/proc/self/task", "/sys/kernel"])
    def test_what_the_kernel_makes_up_is_refused(self, model, target):
        if not os.path.exists(target):
            pytest.skip(f"this machine has no {target}")
        (model.path / "made-up").symlink_to(target)
        assert model.messages() == ["'made-up' is a link to what the kernel makes up, and no file of a model"]

    def test_loops_end(self, model):
        (model.path / "circle").symlink_to("circle")
        (model.target / "up").symlink_to("..")
        (model.target.parent / "back").symlink_to(model.path)
        assert model.messages() == []
        assert set(model.fetch().contents.versions) == {1}

    def test_mending_it_is_seen(self, model):
        (model.path / "all").symlink_to("/")
        before = model.source.stamp("m")
        (model.path / "all").unlink()
        assert model.source.stamp("m") != before
        assert model.messages() == []


class TestManifests:
    """What a manifest lists lies in the repository, or where the manifest lies."""

    def verify(self, model):
        found = verify_manifest(model.path, links=Links.ANYWHERE)
        return [problem.message for problem in found]

    def test_one_beside_what_it_lists_counts_wherever_it_lies(self, model):
        model.list(model.target, "model.onnx")
        assert self.verify(model) == []
        assert model.source.look("m").completeness == Unknown()  # it says nothing of config.pbtxt
        (model.target / "model.onnx").write_text("two")
        assert "'1/model.onnx' does not match 1/SHA256SUMS" in self.verify(model)[0]

    def test_one_of_the_model_does_not_vouch_for_what_lies_elsewhere(self, model):
        model.list(model.path, "config.pbtxt", "1/model.onnx")
        said = "'1/model.onnx' is listed in SHA256SUMS and is a link out of the model repository"
        assert self.verify(model) == [said]
        assert model.source.look("m").completeness == Incomplete((said,))

    def test_links_within_the_folder_elsewhere_do_not_lead_out_of_it(self, model):
        (model.target / "blobs").mkdir()
        (model.target / "model.onnx").rename(model.target / "blobs/a")
        (model.target / "model.onnx").symlink_to("blobs/a")
        model.list(model.target, "model.onnx")
        assert self.verify(model) == []

    def test_links_out_of_the_folder_elsewhere_do(self, model, tmp_path):
        (model.target / "model.onnx").rename(tmp_path / "a")
        (model.target / "model.onnx").symlink_to(tmp_path / "a")
        model.list(model.target, "model.onnx")
        said = "'1/model.onnx' is listed in 1/SHA256SUMS and is a link out of the model repository"
        assert self.verify(model) == [said]

    def test_a_manifest_that_is_a_link_out_is_none(self, model, tmp_path):
        model.list(model.target, "model.onnx")
        (model.target / "SHA256SUMS").rename(tmp_path / "sums")
        (model.target / "SHA256SUMS").symlink_to(tmp_path / "sums")
        assert self.verify(model) == ["'1/SHA256SUMS' is a link out of the model repository"]

    def test_files_that_none_lists_may_lie_anywhere(self, model):
        model.list(model.path, "config.pbtxt")
        assert self.verify(model) == []
        assert model.source.look("m").completeness == Unknown()

    def test_one_of_a_whole_model_makes_it_complete(self, model):
        model.list(model.target, "model.onnx")
        model.list(model.path, "config.pbtxt")
        assert model.source.look("m").completeness == Complete()
