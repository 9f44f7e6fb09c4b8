"""A balancer's file that follows the fleet: where it sends for a model, and a command that may fail."""

import pytest

from engine.fleet.picture import Lane, Look, Picture
from engine.fleet.policy.claims import Register
from engine.fleet.policy.values import Release, Seen, Served
from engine.fleet.ports import Member
from engine.fleet.proxies.homes import Homes
from engine.fleet.proxies.keeping import Kept

RELEASE = Release((1,))


def replica(name, *models, ready=True, held=False):
    served = {model: Served(ready=RELEASE) for model in models}
    return Look(seen=Seen(name=name, ready=ready, withdrawn=held, models=served), register=Register())


def picture(*looks, placed, silent=(), drained=()):
    """Return what is seen of `looks` and of replicas that do not answer; models are placed by name."""
    names = [*(look.seen.name for look in looks), *silent]
    return Picture(
        members=[Member(name=name, url=f"http://{name}:8000") for name in names],
        looks={look.seen.name: look for look in looks},
        lanes=[
            Lane(model=model, wanted=RELEASE, good=RELEASE, rolling=Release(), placed=there)
            for model, there in placed.items()
        ],
        drained=dict.fromkeys(drained, False),
    )


@pytest.mark.parametrize(
    ("seen", "homes"),
    [
        # A row: what is seen of a model `m` that is placed on some of a, b and c, and where it is asked for.
        (picture(replica("a", "m"), replica("b", "m"), placed={"m": ["a", "b"]}), None),
        (picture(replica("a", "m"), replica("b"), placed={"m": ["a"]}), {"m": ["a"]}),
        # It moves: where it is, until it is where it should be.
        (picture(replica("a", "m"), replica("b"), placed={"m": ["b"]}), {"m": ["a"]}),
        (picture(replica("a", "m"), replica("b", "m"), placed={"m": ["b"]}), {"m": ["b"]}),
        (picture(replica("a", "m"), replica("b"), replica("c"), placed={"m": ["a", "b"]}), {"m": ["a"]}),
        # It is nowhere yet.
        (picture(replica("a"), replica("b"), placed={"m": ["b"]}), {"m": ["b"]}),
        # A replica that starts, or that is drained, is not ready, and its routes stay.
        (picture(replica("a", "m"), replica("b", held=True), placed={"m": ["a", "b"]}), None),
        (picture(replica("a", "m"), replica("b", ready=False), placed={"m": ["a", "b"]}), None),
        (picture(replica("a", "m"), replica("b", "m", held=True), placed={"m": ["a"]}), None),
        (picture(replica("a", "m"), replica("b", "m"), placed={"m": ["a"]}, drained=["b"]), None),
        # A replica that never answered may have it.
        (picture(replica("a", "m"), replica("b"), placed={"m": ["a"]}, silent=["c"]), {"m": ["a", "c"]}),
    ],
)
def test_where_a_model_is_asked_for(seen, homes):
    assert Homes().found(seen) == homes


def test_a_replica_that_falls_silent_keeps_what_it_had():
    homes = Homes()
    seen = picture(replica("a", "m"), replica("b", "n"), placed={"m": ["a"], "n": ["b"]})
    there = homes.found(seen)
    assert there == {"m": ["a"], "n": ["b"]}
    silent = picture(replica("a", "m"), placed={"m": ["a"], "n": []}, silent=["b"])
    assert homes.found(silent) == there
    assert homes.unknown(silent) == []
    gone = picture(replica("a", "m"), placed={"m": ["a"]})
    assert homes.found(gone) is None
    assert homes.unknown(picture(placed={}, silent=["b"])) == ["b"]


@pytest.mark.system
async def test_the_command_runs_when_the_file_has_changed_and_again_when_it_failed(tmp_path):
    file, marks = tmp_path / "haproxy.cfg", tmp_path / "marks"
    said: list[str] = []
    command = (
        f"cat {file} >> {marks}; test -e {tmp_path}/good || {{ echo a; echo 'no \x1b good' >&2; exit 3; }}"
    )
    kept = Kept(file, command, said.append, again=0)
    assert not await kept.take("one\n")
    assert said[0] == f"{file} is written"
    assert said[1].endswith(r"ended with status 3: no \x1b good; it is run again")
    (tmp_path / "good").touch()
    assert await kept.take("one\n")
    assert await kept.take("one\n")
    assert marks.read_text() == "one\none\n"
    assert await kept.take("two\n")
    file.write_text("edited by hand\n")
    assert await kept.take("two\n")
    assert marks.read_text() == "one\none\ntwo\ntwo\n"
    assert await Kept(file, "false", said.append).take("two\n")  # it is as it should be already
    later = Kept(file, "false", said.append)
    assert not await later.take("three\n")
    count = len(said)
    assert not await later.take("three\n")  # it is not run again at once
    assert len(said) == count
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


async def test_what_can_not_be_written_is_said_once(tmp_path):
    said: list[str] = []
    kept = Kept(tmp_path / "none" / "haproxy.cfg", "", said.append)
    assert not await kept.take("one\n")
    assert not await kept.take("one\n")
    assert said == [f"{tmp_path}/none/haproxy.cfg can't be written: No such file or directory"]
    (tmp_path / "none").mkdir()
    assert await kept.take("one\n")


@pytest.mark.system
async def test_a_command_without_an_end_is_killed(tmp_path, autojump_clock):
    said: list[str] = []
    command = "trap '' TERM; sleep 3600; sleep 3600"
    kept = Kept(tmp_path / "envoy.json", command, said.append)
    assert not await kept.take("{}")
    assert said[-1] == f"'{command}' has not ended after 60 s, and was killed; it is run again"
