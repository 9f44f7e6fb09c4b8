"""What `mkdocs build` calls: pages from documents outside `docs`, and links that fit the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from mkdocs.config.defaults import MkDocsConfig  # noqa: E402  # what is ours is found by the line above
from mkdocs.structure.files import File, Files  # noqa: E402

from tests.house.site import nav  # noqa: E402
from tests.house.site.links import documents, for_the_site, slug  # noqa: E402

_LANDING: Final = "index.md"
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; worker-src 'self' blob:"
)
"""Browsers ask no other host for anything, whatever the theme or a page may name."""

_PICTURE: Final = re.compile(
    r"<picture>\s*<source media=\"\(prefers-color-scheme: dark\)\" srcset=\"(?P<dark>[^\"]+)\"\s*/?>\s*"
    r"<img (?P<before>[^>]*)src=\"(?P<light>[^\"]+)\"(?P<after>[^>]*)>\s*</picture>"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the navigation, and name anchors as forges do."""
    config.nav = nav.filled(config.nav or [], list(documents().values()))
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that lie outside `docs`."""
    for document, page in documents().items():
        if not document.startswith("docs/"):
            text = (ROOT / document).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=for_the_site(document, text)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page with links that fit the site, and pictures that follow the site's light and dark."""
    if page.file.src_uri == _LANDING:
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.generated_by is None:
        markdown = for_the_site(f"docs/{page.file.src_uri}", markdown)
    return _PICTURE.sub(_both, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Return a page that no browser fetches anything for from another host."""
    return output.replace(
        "<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">', 1
    )


def _both(match: re.Match[str]) -> str:
    around = f'<img {match["before"]}src="{{}}"{match["after"]}>'
    return around.format(f"{match['light']}#only-light") + around.format(f"{match['dark']}#only-dark")
