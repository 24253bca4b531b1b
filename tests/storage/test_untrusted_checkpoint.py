"""Checkpoints of strangers who know the format and compute every checksum: an error that names the file, no more."""

from __future__ import annotations

import hashlib
import json
import os
import random
import struct
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.graph import Graph
from graphtrain.storage import regular
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.decoding import unpack
from graphtrain.storage.encoding import Tensors, pack
from graphtrain.storage.manifest import MANIFEST_FILE, Manifest
from graphtrain.storage.named import graph_of, saved_manifest
from graphtrain.storage.regular import checksum_of, parsed_json
from graphtrain.storage.run_directory import Retention
from graphtrain.storage.state_files import PROGRESS_FILE, StagedState
from graphtrain.storage.store import FolderStore
from graphtrain.storage.tensor_files import StagingBuffers
from tests.storage.facts import FACTS

STATE: dict[str, dict[str, Any]] = {
    "resources": {"model": {"w": torch.arange(4.0)}},
    "progress": {"step": {"steps": 1, "recent": [(1, 2.5)]}},
    "slots": {"loss": torch.ones(())},
}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> FolderStore:
    """A store with a sound checkpoint and a newer one, which the tests forge."""
    store = FolderStore(tmp_path / "checkpoints", said.append)
    for step in (1, 2):
        store.save(
            StagedState(STATE, {}, StagingBuffers()), Manifest(**{**FACTS, "step": step}), {"": Retention(9)}, {}
        )
    return store


def seal(path: Path, changes: Mapping[str, Any] | None = None, *, sizes: bool = True) -> None:
    """Make the manifest fit the files, with all checksums."""
    manifest = msgpack.unpackb(msgpack.unpackb((path / MANIFEST_FILE).read_bytes())["manifest"])
    names = [name for name in manifest["files"] if sizes and (path / name).is_file()]
    contents = {name: (path / name).read_bytes() for name in names}
    files = {name: [len(data), checksum_of([data])] for name, data in contents.items()}
    seal_body(path, msgpack.packb({**manifest, "files": {**manifest["files"], **files}, **(changes or {})}))


def seal_body(path: Path, body: bytes) -> None:
    (path / MANIFEST_FILE).write_bytes(msgpack.packb({"sha256": hashlib.sha256(body).hexdigest(), "manifest": body}))


def with_part(path: Path, section: str, name: str, data: bytes) -> None:
    packed = msgpack.unpackb((path / PROGRESS_FILE).read_bytes())
    (path / PROGRESS_FILE).write_bytes(msgpack.packb({**packed, section: {**packed.get(section, {}), name: data}}))
    seal(path)


# The codes of the encoding, which are part of the format.
(
    TUPLE, SET, FROZENSET, COUNTER, ORDERED, DEQUE, PAIRS, BIG, ARRAY, SCALAR,
    TENSOR, RAW, SPARSE, SIZE, TEXT, BYTEARRAY, DEFAULT, STATE_DICT, PLACED, SAME, STANDARD,
) = CODES = range(1, 22)  # fmt: skip


def tag(code: int, value: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(value))


def nested(depth: int, around: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = around(value)
    return value


def raw_nest(depth: int) -> bytes:
    """Bytes of lists in each other; a packer has a bound of its own."""
    return b"\x91" * depth + b"\xc0"


RAW_TENSOR = tag(RAW, ["float32", [2], b"\0" * 8, "cpu"])
TENSOR_W = ["model", "w", "cpu"]
DEEP = "nested more than 100 deep"
PART: dict[str, tuple[Any, str]] = {
    "300 tuples": (nested(300, lambda value: tag(TUPLE, [value])), DEEP),
    "300 mappings": (nested(300, lambda value: tag(PAIRS, [[1, value]])), DEEP),
    "300 keys": (nested(300, lambda value: tag(PAIRS, [[value, 1]])), DEEP),
    "300 sequences with a maximum": (nested(300, lambda value: tag(DEQUE, [None, [value]])), DEEP),
    "300 versions of a state": (nested(300, lambda value: tag(STATE_DICT, [[], value])), DEEP),
    "300 defaults": (nested(300, lambda value: tag(DEFAULT, [None, [[1, value]]])), DEEP),
    "300 placed tensors": (nested(300, lambda value: tag(PLACED, [value, None, False])), DEEP),
    "300 sparse tensors": (nested(300, lambda value: tag(SPARSE, [value, 1, [1], False])), DEEP),
    "300 types of an array": (nested(300, lambda value: tag(ARRAY, [value, [0], b"", "C"])), DEEP),
    "105 tuples of lists": (nested(53, lambda value: tag(TUPLE, [[value]])), DEEP),
    "500 lists": (raw_nest(500), DEEP),
    "2,000 lists": (raw_nest(2000), "StackError"),
    "a table of a billion entries": (b"\xdf\x3b\x9a\xca\x00", "exceeds"),
    "a list of four billion entries": (b"\xdd\xff\xff\xff\xff", "exceeds"),
    "a text of four gigabytes": (b"\xdb\xff\xff\xff\xff", "incomplete"),
    "a tag of four gigabytes": (b"\xc9\xff\xff\xff\xff\x01", "exceeds"),
    "a tag of nothing": (msgpack.ExtType(TUPLE, b""), "not a valid encoding"),
    "a time": (msgpack.Timestamp(1, 0), "Timestamp, which is never written"),
    "an unknown code": (tag(99, 1), "unknown code 99"),
    "the last code": (msgpack.ExtType(127, b"\1"), "unknown code 127"),
    "a terabyte of bytes": (tag(BYTEARRAY, 10**12), "a value of type int, where a bytes belongs"),
    "a whole number of numbers": (tag(BIG, [1, 2]), "a value of type list, where a bytes belongs"),
    "a tuple of a number": (tag(TUPLE, 5), "a value of type int, where a list belongs"),
    "a set of lists": (tag(SET, [[1]]), "unhashable"),
    "keys that are lists": (tag(PAIRS, [[[1], 2]]), "unhashable"),
    "pairs of three": (tag(PAIRS, [[1, 2, 3]]), "too many values"),
    "pairs that are numbers": (tag(ORDERED, [1]), "cannot unpack"),
    "counts of lists": (tag(COUNTER, [[1]]), "not enough values"),
    "a complex number of texts": (tag(STANDARD, ["complex", ["1", "2"]]), "TypeError"),
    "a sequence of fewer than none": (tag(DEQUE, [-1, []]), "maxlen"),
    "a default of any type": (tag(DEFAULT, ["open", []]), "open"),
    "a type of no name": (tag(STANDARD, ["torch.dtype", ["nn"]]), "KeyError"),
    "a device of no name": (tag(STANDARD, ["device", ["nowhere"]]), "device"),
    "text of numbers": (tag(TEXT, [1]), "a value of type list, where a bytes belongs"),
    "a size of texts": (tag(SIZE, ["a"]), "TypeError"),
    "a tensor in another file": (tag(TENSOR, ["nowhere", "w", "cpu"]), "`nowhere` has no tensor `w`"),
    "a tensor that is not there": (tag(TENSOR, ["model", "v", "cpu"]), "`model` has no tensor `v`"),
    "a tensor, by no name": (tag(TENSOR, [["model"], {}, "cpu"]), "unhashable"),
    "a thousand copies of a tensor": ([tag(TENSOR, TENSOR_W)] * 1000, "referred to twice"),
    "a tensor of lies": (tag(RAW, ["float32", [2**40], b"", "cpu"]), "another size than its bytes"),
    "a tensor of no elements and any size": (tag(RAW, ["float32", [0, 2**62, 2**62], b"", "cpu"]), "not a valid"),
    "a tensor of negative sizes": (tag(RAW, ["float32", [-1, -2], b"\0" * 8, "cpu"]), "not whole numbers >= 0"),
    "a tensor of texts": (tag(RAW, ["float32", "12", b"\0" * 8, "cpu"]), "where a list belongs"),
    "a tensor of true": (tag(RAW, ["float32", [True], b"\0" * 4, "cpu"]), "not whole numbers >= 0"),
    "a placement of terabytes": (tag(PLACED, [RAW_TENSOR, [[2], [2**40], 0], False]), "more memory than it can"),
    "a placement far away": (tag(PLACED, [RAW_TENSOR, [[2], [1], 2**40], False]), "more memory than it can"),
    "a placement of a text": (tag(PLACED, ["x", [[1], [1], 0], False]), "not a valid encoding"),
    "a leaf of whole numbers": (tag(PLACED, [tag(RAW, ["int64", [1], b"\0" * 8, "cpu"]), None, True]), "gradients"),
    "an array of objects": (tag(ARRAY, ["|O", [1], b"\0" * 8, "C"]), "array of objects"),
    "an array of objects inside": (tag(ARRAY, [[tag(TUPLE, ["a", "|O"])], [1], b"\0" * 8, "C"]), "array of objects"),
    "an array of lies": (tag(ARRAY, ["<f4", [2**40], b"\0" * 8, "C"]), "another size than its bytes"),
    "an array of very many nothings": (tag(ARRAY, ["|V0", [2**50], b"", "C"]), "another size than its bytes"),
    "an array in the place of a number": (tag(SCALAR, ["<f4", [2], b"\0" * 8, "C"]), "in the place of a number"),
    "a sparse tensor of no tensors": (tag(SPARSE, [1, 2, [3], True]), "not a valid encoding"),
    "a sparse tensor beyond itself": (
        tag(SPARSE, [tag(RAW, ["int64", [1, 1], b"\x09" + b"\0" * 7, "cpu"]), RAW_TENSOR, [2], False]), "not a valid",
    ),
}  # fmt: skip


@pytest.mark.second(50)
@pytest.mark.first(11)
@pytest.mark.parametrize("name", PART)
def test_a_value_that_is_never_written(name: str, store: FolderStore, said: list[str]) -> None:
    """Nothing is allocated for it, the message names file and place, and the older checkpoint is reached."""
    value, reason = PART[name]
    sound, forged = store.paths()
    data = value if isinstance(value, bytes) else msgpack.packb(value)
    with_part(forged, "resources", "model", data)
    store.newest()  # what is imported at the first reading is not counted
    said.clear()
    tracemalloc.start()
    newest = store.newest()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert newest is not None and newest.path == sound
    assert said[0].startswith(f"skipped a damaged checkpoint: {forged}: {PROGRESS_FILE}: resources/model: not a valid ")
    assert reason in said[0] and said[0].isprintable() and len(said) == 1
    assert most < 2_000_000


def test_what_is_nested_as_deep_as_can_be_written_is_read() -> None:
    for around in (lambda value: (value,), lambda value: {1: value}, lambda value: [value], lambda value: {"a": value}):
        value = nested(99, around)
        assert unpack(pack(value, "value", Tensors("file")), {}) == value


def every_type(value: Any) -> set[type]:
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    parts = inner if isinstance(value, list | tuple | set | frozenset | dict) else ()
    return {type(value)}.union(*map(every_type, parts))


@pytest.mark.full
def test_no_code_makes_an_object_of_any_other_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """All codes with all values, two deep: what comes of them is of the types that `pack` takes, and runs nothing."""
    made: list[str] = []

    class Trap(dict):  # type: ignore[type-arg]
        def __new__(cls, *arguments: Any) -> Any:
            made.append("__new__")
            return super().__new__(cls)

        def __setstate__(self, state: Any) -> None:
            made.append("__setstate__")

        def __reduce__(self) -> Any:
            made.append("__reduce__")
            return Trap, ()

        def __del__(self) -> None:
            made.append("__del__")

    monkeypatch.setattr("builtins.Trap", Trap, raising=False)
    names = [f"{__name__}.Trap", "builtins.Trap", "Trap"]
    simple: list[Any] = [None, 1, 0.5, "float32", "cpu", b"\0" * 8, [], *names, ["<f4", [], b"\0" * 4], [1.0, 2.0]]
    simple += [[name, []] for name in names] + [[[name, 1]] for name in names] + [["float32", [2], b"\0" * 8, "cpu"]]
    inner = [tag(code, value) for code in CODES for value in simple]
    types: set[type] = set()
    for code in [*CODES, 0, 23, 24, 60]:
        for value in [*simple, *inner, *([part] for part in inner), *([[part, 1]] for part in inner)]:
            try:
                types |= every_type(unpack(msgpack.packb(tag(code, value)), {}))
            except ValueError:
                continue
    assert not made
    assert {kind.__module__.partition(".")[0] for kind in types} <= {"builtins", "collections", "torch", "numpy"}
    assert not any(issubclass(kind, type | BaseException) for kind in types)


# ---- the files


def as_header(header: Any, length: int | None = None) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        text = json.dumps(header).encode()
        start = struct.pack("<Q", len(text) if length is None else length)
        (path / "model.safetensors").write_bytes(start + text + b"\0" * 16)
        seal(path)

    return forge


def of(entry: Any) -> dict[str, Any]:
    return {"w": entry}


def sparse(name: str, size: int) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        if name != MANIFEST_FILE:
            files = msgpack.unpackb(msgpack.unpackb((path / MANIFEST_FILE).read_bytes())["manifest"])["files"]
            seal(path, {"files": {**files, name: [size, "0" * 32]}}, sizes=False)
        os.truncate(path / name, size)

    return forge


def size_in_the_manifest(size: Any) -> Callable[[Path], None]:
    return lambda path: seal(path, {"files": {PROGRESS_FILE: [size, "0" * 32]}}, sizes=False)


def manifest_with(field: str, value: Any) -> Callable[[Path], None]:
    return lambda path: seal(path, {field: value})


def progress_as(content: bytes) -> Callable[[Path], None]:
    def forge(path: Path) -> None:
        (path / PROGRESS_FILE).write_bytes(content)
        seal(path)

    return forge


def linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


NO_TENSORS = "model.safetensors is not a tensor file"
FORMED = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a header of exabytes": (as_header(of(FORMED), 2**62), NO_TENSORS),
    "a tensor of exabytes": (as_header(of({**FORMED, "shape": [2**62]})), NO_TENSORS),
    "a tensor whose size overflows": (as_header(of({**FORMED, "shape": [2**62, 4]})), NO_TENSORS),
    "no elements, of any size": (as_header(of({**FORMED, "shape": [0, 2**63], "data_offsets": [0, 0]})), NO_TENSORS),
    "offsets that lie": (as_header(of({**FORMED, "data_offsets": [0, 2**40]})), NO_TENSORS),
    "a type of no name": (as_header(of({**FORMED, "dtype": "F31"})), NO_TENSORS),
    "a header nested 900 deep": (as_header(nested(900, lambda value: [value])), NO_TENSORS),
    "a sparse file of a few terabytes": (sparse("model.safetensors", 1 << 42), "bytes are more than the"),
    "a sparse progress of a few terabytes": (sparse(PROGRESS_FILE, 1 << 42), "bytes are more than the"),
    "a sparse manifest of a few terabytes": (sparse(MANIFEST_FILE, 1 << 42), f"has {1 << 42} bytes instead of at"),
    "a size that lies": (size_in_the_manifest(1 << 30), "bytes instead of 1073741824"),
    "a size of exabytes": (size_in_the_manifest(2**62), f"{2**62} bytes are more than the"),
    "a size below nothing": (size_in_the_manifest(-1), "foreign (files)"),
    "a manifest nested 300 deep": (manifest_with("environment", {"a": nested(300, lambda value: [value])}), DEEP),
    "a manifest nested 300 deep in tables": (manifest_with("about", nested(300, lambda value: {"a": value})), DEEP),
    "a manifest with a tag": (manifest_with("about", {"a": tag(1, [1])}), "a value of type ExtType"),
    "a manifest with a time": (manifest_with("about", {"a": msgpack.Timestamp(1, 0)}), "a value of type Timestamp"),
    "a manifest of huge counts": (lambda path: seal_body(path, b"\xdf\xff\xff\xff\xff"), "foreign"),
    "a manifest that is a list": (lambda path: seal_body(path, b"\x90"), "foreign (TypeError)"),
    "progress that is a list": (progress_as(b"\x90"), f"{PROGRESS_FILE}: not the state of a checkpoint"),
    "progress of lists": (progress_as(msgpack.packb({"slots": [1]})), f"{PROGRESS_FILE}: not the state"),
    "progress of numbers": (progress_as(msgpack.packb({"slots": {"a": 1}})), "slots/a"),
    "progress without its name": (progress_as(msgpack.packb({"slots": {"a": b"\x81\xa1b\1"}})), "slots/a: 'a'"),
    "progress of a node that is a number": (
        lambda path: with_part(path, "progress", "step", msgpack.packb({"step": 1})),
        "progress of `step` is not a table",
    ),
    "a folder that is a link": (linked, "is a link; in a run directory only `checkpoints` may be one"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_never_written(
    name: str, store: FolderStore, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regular, "_memory", lambda: 1 << 40)  # whatever this machine has
    forge, reason = FILES[name]
    sound, forged = store.paths()
    forge(forged)
    tracemalloc.start()
    newest = store.newest()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert newest is not None and newest.path == sound
    assert len(said) == 1 and str(forged) in said[0] and reason in said[0] and said[0].isprintable()
    assert most < 2_000_000


def test_what_does_not_fit_into_memory_is_no_damage(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a larger machine it is sound, so it stays."""
    monkeypatch.setattr(regular, "_memory", lambda: 100)
    assert store.newest() is None
    assert not store._unsound


def test_what_is_forged_is_no_graph(store: FolderStore) -> None:
    body: dict[str, Any] = {
        "format": 1, "name": "n", "start": "a", "nodes": {}, "edges": {}, "guards": {}, "clock": {}, "outputs": [],
        "optional": [], "allow": [],
    }  # fmt: skip
    node: dict[str, Any] = {"use": "choice"}
    assert Graph.from_json(json.dumps({**body, "nodes": {"a": node}})).nodes["a"].use == "choice"
    deep = json.dumps(nested(150, lambda value: {**body, "nodes": {"a": {"graph": value}}}))
    texts = [
        "1", "[]", "{}", "[" * 100_000, "1e999", deep, json.dumps({**body, "name": 1}),
        json.dumps({**body, "start": None}), json.dumps({**body, "edges": {"a": [["b", 1]]}}),
        json.dumps({**body, "edges": {"a": 3}}), json.dumps({**body, "guards": {"a": 1}}),
        json.dumps({**body, "clock": []}), json.dumps({**body, "outputs": [1]}), json.dumps({**body, "allow": 5}),
        json.dumps({**body, "nodes": {"a": 1}}), json.dumps({**body, "nodes": {"a": {**node, "use": 1}}}),
        json.dumps({**body, "nodes": {"a": {**node, "writes": {"x": 1}}}}),
        json.dumps({**body, "nodes": {"a": {**node, "reads": {"x": 1}}}}), json.dumps({**body, "format": "x" * 9999}),
    ]  # fmt: skip
    newest = store.paths()[-1]
    for text in texts:
        seal(newest, {"graph": text})
        with pytest.raises(CheckpointError, match="its graph cannot be read") as caught:
            graph_of(*saved_manifest(newest))
        assert len(caught.value.message) < 600, text[:80]


# ---- by chance


def altered(data: bytes, chance: random.Random) -> bytes:
    """The bytes with some changed, left out, put in, or cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        position = chance.randrange(len(changed) or 1)
        match chance.randrange(4):
            case 0 if changed:
                changed[position] ^= 1 << chance.randrange(8)
            case 1:
                del changed[position : position + chance.randrange(1, 9)]
            case 2:
                changed[position:position] = chance.randbytes(chance.randrange(1, 9))
            case 3 if chance.random() < 0.3:
                del changed[position:]
    return bytes(changed)


LEAVES: list[Any] = [
    None, True, 0, -1, 2**63, 0.5, float("nan"), "", "float32", "cpu", "<f4", "|O", "model", "w", b"", b"\0" * 8, [],
    {}, [2**62, 2**62], [0], [-1], 10**12,
]  # fmt: skip


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 3 or kind < 0.35:
        return chance.choice(LEAVES)
    if kind < 0.6:
        return [random_value(chance, depth + 1) for _ in range(chance.randrange(5))]
    if kind < 0.7:
        return {name: random_value(chance, depth + 1) for name in "abc"[: chance.randrange(4)]}
    return tag(chance.randrange(25), random_value(chance, depth + 1))


@pytest.mark.parametrize("how", ["a file", "a part", "a value", "a field", "the manifest"])
def test_whatever_is_changed_with_the_right_checksums(how: str, store: FolderStore) -> None:
    """Read as something else, or refused with the name of the checkpoint; nothing else is raised."""
    chance, forged = random.Random(how), store.paths()[-1]
    contents = {file: file.read_bytes() for file in forged.iterdir()}
    manifest = msgpack.unpackb(msgpack.unpackb(contents[forged / MANIFEST_FILE])["manifest"])
    parts = msgpack.unpackb(contents[forged / PROGRESS_FILE])
    outcomes = set()
    for _ in range(150):
        for file, content in contents.items():
            file.write_bytes(content)
        section = chance.choice([name for name, inner in parts.items() if inner])
        name = chance.choice(list(parts[section]))
        match how:
            case "a file":
                file = chance.choice(sorted(file for file in contents if file.name != MANIFEST_FILE))
                file.write_bytes(altered(contents[file], chance))
                seal(forged)
            case "a part":
                with_part(forged, section, name, altered(parts[section][name], chance))
            case "a value":
                value = random_value(chance)
                with_part(forged, section, name, msgpack.packb(value if section == "resources" else {name: value}))
            case "a field":
                seal(forged, {chance.choice(list(manifest)): random_value(chance)})
            case _:
                seal_body(forged, altered(msgpack.packb(manifest), chance))
        try:
            read_checkpoint(forged)
            outcomes.add("read")
        except CheckpointError as error:
            assert str(forged) in error.message and error.message.isprintable() and len(error.message) < 1000
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, DEEP),
        ("[" * 200 + "]" * 200, DEEP),
        ('{"a":' * 200 + "1" + "}" * 200, DEEP),
        ("9" * 5000, "integer string"),
        ("nonsense", "Expecting value"),
        ("", "Expecting value"),
        (b"\xff", "utf-8"),
    ],
)
def test_json_of_strangers(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parsed_json(text)
