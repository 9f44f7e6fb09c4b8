"""What lies in a model repository (contract, repository.md sections 1 and 2)."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.values.errors import ErrorCode
from engine.models.layout import (
    DUPLICATE_REASON,
    VersionDirectory,
    candidate_names,
    scan,
    select_versions,
    version_directories,
)
from protocols.kserve.proto.model_config_pb2 import ModelVersionPolicy
from tests.support.examples import examples


@pytest.fixture
def repository(tmp_path):
    """Make a repository with these directories and return its path."""

    def make(*directories, name="repository"):
        root = tmp_path / name
        root.mkdir()
        for directory in directories:
            (root / directory).mkdir(parents=True)
        return root

    return make


def test_every_first_level_directory_is_a_model(repository):
    root = repository("b/1", "a", ".hidden")
    (root / "notes.txt").write_text("")
    found = scan([root])
    assert list(found.models) == [".hidden", "a", "b"]
    assert found.problems == ()
    assert (found.models["b"].path, found.models["b"].repository) == (root / "b", root)


def test_repositories_are_united(repository):
    one, two = repository("a", name="one"), repository("b", name="two")
    assert set(scan([one, two]).models) == {"a", "b"}


def test_a_name_in_two_repositories_is_served_from_neither(repository):
    one, two, three = (repository("a", name, name=name) for name in ("one", "two", "three"))
    found = scan([one, two, three])
    assert set(found.models) == {"one", "two", "three"}
    assert found.duplicates == ("a",)
    assert {problem.message for problem in found.problems} == {DUPLICATE_REASON}
    assert DUPLICATE_REASON == "model appears in two or more repositories"


def test_the_same_repository_twice_is_one(repository):
    root = repository("a")
    assert set(scan([root, root / "..", root / "a" / ".."]).models) >= {"a"}
    assert scan([root, root]).duplicates == ()


def test_a_repository_that_is_no_directory_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    found = scan([tmp_path / "file", tmp_path / "absent"])
    assert [problem.message for problem in found.problems] == ["repository path is not a valid directory"] * 2
    assert found.problems[0].code is ErrorCode.INVALID_ARG
    assert found.models == {}


def test_a_model_that_is_a_link_out_of_its_repository_is_refused(repository, tmp_path):
    root = repository("a")
    (tmp_path / "elsewhere").mkdir()
    (root / "b").symlink_to(tmp_path / "elsewhere")
    found = scan([root])
    assert set(found.models) == {"a"}
    assert [problem.message for problem in found.problems] == ["'b' is a link out of the model repository"]


def test_a_link_to_the_repository_itself_is_refused(repository):
    root = repository("a")
    (root / "loop").symlink_to(root)
    (root / "circle").symlink_to("circle")
    assert set(scan([root]).models) == {"a"}


def test_a_link_inside_the_repository_is_followed(repository):
    root = repository("a/1")
    (root / "b").symlink_to("a")
    assert set(scan([root]).models) == {"a", "b"}


def test_a_name_that_is_not_utf8_is_told(repository):
    root = repository("a")
    os.mkdir(os.fsencode(root) + b"/\xff")
    found = scan([root])
    assert set(found.models) == {"a"}
    assert [str(problem) for problem in found.problems] == [
        f"{root}: error: directory name '\\xff' is not UTF-8"
    ]


def test_candidates_are_the_directories_of_a_listing(repository, tmp_path):
    root = repository("b", "a")
    (root / "file").write_text("")
    (root / "link").symlink_to(tmp_path)
    (root / "circle").symlink_to("circle")
    os.mkdir(os.fsencode(root) + b"/\xff")
    assert candidate_names(root) == ("a", "b", "link")
    descriptor = os.open(root, os.O_RDONLY)
    try:
        assert candidate_names(descriptor) == ("a", "b", "link")
    finally:
        os.close(descriptor)


def test_a_linked_repository_is_followed(repository, tmp_path):
    (tmp_path / "link").symlink_to(repository("a"))
    assert set(scan([tmp_path / "link"]).models) == {"a"}


class TestVersions:
    """Version directories and the version policy."""

    def test_versions_are_numbered_directories_in_numeric_order(self, repository):
        root = repository("m/10", "m/9", "m/1", "m/notes", "m/warmup", "m/initial_state", "m/configs")
        (root / "m/7").write_text("a file")
        found, problems = version_directories(root / "m")
        assert found == tuple(VersionDirectory(n, root / "m" / str(n)) for n in (1, 9, 10))
        assert problems == ()

    @pytest.mark.parametrize(
        ("names", "versions", "words"),
        [
            *((("3", name), {3: "3"}, f"'{name}'") for name in ("01", "0", "007abc", "9" * 40)),
            *(
                (("3", name), {3: "3"}, f"'{name}' is ignored: a version is a positive number")
                for name in ("-2", "+2")
            ),
            *(
                ((name,), {}, "it is too large, a version is at most 9223372036854775807")
                for name in ("9223372036854775808", "9" * 200)
            ),
            (("1abc", "abc2"), {1: "1abc"}, ""),  # it counts by the digits that it begins with
            (
                ("1abc", "1"),  # the plain number goes first
                {1: "1"},
                "version directory '1abc' is ignored: there is a version 1 already",
            ),
        ],
    )
    def test_a_name_that_is_no_plain_number_is_ignored_with_a_warning(
        self, repository, names, versions, words
    ):
        model = repository(*(f"m/{name}" for name in names)) / "m"
        found, (warning,) = version_directories(model)
        assert found == tuple(VersionDirectory(number, model / name) for number, name in versions.items())
        assert words in warning.message
        assert not warning.is_error

    def test_a_version_that_is_a_link_out_of_the_repository_is_refused(self, repository, tmp_path):
        root = repository("m/1")
        (tmp_path / "elsewhere").mkdir()
        (root / "m/2").symlink_to(tmp_path / "elsewhere")
        found, (problem,) = version_directories(root / "m")
        assert [directory.number for directory in found] == [1]
        assert problem.is_error

    def test_a_version_that_is_a_link_is_known_by_what_it_led_to(self, repository):
        root = repository("m/1", "m/store")
        (root / "m/2").symlink_to("store")
        found, problems = version_directories(root / "m")
        assert found == (VersionDirectory(1, root / "m/1"), VersionDirectory(2, root / "m/store"))
        assert problems == ()

    def test_a_directory_that_is_gone_has_no_versions(self, tmp_path):
        found, (problem,) = version_directories(tmp_path / "gone")
        assert found == ()
        assert problem.message == "model directory can't be listed: No such file or directory"

    @settings(
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        deadline=None,
        max_examples=examples(50),
    )
    @given(names=st.sets(st.text("0123456789a-+ ", min_size=1, max_size=5), max_size=6))
    def test_any_names_give_distinct_positive_versions(self, tmp_path_factory, names):
        model = tmp_path_factory.mktemp("repository") / "m"
        for name in names:
            (model / name).mkdir(parents=True)
        model.mkdir(exist_ok=True)
        numbers = [directory.number for directory in version_directories(model)[0]]
        assert numbers == sorted(set(numbers))
        assert all(number > 0 for number in numbers)


ALL = ModelVersionPolicy(all=ModelVersionPolicy.All())


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (ModelVersionPolicy(), (10,)),
        (ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=2)), (3, 10)),
        (ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=9)), (1, 3, 10)),
        (ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=0)), ()),
        (ALL, (1, 3, 10)),
        (ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=[10, 1, 7])), (1, 10)),
        (ModelVersionPolicy(specific=ModelVersionPolicy.Specific(versions=[7])), ()),
    ],
)
def test_a_policy_chooses_versions(policy, chosen):
    assert select_versions(policy, [10, 1, 3]) == chosen


@given(st.sets(st.integers(1, 50)), st.integers(1, 5))
def test_the_latest_are_the_highest(available, count):
    chosen = select_versions(
        ModelVersionPolicy(latest=ModelVersionPolicy.Latest(num_versions=count)), available
    )
    assert list(chosen) == sorted(available)[-count:]
    assert select_versions(ALL, available) == tuple(sorted(available))
