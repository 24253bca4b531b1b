"""Text of others on a terminal."""

from __future__ import annotations

from graphtrain.display.printable import printable as printable
