"""Cut Markdown pages into passages that are short enough to be embedded, each with its source."""

import re
from dataclasses import dataclass

# Words that are joined to one passage; the embedding reads about 180.
LONGEST = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A few sentences of a page. `title` are the headings above them, `source` is `page.md#section`."""

    source: str
    title: str
    text: str


def passages(page, markdown):
    """Yield the passages of one page, in order.

    Code is left out; each row of a table is a passage of its own.
    """
    for headings, blocks in _sections(markdown):
        source = f"{page}#{_anchor(headings[-1])}" if len(headings) > 1 else page
        for text in _texts(blocks):
            yield Passage(source=source, title=" › ".join(headings), text=text)


def _sections(markdown):
    """Yield the headings above, and the blocks of lines within, each section."""
    headings, blocks, fenced = [], [[]], False
    for line in markdown.splitlines():
        heading = None if fenced else re.match(r"(#+) (.*)", line)
        item = re.match(r"\s*(?:[-*]|\d+\.) (.*)", line)
        if line.lstrip().startswith("```"):
            fenced = not fenced
            blocks.append([])
        elif heading:
            yield headings, blocks
            headings = [*headings[: len(heading[1]) - 1], _plain(heading[2])]
            blocks = [[]]
        elif fenced or not line.strip():
            blocks.append([])
        elif item:
            blocks.append([item[1]])
        else:
            blocks[-1].append(line.strip())
    yield headings, blocks


def _texts(blocks):
    """Yield a section's texts: short paragraphs and items joined, and the rows of tables one by one."""
    words = []
    for block in filter(None, blocks):
        if block[0].startswith("|"):
            yield from filter(None, [" ".join(words)])
            yield from _rows(block)
            words = []
            continue
        for part in _sentences(_plain(" ".join(block))):
            if words and len(words) + len(part) > LONGEST:
                yield " ".join(words)
                words = []
            words += part
    yield from filter(None, [" ".join(words)])


def _sentences(text):
    """Return the words of a text: in one list if the text is short enough, else in one for each sentence."""
    short = len(text.split()) <= LONGEST
    return [part.split() for part in ([text] if short else re.split(r"(?<=[.?!:]) (?=[A-Z`])", text))]


def _rows(table):
    """Yield the rows of a table, each cell but the first with what its column is called."""
    names, _, *rows = (_cells(line) for line in table)
    for first, *rest in rows:
        told = [
            f"{name}: {cell}" if name else cell for name, cell in zip(names[1:], rest, strict=False) if cell
        ]
        yield "; ".join([first, *told])


def _cells(line):
    cells = (_plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip("|")))
    return ["" if cell == "–" else cell for cell in cells]


def _plain(text):
    """Return text without emphasis and link targets."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"(?<![\w`/])(\*\*?)(?=\S)([^*`]*?)(?<=\S)\1(?!\w)", r"\2", text)


def _anchor(heading):
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
