"""What a command prints: tables, and lines on standard error. rich is imported where a table is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from graphtrain.printable import one_line, printable, shown
from graphtrain.ranks.current import current_ranks
from graphtrain.report.numbers import metric

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def notify(line: str) -> None:
    """Print a line on standard error, at once."""
    print(printable(line), file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def ignore(line: str) -> None:
    """Print nothing; used in place of `notify`."""


def notify_once(*, quiet: bool = False) -> Callable[[str], None]:
    """`notify` on the rank that prints for all, and `ignore` on the others."""
    return ignore if quiet or current_ranks().rank else notify


def console(*, quiet: bool = False) -> Console:
    """Standard output, for tables and lines with markup."""
    from rich.console import Console

    return Console(highlight=False, quiet=quiet)


def escaped(text: str) -> str:
    """Untrusted text for a console: printable, with markup escaped."""
    from rich.markup import escape

    return escape(printable(text))


def print_lines(printed: Console, lines: Iterable[str]) -> None:
    """Print lines of text without markup, and without wrapping them."""
    for line in lines:
        printed.print(escaped(line), soft_wrap=True)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    styles: Iterable[str | None] = (),
) -> Table:
    """Rows of text below headings, which are left out if all are empty.

    Arguments:
        right: the columns of numbers.
        whole: other columns whose texts are not wrapped.
        styles: of the rows. Default: none.
    """
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for column in columns:
        justify: Any = "right" if column in right else "left"
        drawn.add_column(column, justify=justify, no_wrap=column in right or column in whole, overflow="fold")
    remaining_styles = iter(styles)
    for row in rows:
        drawn.add_row(*map(escaped, row), style=next(remaining_styles, None))
    return drawn


def aligned(columns: Sequence[str], rows: Iterable[Sequence[str]], width: int = 0) -> Iterator[str]:
    """Rows as lines of text: at least two spaces separate cells, which contain single ones; an empty cell is ``-``.

    A line that is longer than a `width` is shortened where the widest columns are.

    >>> for line in aligned(["run", "lr"], [["runs/a", "0.1"], ["runs/b", ""]]):
    ...     print(line)
    run     lr
    runs/a  0.1
    runs/b  -
    """
    lines = [[" ".join(one_line(cell).split()) or "-" for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    while width and sum(widths) + 2 * len(widths) - 2 > max(width, 10 * len(widths)):
        widths[widths.index(max(widths))] -= 1
    for line in lines:
        yield "  ".join(one_line(cell, most).ljust(most) for cell, most in zip(line, widths, strict=True)).rstrip()


def shown_number(value: Any) -> str:
    """An untrusted value that should be a metric."""
    return metric(value) if isinstance(value, int | float) else shown(value)


def plural(number: int, thing: str) -> str:
    """A number with its noun.

    >>> plural(1, "error"), plural(2, "error")
    ('1 error', '2 errors')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"
