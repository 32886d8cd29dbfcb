"""What a judge is beside single raters, as sentences and tables: the same for scores, preferences, yes and no."""

from critic.page.blocks import Columns, Part, number, share
from eval_agreement.page.words import estimates, p_text, percent, points
from eval_agreement.raters import BesideRaters, RaterTest

_RATERS = Columns[RaterTest](
    ("Rater", lambda line: line.rater),
    ("n", lambda line: line.n),
    ("judge as close", lambda line: share(line.judge_advantage)),
    ("rater as close", lambda line: share(line.rater_advantage)),
    ("p", lambda line: p_text(line.p)),
    ("judge does as well", lambda line: "yes" if line.rejected else "no"),
    strong=lambda line: line.rejected,
)


def people_part(name: str, beside: BesideRaters) -> Part:
    """Empty where no item has two raters."""
    soft, agreement, test, tables = beside.soft, beside.raters, beside.replaces, []
    if agreement:
        caption = (
            f"Krippendorff’s alpha ({agreement.level}): {agreement.items} rated items, {agreement.raters} raters, "
            f"{agreement.ratings} ratings; left out: {agreement.single} with one rating, {agreement.failed} the judge "
            f"failed on."
        )
        both, change = agreement.with_judge, agreement.difference
        rows = {"people": agreement.people, "people and the judge": both, "difference": change}
        tables.append(estimates(caption, rows, points))
    if soft:
        shares = {"the judge": soft.judge, "another rater": soft.people, "an ideal judge": soft.ceiling}
        caption = "Chance that a rater drawn at random gives the rating of …"
        tables.append(estimates(caption, {**shares, "judge less rater": soft.difference}, percent))
    if test and test.lines:
        rates = f"winning rate {number(test.omega)}, average advantage probability {number(test.rho)}"
        caption = f"Alternative annotator test, epsilon {test.epsilon:g}: {rates}. Left out: {test.left_out} raters."
        tables.append(_RATERS.table(caption, test.lines))
    return Part(heading=name, readings=[found.reading for found in (soft, test) if found], tables=tables)
