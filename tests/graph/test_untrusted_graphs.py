"""Graph files of strangers: bounds on what they contain, nothing of other files quoted, and `contained`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from graphtrain import Graph, GraphError, UsageError
from graphtrain.graph import sources

PLAIN = """\
format = 1
start = "a"
[nodes]
a = { use = "choice" }
[edges]
a = ["end"]
"""
OVERLAY = 'format = 1\nextends = "{}"\n'
BODY = 'format = 1\nstart = "a"\n[nodes]\na = {{ graph = "{}" }}\n[edges]\na = ["end"]\n'
EDIT = 'format = 1\nextends = "fit"\n[[edit]]\nnest = "v"\ngraph = "{}"\n'
INSERT = 'format = 1\nextends = "fit"\n[[edit]]\ninsert = "v"\nafter = "step"\ngraph = "{}"\n'
IN_A_TABLE = (
    'format = 1\nstart = "b"\n[nodes.b.graph]\nstart = "a"\n[nodes.b.graph.nodes]\na = {{ graph = "{}" }}\n'
    '[nodes.b.graph.edges]\na = ["end"]\n[edges]\nb = ["end"]\n'
)
FORMS = {
    "extends": OVERLAY, "graph of a node": BODY, "graph of an edit": EDIT, "graph that is inserted": INSERT,
    "graph in a table": IN_A_TABLE,
}  # fmt: skip


def message_of(path: Path, *, contained: bool = False) -> str:
    with pytest.raises((GraphError, UsageError)) as caught:
        Graph.load(path, contained=contained)
    return str(caught.value)


# ---- bounds


def doubled(number: int) -> str:
    """A graph with twice the graph of the file before."""
    nodes = "\n".join(f'{name} = {{ graph = "{number - 1}.toml" }}' for name in "ab")
    return f'format = 1\nstart = "a"\n[nodes]\n{nodes}\n[edges]\na = ["b"]\nb = ["end"]\n'


def grown(number: int) -> str:
    """The graph of the file before, with itself inserted."""
    edit = f'[[edit]]\ninsert = "n{number}"\nafter = "a"\ngraph = "{number - 1}.toml"\n'
    return f'format = 1\nextends = "{number - 1}.toml"\n{edit}'


@pytest.mark.parametrize("text", [doubled, grown])
def test_files_that_contain_each_other_twice_are_bounded(
    text: Callable[[int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nineteen files of 100 bytes, half a million graphs; the bound is met once, wherever it is."""
    monkeypatch.setattr(sources, "MAX_NODES", 300)
    (tmp_path / "0.toml").write_text(PLAIN)
    for number in range(1, 19):
        (tmp_path / f"{number}.toml").write_text(text(number))
    assert message_of(tmp_path / "18.toml") == "the graph has more than 300 nodes, with those of the graphs in it"
    assert Graph.load(tmp_path / "4.toml").name == "4"


def test_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.MAX_NODES == 10_000
    monkeypatch.setattr(sources, "MAX_NODES", 50)
    nodes = [f'n{number} = {{ use = "choice" }}\n' for number in range(51)]
    edges = [f'n{number} = ["end"]\n' for number in range(51)]
    for most in (50, 51):
        text = 'format = 1\nstart = "n0"\n[nodes]\n' + "".join(nodes[:most]) + "[edges]\n" + "".join(edges[:most])
        if most == 50:
            assert len(Graph.loads(text).nodes) == 50
        else:
            with pytest.raises(UsageError, match="more than 50 nodes"):
                Graph.loads(text)


# ---- what is not a graph


SECRETS = {
    "passwd": ("passwd", b"root:x:0:0:secret:/root:/bin/bash\n"),
    "TOML of another program": ("credentials.toml", b'[registry]\nsecret = "secret"\n'),
    "a table without a header": ("credentials.toml", b'secret = "secret"\n'),
    "a format that is not at the top": ("credentials.toml", b'secret = "secret"\n[a]\nformat = 1\n'),
    "a key": ("id_rsa", b"-----BEGIN secret KEY-----\nsecret\n"),
    "bytes": ("secret.bin", b"secret\xff\xfesecret"),
    "nothing": ("empty", b""),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SECRETS)
def test_a_file_that_is_no_graph_is_not_quoted(name: str, form: str, tmp_path: Path) -> None:
    file, content = SECRETS[name]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "graphs").mkdir()
    (tmp_path / "elsewhere" / file).write_bytes(content)
    (tmp_path / "graphs" / "mine.toml").write_text(FORMS[form].format(f"../elsewhere/{file}"))
    message = message_of(tmp_path / "graphs" / "mine.toml")
    assert file in message and (
        "is not a graph: there is no line `format = 1` at its top" in message or "UTF-8" in message
    )
    assert "secret" not in message.replace(file, "").replace("credentials", "")


@pytest.mark.parametrize("put", [lambda path: path.mkdir(), os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(put: Callable[[Path], None], tmp_path: Path) -> None:
    put(tmp_path / "odd.toml")
    (tmp_path / "mine.toml").write_text(OVERLAY.format("odd.toml"))
    assert "cannot read the graph" in message_of(tmp_path / "mine.toml")
    assert "cannot read the graph" in message_of(tmp_path / "odd.toml")


def test_a_mistake_in_a_graph_that_is_extended_is_still_shown(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("# mine\n" + PLAIN.replace("choice", 'choice" x'))
    (tmp_path / "mine.toml").write_text(OVERLAY.format("base.toml"))
    message = message_of(tmp_path / "mine.toml")
    assert "base.toml:5" in message and 'choice" x' in message


# ---- contained


def plain_at(path: str) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(PLAIN)

    return put


def link_at(path: str, target: str) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).symlink_to(target)

    return put


INSIDE = {
    "beside": ("other.toml", plain_at("other.toml")),
    "below": ("parts/other.toml", plain_at("parts/other.toml")),
    "down and up": ("parts/../other.toml", lambda folder: [plain_at(p)(folder) for p in ("parts/x", "other.toml")]),
    "a link that stays": ("link.toml", lambda folder: [plain_at("other.toml")(folder),
     link_at("link.toml", "other.toml")(folder)]),
    "shipped": ("evaluate", lambda folder: None),
}  # fmt: skip
OUTSIDE = {
    "above": ("../outside.toml", lambda folder: None),
    "above and down again": ("../outside/other.toml", lambda folder: None),
    "a sibling with a longer name": ("../inside2/other.toml", lambda folder: None),
    "absent": ("../absent.toml", lambda folder: None),
    "a link out": ("link.toml", link_at("link.toml", "../outside.toml")),
    "a link to a folder": ("parts/other.toml", link_at("parts", "../outside")),
    "a link to nowhere outside": ("link.toml", link_at("link.toml", "../absent.toml")),
    "a link to a secret": ("link", link_at("link", "/etc/passwd")),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_leads_out_of_the_folder_is_refused(form: str, tmp_path: Path) -> None:
    for outside in ("outside.toml", "outside/other.toml", "inside2/other.toml"):
        plain_at(outside)(tmp_path)
    for number, (reference, put) in enumerate([*INSIDE.values(), *OUTSIDE.values()]):
        folder = tmp_path / "inside"
        folder.mkdir()
        put(folder)
        graph = folder / "mine.toml"
        graph.write_text(FORMS[form].format(reference))
        if number < len(INSIDE):
            assert Graph.load(graph, contained=True) == Graph.load(graph), reference
        else:
            message = message_of(graph, contained=True)
            assert f"`{reference}` leads out of the folder `{folder}`" in message, reference
            if "absent" not in reference and reference != "link" and not os.path.islink(folder / "link.toml"):
                assert Graph.load(graph), reference
        folder.rename(tmp_path / f"done {number}")


def test_the_file_itself_may_not_be_a_link_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_at("outside.toml")(tmp_path)
    link_at("inside/mine.toml", "../outside.toml")(tmp_path)
    assert Graph.load(tmp_path / "inside" / "mine.toml")
    assert "leads out of the folder" in message_of(tmp_path / "inside" / "mine.toml", contained=True)
    monkeypatch.chdir(tmp_path / "inside")
    plain_at("inside/sound.toml")(tmp_path)
    assert Graph.load("sound.toml", contained=True) and Graph.load("fit", contained=True)
    assert Graph.load(tmp_path / "outside.toml", contained=True), "in the folder that is named"


def test_a_graph_further_in_is_contained_too(tmp_path: Path) -> None:
    """By the folder of the first file, not of the one that names the next."""
    plain_at("inside/other.toml")(tmp_path)
    plain_at("outside.toml")(tmp_path)
    (tmp_path / "inside" / "parts").mkdir()
    (tmp_path / "inside" / "parts" / "up.toml").write_text(OVERLAY.format("../other.toml"))
    (tmp_path / "inside" / "parts" / "out.toml").write_text(OVERLAY.format("../../outside.toml"))
    (tmp_path / "inside" / "good.toml").write_text(OVERLAY.format("parts/up.toml"))
    (tmp_path / "inside" / "bad.toml").write_text(OVERLAY.format("parts/out.toml"))
    assert Graph.load(tmp_path / "inside" / "good.toml", contained=True)
    assert "`../../outside.toml` leads out of" in message_of(tmp_path / "inside" / "bad.toml", contained=True)
