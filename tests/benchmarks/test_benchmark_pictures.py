"""Pictures of the documents: whole, readable in both themes, and with what a run has shown."""

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks.pictures import __main__ as command
from benchmarks.pictures import ink, kill
from benchmarks.pictures.load import Asked
from benchmarks.pictures.served import Execution

SVG = "{http://www.w3.org/2000/svg}"


def extents(root):
    """Yield (left, top, right, bottom, words) of each line of text, at its widest."""
    for each in root.iter(f"{SVG}text"):
        size = float(each.get("font-size"))
        wide = ink.measure(each.text, size, bold=each.get("font-weight") == "bold")
        left = float(each.get("x")) - {"middle": wide / 2, "end": wide}.get(each.get("text-anchor"), 0.0)
        bottom = float(each.get("y"))
        yield left, bottom - 0.72 * size, left + wide, bottom, each.text


def check(picture):
    """Fail unless a picture is whole, small, of itself, and readable."""
    root = ET.fromstring(picture)
    assert len(picture) < 60_000
    assert root.find(f"{SVG}title").text
    assert root.find(f"{SVG}desc").text
    assert not re.search(r"<script|<image|href=|url\(|@import|@font-face|\son\w+=", picture)
    colours = {each.get(kind) for each in root.iter() for kind in ("fill", "stroke")} - {None, "none"}
    assert all(f'[fill="{colour}"]' in ink.STYLE for colour in colours), "a colour without a dark one"
    width, height = (float(each) for each in root.get("viewBox").split()[2:])
    boxes = [*extents(root)]
    for place, (left, top, right, bottom, words) in enumerate(boxes):
        inside = left >= 0 and right <= width and top >= 0 and bottom <= height
        assert inside, f"{words!r} is out of the picture"
        for other in boxes[place + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, f"{words!r} is on {other[4]!r}"
    sizes = {float(each.get("font-size")) for each in root.iter(f"{SVG}text")}
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
