"""A stand-in for the program ``dot``, by pygraphviz: DOT on standard input, a drawing on standard output.

It runs in a process of its own because the libraries write their complaints straight to the standard error of the
process, and so that nothing in a drawing can end a run. It imports nothing from graphtrain.
"""

from __future__ import annotations

import sys


def main() -> None:
    from pygraphviz import AGraph

    drawing = AGraph(string=sys.stdin.buffer.read().decode()).draw(format=sys.argv[1], prog="dot")
    sys.stdout.buffer.write(drawing)


if __name__ == "__main__":
    main()
