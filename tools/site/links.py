"""The pages as a site: what `make docs` changes of their text, which is written to be read in the repository.

* README is the first page of the site; CONTRIBUTING and CHANGELOG are pages of it.
* A link to another file of the repository leads to a page that shows that file; a picture is copied.
* A line ``<!-- generated: NAME -->`` is replaced by what `generated.py` has under that name.
* A block that names its file, ```` ```python train.py ````, has that name as its title.
* The drawing in Mermaid is a picture, since Mermaid would be loaded from another server.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
KINDS = "docs/kinds.md"
OF_A_KIND = "{ show_root_heading: false, show_root_toc_entry: false, members: false }"
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}

# In one pattern, so that nothing inside a block or a code span is taken for a link.
_PARTS = re.compile(
    r"^```(?P<words>[^\n`]*)\n(?P<text>.*?)^```[ ]*$"
    r"|(?P<code>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=code)(?!`)"
    r"|(?P<before>\]\()(?P<link>[^)\s]+)\)"
    r"|(?P<image><img src=\")(?P<source>[^\"]+)\"",
    re.MULTILINE | re.DOTALL,
)

_GENERATED = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)


def with_generated(text: str) -> str:
    """The text of a page with what is generated in it.

    >>> with_generated("# A page\\n")
    '# A page\\n'
    >>> "### clip" in with_generated("<!-- generated: kinds -->")
    True
    """
    return _GENERATED.sub(lambda match: _generated(match[1]), text)


@functools.cache
def _generated(name: str) -> str:
    if str(ROOT) not in sys.path:  # MkDocs loads this file by its path
        sys.path.append(str(ROOT))
    from tools.site.generated import GENERATED

    return GENERATED[name]()


def place_in_site(path: str) -> str:
    """Where the site has a file of the repository.

    >>> [place_in_site(path) for path in ("README.md", "docs/checks.md", "graphs/fit.toml", "docs/average.svg")]
    ['index.md', 'checks.md', 'source/graphs/fit.toml.md', 'average.svg']
    """
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".svg") else f"source/{path}.md"


def targets_of(text: str, path: str) -> set[str]:
    """The files of the repository to which a page links, and its pictures; `path` is that of the page.

    >>> sorted(targets_of("[a](../graphs/fit.toml) [b](#c) [d](https://e.org) `[f](g.md)`", "docs/x.md"))
    ['graphs/fit.toml']
    """
    links = [part["link"] or part["source"] for part in _PARTS.finditer(text)]
    files = [link.partition("#")[0] for link in links if link and not re.match(r"\w+:|#", link)]
    return {posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) for file in files}


def for_the_site(text: str, path: str) -> str:
    """The text of a page as the site has it; `path` is that of the page in the repository.

    >>> for_the_site("[a](../graphs/fit.toml), [b](checks.md#g101)", "docs/x.md")
    '[a](source/graphs/fit.toml.md), [b](checks.md#g101)'
    >>> print(for_the_site("```python train.py\\nimport torch\\n```\\n", "docs/x.md"))
    ```python title="train.py"
    import torch
    ```
    <BLANKLINE>
    """

    def link(target: str) -> str:
        if re.match(r"\w+:|#", target):
            return target
        file, hash_sign, anchor = target.partition("#")
        place = place_in_site(posixpath.normpath(posixpath.join(posixpath.dirname(path), file)))
        return posixpath.relpath(place, posixpath.dirname(place_in_site(path)) or ".") + hash_sign + anchor

    def part(match: re.Match[str]) -> str:
        if match["words"] is not None:
            return _block(match["words"].split(), match["text"])
        if match["link"] is not None:
            return f"{match['before']}{link(match['link'])})"
        if match["source"] is not None:
            return f'{match["image"]}{link(match["source"])}"'
        return match[0]

    return _PARTS.sub(part, text)


def _block(words: list[str], text: str) -> str:
    language, *rest = words or ["text"]
    name = [word for word in rest if language in ("python", "toml")]
    return f"```{language}" + (f' title="{name[0]}"' if name else "") + f"\n{text}```"


def page_of_source(path: str) -> str:
    """The page that shows a file of the repository, or each file of a folder."""
    if path.endswith(".ipynb"):
        return f"# {path}\n\n{_cells(json.loads((ROOT / path).read_text(encoding='utf-8')))}"
    if (ROOT / path).is_file():
        return f"# {path}\n\n{_source(ROOT / path)}"
    files = [file for file in sorted((ROOT / path).rglob("*")) if file.suffix in LANGUAGES]
    sections = [f"## {file.relative_to(ROOT / path)}\n\n{_source(file)}" for file in files]
    return "\n".join([f"# {path}\n", *sections])


def _source(file: Path) -> str:
    return _fenced(LANGUAGES.get(file.suffix, "text"), file.read_text(encoding="utf-8"))


def _fenced(language: str, text: str) -> str:
    fence = "`" * max(3, 1 + max((len(each) for each in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def _cells(notebook: Any) -> str:
    """The text, the code and what it printed; pictures are left out."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else _fenced("python", text))
        outputs = ["".join(_printed(output)) for output in cell.get("outputs", ())]
        parts += [_fenced("text", printed) for printed in outputs if printed]
    return "\n\n".join(parts)


def _printed(output: Any) -> Any:
    return output.get("text", output.get("data", {}).get("text/plain", ""))


# ---- the hooks of MkDocs

_PATHS: dict[str, str] = {}  # of each page: where the repository has it


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and pictures that are outside of `docs/`."""
    from mkdocs.structure.files import File, InclusionLevel

    pages = {f"docs/{file.src_uri}" for file in files if _page(file)}
    texts = {path: with_generated((ROOT / path).read_text(encoding="utf-8")) for path in pages}
    texts |= {path: (ROOT / path).read_text(encoding="utf-8") for path in PAGES}
    _PATHS.update({place_in_site(path): path for path in texts})
    for path in PAGES:
        files.append(File.generated(config, place_in_site(path), content=texts[path]))
    targets = set().union(*(targets_of(text, path) for path, text in texts.items()))
    for path in sorted(targets):
        place = place_in_site(path)
        if path in texts or path.startswith("docs/") or not (ROOT / path).exists():
            continue  # what is missing, MkDocs reports
        if path.endswith(".svg"):
            files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
        else:
            level = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place, content=page_of_source(path), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change the text of a page of the repository; those that show a file are as they are."""
    path = _PATHS.get(page.file.src_uri)
    markdown = with_generated(markdown)
    if path == KINDS:
        markdown = re.sub(r"^::: .+$", rf"\g<0>\n    options: {OF_A_KIND}", markdown, flags=re.MULTILINE)
    return for_the_site(markdown, path) if path is not None else markdown


def on_post_build(config: Any) -> None:
    """Write what is no page."""
    from tools.site.generated import EXAMPLE_REPORT, example_report

    example_report(Path(config["site_dir"]).resolve() / EXAMPLE_REPORT)


def _page(file: Any) -> bool:
    return bool(file.is_documentation_page())
