"""Documents, pages, and where a link in a document leads.

A document is named by its path below the root of the repository. Most documents lie in `docs` and are pages
of the site under the same name; `_AROUND` and the READMEs of examples are pages, too. A link of a document is
written for a forge, where it leads to a file of the repository. On the site it leads to a page. The project
has no public URL, so a link to any other file becomes text there, with the file's path, which a checkout has.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.house.graph import ROOT

_AROUND: Final[Mapping[str, str]] = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "examples/README.md": "examples/index.md",
}
"""Documents outside `docs`, and the pages that they are."""

_NO_PAGES: Final = "docs/changes/"
_LINK: Final = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)(?P<title>\s+\"[^\"]*\")?\)"
)
_ATTRIBUTE: Final = re.compile(r"(?P<name>\b(?:src|srcset|href)=\")(?P<target>[^\"]+)(?=\")")
_SCHEME: Final = re.compile(r"[a-z]+:")
_CODE: Final = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^[ \t]*(?P=fence)[ \t]*$|(?P<ticks>(?<!`)`+(?!`)).*?(?<!`)(?P=ticks)(?!`)",
    re.MULTILINE | re.DOTALL,
)
_HEADING: Final = re.compile(r"^#{1,6}\s+(?P<text>.+?)\s*#*\s*$", re.MULTILINE)
_NAMED: Final = re.compile(r"\b(?:id|name)=\"(?P<name>[^\"]+)\"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link of a document. `path` is below the root of the repository; empty for another host's."""

    target: str  # as it is written
    path: str
    anchor: str  # without `#`
    image: bool
    html: bool


def documents() -> dict[str, str]:
    """Return all documents, and the page that each of them is."""
    paths = [
        *_AROUND,
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))),
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").rglob("README.md"))),
    ]
    return {path: page for path in paths if (page := page_of(path))}


def page_of(path: str) -> str | None:
    """Return the page that a document is, or that a folder's README is; None if it is none."""
    if path in _AROUND:
        return _AROUND[path]
    if path == "docs":
        return "index.md"
    if path.startswith("docs/") and path.endswith(".md") and not path.startswith(_NO_PAGES):
        return path.removeprefix("docs/")
    if path.startswith("examples/") and path.endswith("/README.md"):
        return f"{path.removesuffix('/README.md')}.md"
    folder = f"{path.rstrip('/')}/README.md"
    is_folder = path.startswith("examples") and (ROOT / folder).is_file()
    return page_of(folder) if is_folder else None


def slug(heading: str, _separator: str = "-") -> str:
    """Return the anchor of a heading, on a forge and on the site."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(text: str) -> frozenset[str]:
    """Return the anchors of a document. Of headings with the same words only the first has one."""
    bare, _ = _without_fences(text)
    headings = (_LINK.sub(r"\g<text>", match["text"]) for match in _HEADING.finditer(bare))
    named = (match["name"] for match in _NAMED.finditer(bare))
    return frozenset([*(slug(re.sub(r"[`*]|<[^>]*>", "", heading)) for heading in headings), *named])


def links(document: str, text: str) -> Iterator[Link]:
    """Yield the links of a document."""
    found: list[Link] = []

    def keep(link: Link) -> str | None:
        found.append(link)
        return link.target

    _replaced(document, text, keep)
    yield from found


def for_the_site(document: str, text: str) -> str:
    """Return a document with links as they have to be on its page.

    HTML is shown as it is, so what it names is the page that a browser finds.
    """
    here = posixpath.dirname(page_of(document) or "")

    def translated(link: Link) -> str | None:
        if not link.path or link.target.startswith("#"):
            return link.target
        to = page_of(link.path)
        if to is None and link.path.startswith("docs/") and not link.path.startswith(_NO_PAGES):
            to = link.path.removeprefix("docs/")
        if to is None:
            return None
        if link.html:
            to = re.sub(r"\.md$", ".html", to)
        return posixpath.relpath(to, here or ".") + (f"#{link.anchor}" if link.anchor else "")

    return _replaced(document, text, translated)


def _replaced(document: str, text: str, change: Callable[[Link], str | None]) -> str:
    """Return a document whose links have other targets. With None for one it becomes text.

    What stands in code is left alone.
    """
    folder = posixpath.dirname(document)

    def link_of(target: str, *, image: bool, html: bool) -> Link:
        path, _, anchor = ("", "", "") if _SCHEME.match(target) else target.partition("#")
        if path:
            path = posixpath.normpath(posixpath.join(folder, path))
        elif anchor:
            path = document
        return Link(target=target, path=path, anchor=anchor, image=image, html=html)

    def changed(match: re.Match[str]) -> str:
        link = link_of(match["target"], image=bool(match["image"]), html=False)
        to = change(link)
        if to is not None:
            return f"{match['image']}[{match['text']}]({to}{match['title'] or ''})"
        said = code_of(match["text"]).strip("`")
        return f"`{link.path}`" if said in {link.path, link.target} else f"{match['text']} (`{link.path}`)"

    def of_attribute(match: re.Match[str]) -> str:
        link = link_of(match["target"], image=not match["name"].startswith("href"), html=True)
        return match["name"] + (change(link) or link.target)

    bare, kept = _without_code(text)

    def code_of(masked: str) -> str:
        return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], masked)

    return code_of(_ATTRIBUTE.sub(of_attribute, _LINK.sub(changed, bare)))


def _without_code(text: str) -> tuple[str, list[str]]:
    return _masked(text, lambda _: True)


def _without_fences(text: str) -> tuple[str, list[str]]:
    return _masked(text, lambda match: bool(match["fence"]))


def _masked(text: str, hidden: Callable[[re.Match[str]], bool]) -> tuple[str, list[str]]:
    """Return a document with marks in place of its code, and the code."""
    kept: list[str] = []

    def put_away(match: re.Match[str]) -> str:
        if not hidden(match):
            return match[0]
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    return _CODE.sub(put_away, text), kept
