"""Where links of a model may lead, and where they do lead."""

import os

import pytest

from engine.models.links import Links, resolved, targets


@pytest.mark.parametrize("name", ["labels.txt", "deep/er/labels.txt", "deep/../labels.txt", "..labels", "."])
def test_a_name_within_is_followed_wherever_links_lead(name):
    assert Links.ANYWHERE.follow(name)
    assert not Links.INSIDE.follow(name)


@pytest.mark.parametrize("name", ["..", "../labels.txt", "deep/../../labels.txt", "/etc/labels.txt", "a\0b"])
def test_a_name_that_climbs_is_no_matter_of_links(name):
    assert not Links.ANYWHERE.follow(name)


def test_a_path_is_known_by_where_it_leads_if_that_can_be_said(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "circle").symlink_to("circle")
    assert resolved(tmp_path / "link") == tmp_path / "real"
    assert resolved(tmp_path / "circle") == tmp_path / "circle"
    assert resolved(tmp_path / "absent") == tmp_path / "absent"


class TestTargets:
    """What lies elsewhere and is the model's."""

    @pytest.fixture
    def model(self, tmp_path):
        model = tmp_path / "repository/m"
        (model / "1").mkdir(parents=True)
        (tmp_path / "elsewhere/deep").mkdir(parents=True)
        (tmp_path / "elsewhere/deep/file").write_text("x")
        return model

    def test_files_and_directories_are_found_through_links_to_links(self, model, tmp_path):
        (tmp_path / "further").write_text("x")
        (tmp_path / "elsewhere/on").symlink_to("../further")
        (model / "1/weights").symlink_to(tmp_path / "elsewhere")
        (model / "1/again").symlink_to(tmp_path / "elsewhere/deep")
        assert targets(model) == (tmp_path / "elsewhere", tmp_path / "further")

    def test_a_model_that_is_a_link_is_at_its_target(self, model, tmp_path):
        (tmp_path / "link").symlink_to(model)
        assert targets(tmp_path / "link") == (model,)

    def test_what_lies_in_the_model_is_not_elsewhere(self, model):
        (model / "1/file").write_text("x")
        (model / "2").symlink_to("1")
        assert targets(model) == ()

    def test_loops_and_links_to_nothing_end(self, model, tmp_path):
        (model / "1/circle").symlink_to("circle")
        (model / "1/nothing").symlink_to(tmp_path / "nothing")
        (model / "1/weights").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere/back").symlink_to(model)
        (tmp_path / "elsewhere/deep/up").symlink_to("..")
        assert targets(model) == (tmp_path / "elsewhere",)

    def test_a_model_that_is_gone_has_none(self, tmp_path):
        assert targets(tmp_path / "gone") == ()

    def test_pipes_are_not_opened(self, model, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (model / "1/pipe").symlink_to(tmp_path / "pipe")
        assert targets(model) == (tmp_path / "pipe",)
