"""Build the page's parts on the effects of attacks and of image arms on a judge."""

from collections.abc import Sequence
from pathlib import Path

from critic.human_scored import BLIND
from critic.page.blocks import Columns, Part, Table, axis_of, bar, number
from eval_agreement.measures.attacks import Injection, Looking, VariantEffect
from eval_agreement.page.scores import differences_table
from eval_agreement.page.words import percent, points

_VARIANTS = Columns[VariantEffect](
    ("Variant", lambda effect: effect.name),
    ("change", lambda effect: points(effect.change, 2)),
    ("moved", lambda effect: percent(effect.moved)),
    ("denied", lambda effect: percent(effect.denied)),
    ("n", lambda effect: effect.change.n),
    ("failed", lambda effect: effect.failed),
    about=lambda effect: effect.aim,
    bar=lambda effect: bar(effect.change.value, effect.change.interval),
)


def _variants_table(caption: str, effects: Sequence[VariantEffect]) -> Table:
    return _VARIANTS.table(caption, effects, axis=axis_of(map(_VARIANTS.bar, effects), centred=True), chart_column=2)


def injection_part(injection: Injection) -> Part:
    """Build the part on attacks from one file of attacked answers."""
    caption = (
        f"{injection.answers} answers; without attack {injection.judge} gives them {number(injection.clean.value)} on "
        f"average ({injection.answers - injection.clean.n} failed)."
    )
    table = _variants_table(caption, injection.attacks)
    return Part(heading=injection.judge, readings=[injection.reading], tables=[table])


def looking_part(path: Path, looking: Looking) -> Part:
    """Build the part on whether a judge looks at images. `path`: the file of judged arms, for the heading."""
    caption = f"{looking.answers} answers with images; the image reached the judge in {looking.reached}."
    tables = [_variants_table(caption, [looking.swap, looking.edit])]
    # Without human scores there is no agreement to compare.
    if looking.differences:
        tables.append(differences_table("Agreement with people.", ("seeing", BLIND), looking.differences))
    return Part(heading=f"{looking.judge}, {path.stem}", readings=[looking.reading], tables=tables)
