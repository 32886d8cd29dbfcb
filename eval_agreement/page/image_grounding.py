"""Whether the judge looks at the images, as a section: the arms' effects, and the worst rows beside their pictures."""

from collections.abc import Mapping
from pathlib import Path

from markupsafe import escape

from critic import jsonl
from critic.errors import UsageError
from critic.images import ImageError, Images
from critic.page.blocks import Part, Picture, Section, Table, number, row
from eval_agreement.image_grounding import NOTICED, Looking, Seen
from eval_agreement.page.words import measured, percent, points, section

THUMBNAIL = 120_000
"""Pixels of a picture on the page, at most."""


def looking_sections(found: Mapping[Path, Looking]) -> list[Section]:
    parts = []
    for path, one in found.items():
        lines = [
            row(
                f"{each.metric}, seeing less blind",
                measured(each.value, each.interval, None),
                number(each.first),
                number(each.second),
            )
            for each in one.differences
        ]
        effects = [
            row("another image: points lost by right answers", points(one.swap, 2), "", ""),
            row("one fact edited: points lost by right answers", points(one.edit, 2), "", ""),
            row(f"edits that cost {NOTICED:g} or more", percent(one.noticed), "", ""),
        ]
        caption = f"{one.answers} answers with images; the image reached the judge in {one.reached}."
        table = Table(caption=caption, head=["", "value", "seeing", "blind"], rows=[*lines, *effects])
        pictures = [_picture(each, _images(path)) for each in one.worst]
        parts.append(
            Part(heading=f"{one.judge}, {path.stem}", readings=[one.reading], tables=[table], pictures=pictures)
        )
    return section("looking", parts)


def _images(judged: Path) -> Images | None:
    """Where the judged file says its images are."""
    root = (jsonl.facts(judged).get("images") or {}).get("data_root")
    try:
        return Images(Path(root), resize_to=THUMBNAIL) if root else None
    except UsageError:
        return None


def _picture(seen: Seen, images: Images | None) -> Picture:
    scores = ", ".join(f"{name} {number(score, 1)}" for name, score in seen.scores.items())
    said = [f"{seen.id}: people {number(seen.human, 1)}; judge {scores}.", f"Asked: {seen.question}"]
    said += [f"Answer: {seen.answer}", *([f"Edited: {seen.edited}"] if seen.edited else [])]
    said += [f"The judge: {seen.reason}"] if seen.reason else []
    drawn = []
    for place, name in enumerate(seen.images[:3]):
        try:
            if images is None:
                raise ImageError("image_missing", name)
            uri = images.load(name).uri
            drawn.append(f'<image href="{escape(uri)}" x="{place * 250}" width="240" height="180"/>')
        except ImageError as error:
            drawn.append(f'<text x="{place * 250}" y="90">{escape(str(error)[:60])}</text>')
    width = 250 * max(1, len(drawn))
    svg = f'<svg viewBox="0 0 {width} 180" style="max-width:{width}px" role="img">{"".join(drawn)}</svg>'
    return Picture(caption=" ".join(said), svg=svg)
