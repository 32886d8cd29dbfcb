"""What became of a judge's scores, as sections of sentences and tables."""

from critic.page.blocks import Columns, Part, Section
from critic.stats.estimate import Estimate
from eval_agreement.page.words import p_text, points, section
from eval_agreement.since import Change

_CHANGES = Columns[tuple[str, Estimate]](
    ("Change", lambda pair: pair[0]),
    ("points", lambda pair: points(pair[1], 2)),
    ("p", lambda pair: p_text(pair[1].p_value)),
    ("answers", lambda pair: pair[1].n),
)


def change_sections(name: str, found: Change) -> list[Section]:
    parts = {"of the mean": found.total, "by the judge": found.judge, "by the model": found.model}
    table = _CHANGES.table("Mean score now less then, in points.", parts.items())
    return section("since", [Part(heading=name, readings=[found.reading], tables=[table])])
