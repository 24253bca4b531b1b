"""Split the state of a checkpoint over files: one safetensors file per resource, one msgpack file for the rest.

The section `local` has what the further training does not depend on, such as elapsed time and devices. Everything else
is in the digest: equal digests mean bitwise equal states, on any devices.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import msgpack
import torch

from graphtrain.storage.encoding import Encoder, Tensors, unpack
from graphtrain.storage.files import checksum_of, uncollected
from graphtrain.storage.strides import DEVICES
from graphtrain.storage.tensor_files import (
    TENSOR_SUFFIX,
    Buffers,
    StagedTensor,
    checksum_in_place,
    stage,
    staged_tensors,
)

if TYPE_CHECKING:
    from graphtrain.storage.pieces import Piece

STATE_FILE = "state.msgpack"
LOCAL = "local"
_DEVICES = "devices"  # an entry of that section: file -> tensor -> device, for tensors that are not on the CPU

# Section -> name -> state.
Sections = Mapping[str, Mapping[str, Any]]
Parts = Mapping[str, Mapping[str, bytes]]
Bytes = bytes | memoryview


@uncollected()
def split(sections: Sections) -> tuple[dict[str, dict[str, bytes]], list[Tensors]]:
    """Split a state into parts, section -> name -> msgpack bytes, and the tensors to which they refer by name.

    Each resource has a tensor file of its name; every other section has one tensor file.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.
    """
    parts: dict[str, dict[str, bytes]] = {}
    files: dict[str, Tensors] = {}
    for section, values in sections.items():
        parts[section] = {}
        for name, value in sorted(values.items()):  # independent of their order in a graph or a `setup`
            file = _file_of(section, name, sections)
            path = name if section == "resources" else name_of_part(section, name)
            parts[section][name] = files.setdefault(file, Tensors(file)).pack(Encoder().encode(value, path))
    return parts, [tensors for tensors in files.values() if tensors.named]


def name_of_part(section: str, name: str) -> str:
    """The path of a part: ``"progress['step']"``."""
    return f"{section}[{name!r}]"


def _file_of(section: str, name: str, sections: Collection[str]) -> str:
    return name if section == "resources" and name not in {*sections, LOCAL} else section


def joined(parts: Parts, files: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, dict[str, Any]]:
    """The inverse of `split`, from its parts, and from tensors by file and name.

    Raises:
        ValueError, TypeError, AttributeError: they are not those of a state.
    """
    local = dict(parts.get(LOCAL, {}))
    tensors = {file: dict(named) for file, named in files.items()}
    for file, devices in msgpack.unpackb(local.pop(_DEVICES, b"\x80")).items():
        for name in devices.keys() & tensors.get(file, {}).keys():
            tensors[file][name] = _on_device(tensors[file][name], devices[name])

    def value_of(file: str, part: bytes) -> Any:
        return unpack(part, tensors.get(file), file)

    sections = {
        section: {name: value_of(_file_of(section, name, parts), part) for name, part in named.items()}
        for section, named in parts.items()
        if section != LOCAL
    }
    for key, part in local.items():
        section, _, name = key.partition("/")
        if section in sections:
            values = sections[section]
            values[name] = {**values.get(name, {}), **value_of(LOCAL, part)}
    return sections


def local_of(sections: Sections, essential: Sections) -> dict[str, dict[str, Any]]:
    """The section `local`: the entries of a state that are not in its essential part, by ``"section/name"``."""
    local = {}
    for section, values in sections.items():
        for name in [name for name in values if values[name] is not essential[section].get(name)]:
            kept = essential[section].get(name, {})
            local[f"{section}/{name}"] = {
                key: part for key, part in values[name].items() if key not in kept or kept[key] is not part
            }
    return {key: rest for key, rest in local.items() if rest}


def state_digest(sections: Sections) -> str:
    """The digest that a checkpoint of this state would have."""
    parts, files = split(sections)
    return _digest(parts, {tensors.file: checksum_in_place(tensors) for tensors in files})


def _digest(parts: Parts, checksums: Mapping[str, str]) -> str:
    """The digest of parts, and of tensor files given by their checksums."""
    pieces: list[Bytes] = []
    for section, named in parts.items():
        for name, part in named.items() if section != LOCAL else ():
            pieces += [f"{section}/{name}:{len(part)}\n".encode("utf-8", "surrogatepass"), part]
    pieces += [f"{file}:{checksums[file]}\n".encode() for file in sorted(checksums.keys() - {LOCAL})]
    return checksum_of(pieces)


def _device_name(device: torch.device) -> str:
    """The name of a device; that of the current one has no index, because it differs between the ranks of a host."""
    is_current = device.type == "cuda" and device.index in (None, torch.cuda.current_device())
    return device.type if is_current else str(device)


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Move a tensor to its device, if that exists here; otherwise it stays in host memory."""
    wanted = torch.device(device)
    is_here = wanted.type in DEVICES and (wanted.index or 0) < getattr(torch, wanted.type).device_count()
    return tensor.to(wanted) if is_here else tensor


@final
class StagedState:
    """A copy of the state of one rank, as the content of files, which training no longer changes.

    Arguments:
        sections: what the further training depends on.
        local: the rest, as `local_of` returns it.
        buffers: the memory to which tensors are copied; it must not be reused before this is written.
        weights: file -> the names of the tensors in it that are weights. Default: none.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.

    Attributes:
        parts: section -> name -> msgpack bytes.
        tensor_files: file -> its content.
        pieces: file -> name -> how the tensor is divided, for tensors that are sharded over ranks.
        abandoned: set to prevent that this becomes a checkpoint.
    """

    def __init__(
        self,
        sections: Sections,
        local: Mapping[str, Any],
        buffers: Buffers,
        weights: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._weights = weights
        self.parts, files = split({**sections, LOCAL: local} if local else sections)
        self.tensor_files: Mapping[str, memoryview] = stage(files, buffers)
        self.pieces: Mapping[str, Mapping[str, Piece]] = {each.file: each.pieces for each in files if each.pieces}
        self.abandoned = Event()
        devices = {
            tensors.file: {name: _device_name(each.device) for name, each in tensors.named.items() if not each.is_cpu}
            for tensors in files
        }
        if any(devices.values()):
            self.parts[LOCAL] = {**self.parts.get(LOCAL, {}), _DEVICES: msgpack.packb(devices)}

    @functools.cached_property
    def weight_that_is_not_finite(self) -> str:
        """The path of the first weight with an infinite or NaN value; empty if there is none."""
        for file, names in self._weights.items():
            for name, tensor in self.tensors(file).items():
                if name in names and not tensor.is_finite():
                    return f"{file}.{name}"
        return ""

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each part, and of each tensor that is not sharded, to compare with those of other ranks."""
        digests = {
            f"{file}/{name}": tensor.digest()
            for file in self.tensor_files
            for name, tensor in self.tensors(file).items()
            if name not in self.pieces.get(file, ())
        }
        for section, named in self.parts.items():
            digests |= {name_of_part(section, name): checksum_of([part]) for name, part in named.items()}
        return digests

    def digest(self, written: Mapping[str, Sequence[Any]]) -> str:
        """The digest of everything but the section `local`.

        Arguments:
            written: file name -> size and checksum of the files already written, which are not hashed again.
        """
        checksums = {}
        for file, data in self.tensor_files.items():
            size, known = written.get(file + TENSOR_SUFFIX, (None, ""))
            checksums[file] = known if size == len(data) else checksum_of([data])
        return _digest(self.parts, checksums)

    def tensors(self, file: str) -> dict[str, StagedTensor]:
        """The tensors of a file by name; empty if this rank does not have the file."""
        return staged_tensors(self.tensor_files[file]) if file in self.tensor_files else {}
