"""Pictures of the documents: whole, readable in both themes, and with what a run has shown."""

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks.pictures import __main__ as command
from benchmarks.pictures import canary, crash, ink, kill, memory, request, scheduling, supervision
from benchmarks.pictures.load import Asked
from benchmarks.pictures.served import Execution
from benchmarks.subjects import CHECKOUT

PAGES = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
SVG = "{http://www.w3.org/2000/svg}"


def extents(root):
    """Yield (left, top, right, bottom, words) of each line of text, at its widest."""
    for each in root.iter(f"{SVG}text"):
        size = float(each.get("font-size"))
        wide = ink.measure(each.text, size, bold=each.get("font-weight") == "bold")
        left = float(each.get("x")) - {"middle": wide / 2, "end": wide}.get(each.get("text-anchor"), 0.0)
        bottom = float(each.get("y"))
        yield left, bottom - 0.72 * size, left + wide, bottom, each.text


def colours(root):
    return {each.get(kind) for each in root.iter() for kind in ("fill", "stroke")} - {None, "none"}


def check(picture):
    """Fail unless a picture is whole, small, of itself, and readable."""
    root = ET.fromstring(picture)
    assert len(picture) < 60_000
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert not re.search(r"<script|<image|href=|url\(|@import|@font-face|\son\w+=", picture)
    assert colours(root) <= ink.COLOURS, "a colour without a dark one"
    width, height = (float(each) for each in root.attrib["viewBox"].split()[2:])
    boxes = [*extents(root)]
    for place, (left, top, right, bottom, words) in enumerate(boxes):
        inside = left >= 0 and right <= width and top >= 0 and bottom <= height
        assert inside, f"{words!r} is out of the picture"
        for other in boxes[place + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, f"{words!r} is on {other[4]!r}"
    sizes = {float(each.attrib["font-size"]) for each in root.iter(f"{SVG}text")}
    assert min(sizes) >= ink.SMALL, "too small on a phone"
    return root


def words(root):
    return " ".join(each.text for each in root.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", sorted(command.PICTURES))
def test_a_picture_of_the_documents_can_be_read(name):
    check((command.FOLDER / f"{name}.svg").read_text(encoding="utf-8"))


def test_all_pictures_are_of_the_program_and_used():
    assert {each.stem for each in command.FOLDER.glob("*.svg")} == {*command.PICTURES}


def test_an_unknown_picture_is_refused_with_those_that_there_are(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pictures", "horse"])
    with pytest.raises(SystemExit):
        command.main()
    assert "no picture 'horse'" in capsys.readouterr().err


def test_a_paragraph_breaks_before_it_is_too_wide():
    lines = ink.broken("one two three " * 20, 200.0)
    assert len(lines) > 1
    assert all(ink.measure(each, ink.SMALL) <= 200.0 for each in lines)


def killing(*, status=200):
    requests = [Asked(number=n, begin=n / 50, end=n / 50 + 0.03, status=200) for n in range(100)]
    requests.append(Asked(number=100, begin=0.99, end=1.09, status=status, attempts=2))
    executions = [Execution(pid=7, begin=n / 50, end=n / 50 + 0.02, numbers=[n]) for n in range(45)]
    executions += [
        Execution(pid=7, begin=0.995, end=None, numbers=[100]),
        Execution(pid=8, begin=1.05, end=1.07, numbers=[100]),
    ]
    return kill.Run(requests=requests, executions=executions, killed=7, at=1.0)


def test_a_kill_that_costs_no_request_says_so():
    told = words(check(kill.drawn(killing())))
    assert "0 errors in 101 requests" in told
    assert "1 request of the killed worker" in told
    assert "the spare" in told


def test_a_request_that_fails_is_counted_and_shown():
    picture = kill.drawn(killing(status=503))
    assert "1 errors in 101 requests" in words(check(picture))
    assert "no errors" not in picture


def test_a_crash_shows_each_death_and_what_clients_got():
    requests = [
        Asked(number=1, begin=5.0, end=5.4, status=200, attempts=2),
        Asked(number=13, begin=5.0, end=5.3, status=422),
    ]
    executions = [
        Execution(pid=1, begin=5.01, end=None, numbers=[1, 13]),
        Execution(pid=2, begin=5.2, end=None, numbers=[13]),
        Execution(pid=3, begin=5.35, end=5.38, numbers=[1]),
    ]
    told = words(check(crash.drawn(crash.Run(requests=requests, executions=executions))))
    assert "After 2 deaths" in told
    assert "422" in told
    assert "The other 1 are answered" in told


def test_a_canary_tells_when_it_was_rolled_back_and_what_that_cost():
    requests = [
        Asked(number=n, begin=n / 20, end=n / 20 + 0.01, status=500 if 120 <= n < 125 else 200, version="2")
        for n in range(300)
    ]
    told = words(check(canary.drawn(canary.Run(requests=requests, start=0.0, rolled_back=6.25))))
    assert "0.2 s later: 5 errors in all" in told


def test_slots_and_batches_are_named_by_their_sequences():
    grid = [
        Execution(pid=1, begin=n / 10, end=n / 10 + 0.02, numbers=[101 + n, 0, 301 + n]) for n in range(20)
    ]
    single = [Execution(pid=2, begin=9.04, end=9.06, numbers=[1, 2])]
    came = [Asked(number=n, begin=9 + n / 100, end=9.1, status=200) for n in (1, 2)]
    run = scheduling.Run(direct=grid, oldest=grid, dynamic=single, requests=came)
    letters = words(check(scheduling.drawn(run))).split()
    assert letters.count("A") == letters.count("C") == 26
    assert "B" not in letters


def test_a_request_s_steps_are_the_medians_of_its_traces():
    names = dict.fromkeys(name for _, begin, end, _ in request.STEPS for name in (begin, end))
    traces = [{name: place * 10_000 * (n + 1) for place, name in enumerate(names)} for n in range(3)]
    told = words(check(request.drawn(request.Run(traces))))
    assert told.count("20 µs") >= 9


def test_a_tree_has_each_node_once_and_processes_beside_their_instances():
    def node(name, *children, **info):
        kind = "supervisor" if children else "worker"
        return {"name": name, "kind": kind, "children": children, "info": info}

    version = node("m/1", node("instances", node("0", pid=7), node("1", pid=8)), node("scheduler"))
    root = node("root", node("telemetry", node("traces")), node("models", version))
    told = words(check(supervision.drawn(root))).split()
    assert told.count("scheduler") == 1
    assert told.count("instance") == told.count("process") - 1 == 2


def test_memory_is_split_by_what_a_spare_has():
    smaps = """\
7f00-7f10 r--p 00000000 00:01 5 /usr/lib/libpython.so
Rss:                2048 kB
7f20-7f30 rw-s 00000000 00:01 6 /memfd:segment (deleted)
Rss:                1024 kB
Private_Dirty:       512 kB
"""
    assert memory.resident(smaps) == memory.Resident(own=2 * 2**20, shared=2**20)
    spares = {name: memory.Resident(own=size * 2**20, shared=0) for name, size in SIZES.items()}
    workers = {name: memory.Resident(own=(size + 60) * 2**20, shared=2**20) for name, size in SIZES.items()}
    run = memory.Run(workers=workers, spares=spares)
    assert run.split("torch") == [30, 170, 60, 1]
    assert "261 MiB" in words(check(memory.drawn(run)))


SIZES = {"python": 30, "onnx": 50, "torch": 200}


@pytest.mark.system
@pytest.mark.long
def test_a_worker_is_killed_in_a_run_and_its_picture_is_whole(tmp_path):
    run = kill.recorded(tmp_path)
    assert run.errors == 0
    assert run.again
    check(kill.drawn(run))


@pytest.mark.parametrize("path", sorted((CHECKOUT / "docs").rglob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_of_the_documents_has_colours_for_both_themes(path):
    drawing = path.read_text(encoding="utf-8")
    assert ink.STYLE in drawing
    assert colours(ET.fromstring(drawing)) <= ink.COLOURS
    assert any(path.name in page.read_text(encoding="utf-8") for page in PAGES), "no page shows it"
