"""The settings of a run: those of the command line, and those of a TOML file, `--config`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphtrain.command.settings import split_settings
from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph.read_toml import Lines


@dataclass(frozen=True)
class Settings:
    """What a run is set up with.

    Attributes:
        arguments: of `setup`.
        parameters: of nodes, by ``"node.parameter"``.
        places: where those are that come from a file: ``"settings.toml:3"``.
    """

    arguments: Mapping[str, Any]
    parameters: Mapping[str, Any]
    places: Mapping[str, str]

    @classmethod
    def of(cls, words: Sequence[str], config: Path | None) -> Settings:
        """The settings of the command line, and those of a file that it does not set.

        Raises:
            UsageError: a word is no setting, or the file cannot be read.
        """
        arguments, parameters = split_settings(words)
        if config is None:
            return cls(arguments, parameters, {})
        lines, table = _read(config)
        of_nodes = {node: inner for node, inner in table.items() if isinstance(inner, dict)}
        keys: dict[str, tuple[str, ...]] = {
            f"{node}.{name}": (node, name) for node, inner in of_nodes.items() for name in inner
        }
        keys |= {name: (name,) for name in table.keys() - of_nodes.keys()}
        return cls(
            {name: value for name, value in table.items() if name not in of_nodes} | arguments,
            {name: of_nodes[key[0]][key[1]] for name, key in keys.items() if len(key) > 1} | parameters,
            {
                name: f"{config}:{lines.of(*key)}"
                for name, key in keys.items()
                if name not in arguments.keys() | parameters.keys()
            },
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the place in the file to an error about a setting."""
        try:
            yield
        except GraphtrainError as error:
            for name, place in self.places.items():
                if re.search(rf"(?<![\w./]){re.escape(name)}(?![\w/])", error.message):
                    error.add_note(f"{place} sets `{name}`")
            raise


def _read(config: Path) -> tuple[Lines, dict[str, Any]]:
    """A TOML file: the lines of its keys, and its table."""
    try:
        text = config.read_text(encoding="utf-8")
        return Lines(text), tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--config: `{config}` cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config: `{config}` is not TOML: {error}", 'text is quoted, as in name = "adam"') from None
