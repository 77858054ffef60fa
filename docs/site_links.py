"""A hook of mkdocs: links of the pages that lead out of docs/.

The pages link as they stand in the repository. On the site CHANGELOG, CONTRIBUTING and SECURITY are pages of
their own, README is the first page, and other files of the repository are links where `repo_url` is known,
else their names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FOLDER: Final = "project"
"""Of the pages that stand beside docs/."""
BESIDE: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand beside docs/."""
    root = Path(config.docs_dir).parent
    for name in BESIDE:
        files.append(File.generated(config, f"{FOLDER}/{name}", content=(root / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page to what is there on the site."""
    here = page.file.src_uri
    # Where the page stands in the repository.
    source = here.removeprefix(f"{FOLDER}/") if here.startswith(f"{FOLDER}/") else f"docs/{here}"

    def rewritten(found: re.Match[str]) -> str:
        is_image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/"):
            wanted = path.removeprefix("docs/")
        elif path in BESIDE:
            wanted = f"{FOLDER}/{path}"
        elif path == "README.md":
            wanted, anchor = "README.md", ""
        else:
            wanted = ""
        if wanted and files.get_file_from_path(wanted) is not None:
            return f"{is_image}[{text}]({posixpath.relpath(wanted, posixpath.dirname(here) or '.')}{anchor})"
        if config.repo_url and not is_image:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text

    return _LINK.sub(rewritten, markdown)
