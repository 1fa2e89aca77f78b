"""Tables that fit the terminal: the least important columns go first, and no id and no number is ever cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_EDGES, _BETWEEN = 2 + 2, 3
"""Characters a table spends: both borders with their blanks, and between two columns."""


class Dull(Enum):
    """When a column says nothing, beside a value that all its cells have."""

    NEVER = "never"
    SAME = "all cells are the same"


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: its heading, and a row's cell as text (rich markup is not interpreted) or as rich's Text.

    Where the terminal is too narrow, columns whose cells are all ``dull`` go first, then those of the highest ``rank``;
    rank 0 never goes. A column that is ``whole`` stays on one line; others are broken into lines, never cut.
    """

    heading: str
    cell: Callable[[Any], object]
    right: bool = False
    rank: int = 0
    dull: object = Dull.NEVER
    whole: bool = False
    missed: bool = True
    """Whether people are told when it was left out."""


@dataclass(slots=True, eq=False)
class _Drawn:
    """A column with its cells."""

    column: Column
    cells: list[Text] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Characters it needs so that nothing is broken."""
        headings = [len(line) for line in self.column.heading.splitlines()]
        return max([0, *headings, *(cell.cell_len for cell in self.cells)])

    @property
    def name(self) -> str:
        """What people are told of it when it was left out: its heading, and what all its cells say."""
        heading = " ".join(self.column.heading.split())
        return f"{heading} ({self.cells[0].plain or 'none'})" if self.dull else heading

    @property
    def dull(self) -> bool:
        """Whether its cells say nothing."""
        if self.column.dull is Dull.NEVER:
            return False
        texts = {cell.plain for cell in self.cells}
        return len(texts) == 1 and (self.column.dull is Dull.SAME or texts == {shown(self.column.dull)})


def fitted(rows: Sequence[Any], columns: Sequence[Column], width: int, *, title: str, caption: str = "") -> Table:
    """The rows as a table no wider than ``width``. Its caption says which columns were left out."""
    from rich.table import Table

    made = [_Drawn(column, [_text(column.cell(row)) for row in rows]) for column in columns]
    drawn, gone = list(made), list[_Drawn]()
    while _needed(drawn) > width and (least := _least(drawn)) is not None:
        drawn.remove(least)
        gone.append(least)
    # A wide one that had to go may have made room for narrow ones.
    for one in [one for one in reversed(gone) if not one.dull]:
        with_it = [other for other in made if other in drawn or other is one]
        if _needed(with_it) <= width:
            drawn = with_it
    left_out = [one.name for one in gone if one not in drawn and one.column.missed]
    table = Table(title=title, title_justify="left", header_style="bold", caption_justify="left")
    whole = sum(one.width if one.column.whole else 1 for one in drawn) + _around(len(drawn)) <= width
    for one in drawn:
        # Rich would cut words that are too long; folded, everything can be read and copied.
        table.add_column(
            one.column.heading, justify="right" if one.column.right else "left", overflow="fold",
            no_wrap=one.column.whole and whole,
        )  # fmt: skip
    for cells in zip(*(one.cells for one in drawn), strict=True):
        table.add_row(*cells)
    missing = f"left out for this width: {', '.join(left_out)}; --json has everything" if left_out else ""
    table.caption = "; ".join(filter(None, (caption, missing))) or None
    return table


def _needed(drawn: Sequence[_Drawn]) -> int:
    return sum(one.width for one in drawn) + _around(len(drawn))


def _around(columns: int) -> int:
    return _EDGES + _BETWEEN * max(0, columns - 1)


def _least(drawn: Sequence[_Drawn]) -> _Drawn | None:
    """The column to go next: a dull one, else the one of the highest rank; the rightmost of equals."""
    able = [one for one in drawn if one.dull or one.column.rank]
    return max(reversed(able), key=lambda one: (one.dull, one.column.rank), default=None)


def _text(cell: object) -> Text:
    from rich.text import Text

    return cell if isinstance(cell, Text) else Text(shown(cell))


def shown(value: object) -> str:
    """A cell's text: nothing for None, moments to the second, numbers with at most two decimals."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}".rstrip("0").rstrip(".")
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return str(value)
