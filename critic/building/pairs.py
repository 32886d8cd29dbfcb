"""A page of near-duplicates in pairs, for whoever wants to see what a threshold takes away."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from critic.building.pictures import DroppedImage
from critic.images import ImageError, decoded, eight_bits
from critic.page import page
from critic.page.blocks import Picture, Section, Table, row

SHOWN = 60
"""Pairs on the page, the most distant first: those are the doubtful ones."""

SIDE = 180
"""Pixels of the longer side of a small picture."""


def write(path: Path, root: Path, dropped: Sequence[DroppedImage], bits: int) -> None:
    """The page of all near-duplicates that were left out, beside the ones that stayed."""
    near = sorted(
        (one for one in dropped if one.distance is not None), key=lambda one: (-(one.distance or 0), one.path)
    )
    counts = Counter(one.distance or 0 for one in near)
    table = Table(
        caption="Near-duplicates by distance",
        head=["bits of 64 that differ", "images left out"],
        rows=[row(str(distance), count) for distance, count in sorted(counts.items())],
    )
    shown = [_pair(root, one) for one in near[:SHOWN]]
    readings = [f"{len(near)} images were left out because another looks alike: at most {bits} bits of 64 differ."]
    if len(near) > SHOWN:
        readings.append(f"The {SHOWN} most distant pairs are shown; all are in dropped.jsonl.")
    section = Section(heading="Near-duplicates", readings=readings, tables=[table] if near else [], pictures=shown)
    page.write(path, "Near-duplicates", "On the left what stayed, on the right what was left out.", [section], {})


def _pair(root: Path, drop: DroppedImage) -> Picture:
    """Both images side by side, held by the page itself."""
    caption = f"{drop.distance} bits: {drop.of} stayed, {drop.path} was left out"
    svg = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {2 * SIDE + 20} {SIDE}"})
    svg.set("role", "img")
    svg.set("aria-label", caption)
    for place, name in enumerate((drop.of or drop.path, drop.path)):
        place_of = {"x": str(place * (SIDE + 20)), "y": "0", "width": str(SIDE), "height": str(SIDE)}
        ElementTree.SubElement(svg, "image", {**place_of, "href": _small(root / name)})
    return Picture(caption, ElementTree.tostring(svg, encoding="unicode"))


def _small(path: Path) -> str:
    """A small JPEG of an image as a data URI; nothing where it is gone."""
    try:
        with decoded(path.read_bytes()) as image:
            small = eight_bits(image).convert("RGB")
            small.thumbnail((SIDE, SIDE))
            out = io.BytesIO()
            small.save(out, "JPEG", quality=80)
    except (ImageError, OSError):
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
