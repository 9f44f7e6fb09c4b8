"""From files to decisions: a model copied into a repository piece by piece, while it is polled."""

import hashlib
import os
import shutil
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.catalog.settling import Change, Changed, Left, Settling
from actors.values.specs import ModelKey
from engine.repository.fingerprint import Digests
from engine.repository.local import LocalSource
from engine.repository.observation import view
from engine.repository.source import FetchFailed

M = ModelKey("m")
FILES = {"config.pbtxt": b"max_batch_size: 1", "1/model.onnx": bytes(range(200)), "labels.txt": b"cat\ndog\n"}
MANIFEST = "".join(f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in FILES.items())
QUIET = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=20,
)


class Watched:
    """A repository with a policy that watches it; each poll fetches what the policy decides."""

    def __init__(self, directory):
        self.path = directory / "repository"
        self.path.mkdir()
        (self.path / "other" / "1").mkdir(parents=True)
        self.source = LocalSource(
            self.path, digests=Digests(wall_ns=lambda: time.time_ns() + 10**12), return_after=0.0
        )
        self.settling = Settling()
        self.polls = 0
        self.fetched = []
        for _ in range(3):
            self.poll()

    def poll(self):
        self.polls += 1
        decisions = self.settling.observe(
            {self.source.uri: view(self.source)}, now=float(self.polls)
        ).decisions
        for decision in decisions:
            if isinstance(decision, Changed) and decision.key == M:
                fetched = self.source.fetch("m", progress=print, cancelled=lambda: False)
                self.fetched.append({name: self.content(name) for name in FILES})
                assert fetched.contents is not None
        return list(decisions)

    def content(self, name):
        path = self.path / "m" / name
        return path.read_bytes() if path.exists() else None

    def append(self, name, piece):
        path = self.path / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(piece)

    def add(self):
        """Write all files of the model."""
        for name, text in FILES.items():
            self.append(name, text)

    def pieces(self, size):
        for name, text in FILES.items():
            for at in range(0, len(text), size):
                yield name, text[at : at + size]


@pytest.fixture
def watched(tmp_path):
    return Watched(tmp_path)


def test_a_copy_that_never_rests_for_two_polls_is_fetched_whole_and_once(watched):
    for name, piece in watched.pieces(2):
        watched.append(name, piece)
        assert watched.poll() == []
    assert watched.poll() == [Changed(M, Change.ADDED)]
    assert watched.fetched == [FILES]
    assert watched.poll() == []


@QUIET
@given(polls=st.lists(st.integers(0, 4), min_size=1, max_size=12), size=st.integers(10, 120))
def test_a_copy_with_a_manifest_may_rest_as_long_as_it_likes(tmp_path_factory, polls, size):
    watched = Watched(tmp_path_factory.mktemp("repository"))
    watched.append("SHA256SUMS", MANIFEST.encode())
    told = []
    for at, (name, piece) in enumerate(watched.pieces(size)):
        watched.append(name, piece)
        for _ in range(polls[at % len(polls)]):
            told += watched.poll()
    for _ in range(3):
        told += watched.poll()
    assert told == [Changed(M, Change.ADDED)]
    assert watched.fetched == [FILES]


def test_a_directory_that_is_moved_in_with_a_manifest_is_fetched_at_once(watched):
    watched.append("SHA256SUMS", MANIFEST.encode())
    watched.add()
    (watched.path / "m").rename(watched.path.parent / "m")
    for _ in range(3):
        watched.poll()
    (watched.path.parent / "m").rename(watched.path / "m")
    assert watched.poll() == [Changed(M, Change.ADDED)]
    assert watched.poll() == []


def test_a_touch_is_looked_at_and_is_the_same_model(watched):
    watched.add()
    watched.poll()
    watched.poll()
    before = watched.source.fetch("m", progress=print, cancelled=lambda: False).contents
    os.utime(watched.path / "m/1/model.onnx")
    assert [watched.poll() for _ in range(3)] == [[], [Changed(M, Change.MODIFIED)], []]
    assert watched.source.fetch("m", progress=print, cancelled=lambda: False).contents == before


def test_a_repository_that_is_away_for_a_while_asks_for_nothing(watched):
    watched.add()
    watched.poll()
    watched.poll()
    elsewhere = watched.path.rename(watched.path.parent / "elsewhere")
    assert [watched.poll() for _ in range(3)] == [[]] * 3
    watched.path.mkdir()
    assert [watched.poll() for _ in range(3)] == [[]] * 3
    watched.path.rmdir()
    elsewhere.rename(watched.path)
    assert [watched.poll() for _ in range(3)] == [[]] * 3
    shutil.rmtree(watched.path / "m")
    assert [watched.poll() for _ in range(3)] == [[], [Left(M)], []]


def test_a_link_out_is_looked_at_so_that_its_reason_is_known(watched):
    (watched.path / "m").symlink_to(watched.path.parent)
    assert watched.poll() == []
    with pytest.raises(FetchFailed, match="'m' is a link out of the model repository"):
        watched.poll()
