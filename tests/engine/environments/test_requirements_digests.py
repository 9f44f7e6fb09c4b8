"""When two requirements files ask for the same environment, and when they don't."""

import os

import pytest

from engine.environments.layout import EnvironmentFailed
from engine.environments.requirements import digest, find
from tests.engine.environments.sources import make_wheel


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "models" / "m"
    (directory / "1").mkdir(parents=True)
    return directory


@pytest.fixture
def digest_of(model):
    def run(text, name="requirements.txt"):
        path = model / name
        path.write_text(text)
        return digest(path, root=model.parent)

    return run


def test_comments_blank_lines_and_line_ends_do_not_count(digest_of):
    plain = digest_of("one==1\ntwo==2\n")
    assert digest_of("# why\n\n  one==1  # this\r\ntwo=\\\n=2") == plain
    assert digest_of("one==1\ntwo==3\n") != plain
    assert digest_of("two==2\none==1\n") != plain


@pytest.mark.parametrize("form", ["-r {}", "-r{}", "--requirement={}", "-c {}", "--constraint {}"])
def test_files_that_it_includes_count_with_their_content(digest_of, model, form):
    (model / "base.txt").write_text("one==1")
    before = digest_of(form.format("base.txt"))
    assert digest_of(form.format("base.txt")) == before
    (model / "base.txt").write_text("one==2")
    assert digest_of(form.format("base.txt")) != before


def test_files_that_include_each_other_come_to_an_end(digest_of, model):
    (model / "other.txt").write_text("-r requirements.txt\none==1")
    assert digest_of("-r other.txt")


@pytest.mark.parametrize("form", ["./wheels/{}", "tiny @ file:wheels/{}", "wheels/{} ; python_version > '3'"])
def test_packages_that_lie_beside_it_count_with_their_content(digest_of, model, form):
    wheel = make_wheel(model / "wheels", "tiny", "1.0")
    before = digest_of(form.format(wheel.name))
    make_wheel(model / "wheels", "tiny", "1.0", source="changed = True")
    assert digest_of(form.format(wheel.name)) != before


@pytest.mark.parametrize(
    "form", ["./mine", "./mine[extra]", "packages/mine", "mine @ file:packages/mine", "."]
)
def test_a_package_in_a_directory_counts_with_all_its_files(digest_of, model, form):
    files = [model / directory / "deep" / "mine.py" for directory in ("mine", "packages/mine")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("")
    before = digest_of(form)
    for file in files:
        file.write_text("x = 1")
    assert digest_of(form) != before


def test_what_a_build_leaves_in_a_packages_directory_does_not_count(digest_of, model):
    (model / "mine").mkdir()
    before = digest_of("./mine")
    for name in ("build/lib", "mine.egg-info", "__pycache__"):
        (model / "mine" / name).mkdir(parents=True)
        (model / "mine" / name / "left").write_text("x")
    assert digest_of("./mine") == before


def test_a_pipe_is_not_waited_for(digest_of, model):
    (model / "mine").mkdir()
    os.mkfifo(model / "mine" / "pipe")
    os.mkfifo(model / "more.txt")
    assert digest_of("./mine")
    with pytest.raises(EnvironmentFailed, match=r"more\.txt' is no file"):
        digest_of("-r more.txt")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-e ./mine", "asks for an editable install: '-e ./mine'"),
        ("--editable=./mine", "asks for an editable install"),
        ("-r https://example.org/r.txt", "includes 'https://example.org/r.txt', which may change"),
        ("-r ../../outside.txt", "includes '../../outside.txt', which is outside the model repository"),
        ("-c /etc/hostname", "which is outside the model repository"),
        ("-r one.txt -c two.txt", "one.txt -c two.txt' can't be read: No such file"),
        ("-r absent.txt", "absent.txt' can't be read: No such file"),
    ],
)
def test_what_can_not_be_kept_is_refused(digest_of, text, complaint):
    with pytest.raises(EnvironmentFailed) as failed:
        digest_of(text)
    assert complaint in str(failed.value)


def test_a_file_that_is_no_text_is_told_of(model):
    (model / "requirements.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(EnvironmentFailed, match="is no UTF-8 text"):
        digest(model / "requirements.txt", root=model.parent)


def test_a_versions_own_file_goes_before_the_models(model):
    assert find(model / "1", model) is None
    (model / "requirements.txt").write_text("one")
    assert find(model / "1", model) == model / "requirements.txt"
    (model / "1" / "requirements.txt").write_text("two")
    assert find(model / "1", model) == model / "1" / "requirements.txt"
