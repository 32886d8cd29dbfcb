"""What became of a judge's scores, as sections of sentences and tables."""

from critic.page.blocks import Columns, Part, Section, bar, number
from eval_agreement.page.words import estimates, points, section
from eval_agreement.two_judges import Change, Conversion, Converted

_CONVERTED = Columns[Converted](
    ("Mean of", lambda line: line.name),
    ("n", lambda line: line.mean.n),
    ("before", lambda line: number(line.score)),
    ("converted", lambda line: points(line.mean, 2)),
    ("rank", lambda line: "–" if line.rank is None else "{}–{}".format(*line.rank)),
    bar=lambda line: bar(line.mean.value, line.mean.interval),
)


def change_sections(name: str, found: Change) -> list[Section]:
    parts = {"of the mean": found.total, "by the judge": found.judge, "by the model": found.model}
    table = estimates("Mean score now less then, in points.", parts, lambda change: points(change, 2))
    return section("since", [Part(heading=name, readings=[found.reading], tables=[table])])


def exchange_sections(found: list[Conversion]) -> list[Section]:
    parts = []
    for one in found:
        caption = f"{one.source}'s scores on {one.target}'s scale, by {one.anchors} answers that both scored."
        table = _CONVERTED.table(caption, one.lines, axis=(1.0, 10.0), drawn=3)
        parts.append(Part(heading=f"{one.source} to {one.target}", tables=[table]))
    return section("exchange", parts)
