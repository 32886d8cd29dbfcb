"""What a page is made of: sections of sentences and tables, the same for HTML and for Markdown."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from critic.counting.resampling import RESAMPLES, Interval
from eval_agreement.gate import Outcome


class Cell(Struct, frozen=True):
    """A number or word, and its interval in small print."""

    text: str
    small: str = ""
    title: str = ""


class Bar(Struct, frozen=True):
    """A value with its interval, to be drawn on the table's axis."""

    value: float
    interval: Interval | None


class Row(Struct, frozen=True, kw_only=True):
    """`about` says in small print what the row is; `strong` rows are what the table is about."""

    name: str
    cells: list[Cell]
    about: str = ""
    bar: Bar | None = None
    strong: bool = False


class Table(Struct, frozen=True, kw_only=True):
    """`head` names the first column and every cell. With `axis`, the rows' bars are drawn between its ends, behind
    the column number `drawn` (from 1). `folded` tables open on demand."""

    caption: str
    head: list[str]
    rows: list[Row]
    axis: tuple[float, float] | None = None
    drawn: int = 4
    folded: bool = False


class Block(Struct, frozen=True, kw_only=True):
    """What a section says of one sample."""

    sample: str
    readings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


class Section(Struct, frozen=True, kw_only=True):
    key: str
    heading: str
    blocks: list[Block]
    note: str = ""


def number(value: float | None, decimals: int = 3) -> str:
    return "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")


def interval(bounds: Interval | None, decimals: int = 2) -> str:
    """`0.95–1.10`, with "to" between negative bounds; empty where there is none."""
    if bounds is None:
        return ""
    low, high = (number(bound, decimals) for bound in bounds)
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}".replace("%", " %")


def shares(bounds: Interval | None) -> str:
    """An interval of a share, in per cent."""
    return f"{interval((100 * bounds[0], 100 * bounds[1]), 1)} %" if bounds else ""


def p_text(p: float | None) -> str:
    floor = 4 / RESAMPLES
    return "–" if p is None else f"< {floor:g}" if p <= floor else f"{p:.3f}"


def bar(value: float | None, bounds: Interval | None) -> Bar | None:
    return None if value is None else Bar(value, bounds)


def span(bars: Iterable[Bar | None], *, centred: bool = False) -> tuple[float, float]:
    """From 0 (or symmetric about it) to a round number beyond every bar."""
    ends = [abs(end) for bar in bars if bar for end in (bar.value, *(bar.interval or ()))]
    furthest = max(ends, default=1.0)
    step = next(step for step in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) if furthest <= 10 * step)
    end = step * -(-furthest // step) or step
    return (-end, end) if centred else (0.0, end)


def part_name(part: str) -> str:
    """The word for a property."""
    return {"lang": "language"}.get(part, part)


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def gate_sections(outcomes: Sequence[Outcome]) -> list[Section]:
    """One section, or none without a gate."""
    made = Section(
        key="gate",
        heading="Gate",
        blocks=[Block(sample="", readings=[outcome.text for outcome in outcomes])],
        note="Decided on the worse end of the 95 % interval.",
    )
    return [made] if outcomes else []
