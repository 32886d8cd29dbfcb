"""Select the images of a benchmark from a folder: hashes, duplicates, a sample, and a reason for each image left out
(MultiVerse §2.1, step 1; AlignMMBench §3.2). Pillow and SciPy are imported only to compute hashes."""

import hashlib
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from tqdm import tqdm

from critic import jsonl
from critic.errors import UsageError, replace_surrogates
from critic.images import MAX_BYTES, ImageError, convert_to_8_bits, decode_image

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif")

NEAR = 6
"""Largest number of differing hash bits of near-duplicates. Two unrelated photographs differ in about 32 of 64."""

OTHER = "Other"
"""Name of the category into which rare ones are merged."""


class ImageFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image by its path in the folder. `phash` is 64 bits in hexadecimal, or None with a `failure`."""

    path: str
    bytes: int
    md5: str
    width: int = 0
    height: int = 0
    phash: str | None = None
    failure: str | None = None
    detail: str | None = None


class DroppedImage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image left out at a step for a reason.

    For a near-duplicate, `of` is the path of the image that is kept, and `distance` counts the differing hash bits.
    """

    path: str
    step: str
    reason: str
    of: str | None = None
    distance: int | None = None


def compute_phash(image: Any) -> str:
    """Return the 64-bit perceptual hash of a Pillow image as 16 hexadecimal digits, equal to `imagehash.phash`.

    Each bit says whether one of the 64 lowest frequencies (discrete cosine transform of the 32 x 32 grey image) is
    above their median. Images with 16 bits or transparency are converted first (`convert_to_8_bits`).

    The hash also equals that of imagehash 4.3.2 if many frequencies are equal to the median:

    >>> from PIL import Image
    >>> compute_phash(Image.new("L", (64, 64), 200)), compute_phash(Image.linear_gradient("L"))
    ('8000000000000000', '8000800080008000')
    """
    from PIL import Image  # noqa: PLC0415 - not part of a plain installation
    from scipy import fft  # noqa: PLC0415 - takes half a second, which the other commands need not wait

    grey = np.asarray(convert_to_8_bits(image).convert("L").resize((32, 32), Image.Resampling.LANCZOS))
    low = fft.dct(fft.dct(grey, axis=0), axis=1)[:8, :8]
    return np.packbits(low > np.median(low)).tobytes().hex()


def hash_image(root: Path, name: str) -> ImageFile:
    """Return the hashes and size of the image `name` under `root`. If it cannot be read, the result has a `failure`."""
    facts: dict[str, Any] = {"path": name, "bytes": 0, "md5": ""}
    try:
        there = (root / name).stat()
        if not stat.S_ISREG(there.st_mode):  # reading a pipe would block until someone writes to it
            raise ImageError("image_unreadable", "no file, but a pipe, a socket or a device")
        if there.st_size > MAX_BYTES:
            raise ImageError("image_too_large", f"more than {MAX_BYTES:,} bytes")
        data = (root / name).read_bytes()
        facts |= {"bytes": len(data), "md5": hashlib.md5(data, usedforsecurity=False).hexdigest()}
        with decode_image(data) as image:
            return ImageFile(**facts, width=image.width, height=image.height, phash=compute_phash(image))
    except (ImageError, OSError) as error:
        failure = error.failure if isinstance(error, ImageError) else "image_missing"
        return ImageFile(**facts, failure=failure, detail=str(error))


def find_images(root: Path) -> list[str]:
    """Return the sorted paths of all images under a folder, relative to it; images are recognised by their suffix.

    Raises UsageError if there is no image, or if a name is not UTF-8.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder")
    paths = (Path(folder, file) for folder, _, files in os.walk(root) for file in files)
    images = (path for path in paths if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    names = sorted(path.relative_to(root).as_posix() for path in images)
    if not names:
        raise UsageError(f"{root}: no image; expected {', '.join(SUFFIXES)}")
    if strange := [name for name in names if name != replace_surrogates(name)]:
        raise UsageError(f"{root}: the name {os.fsencode(strange[0])!r} is not UTF-8; rename the file")
    return names


def scan(root: Path, out: Path) -> list[ImageFile]:
    """Hash all images under `root`, in the order of their names, and write the results to the JSONL file `out`.

    Each result is written at once, so that a rerun resumes. It retries unreadable images and images whose size has
    changed.
    """
    names = find_images(root)
    jsonl.repair(out)
    there = out.is_file() and out.stat().st_size
    previous = {image.path: image for _, image in jsonl.read(out, ImageFile)} if there else {}

    def look_up(name: str) -> ImageFile:
        """Return the record of an earlier run if the file still has the recorded size, else hash the image."""
        before, path = previous.get(name), root / name
        # Same size is taken for the same file: hashing it again would cost what a resume saves.
        if before is not None and before.md5 and path.is_file() and path.stat().st_size == before.bytes:
            return before
        return hash_image(root, name)

    images = list[ImageFile]()
    # Pillow, hashlib and SciPy release the interpreter's lock for most of their work, so threads use all cores.
    with jsonl.Appender(out) as file, ThreadPoolExecutor(os.cpu_count()) as pool:
        for image in tqdm(pool.map(look_up, names), total=len(names), desc="hash", unit="image", disable=None):
            images.append(image)
            # An unchanged image has its line already.
            if image != previous.get(image.path):
                file.append(image)
    jsonl.write(out, images)  # drops the lines of images that were replaced or removed
    jsonl.write_sidecar(out, {"folder": str(root), "images": len(images)})
    return images


def find_duplicates(images: Sequence[ImageFile]) -> list[DroppedImage]:
    """Return the near-duplicates to drop: their hash differs by at most NEAR bits from the hash of an image that is
    kept.

    Of near-duplicates, the image with the most pixels, then the most bytes, is kept. Each dropped image is compared
    with kept ones only, so a chain of small differences cannot remove an image that is unlike all kept ones.

    Images a and c are unlike, and b is near both. Since b is dropped, c is kept:

    >>> def image(path, phash, side):
    ...     return ImageFile(path=path, bytes=1, md5=path, width=side, height=side, phash=f"{phash:016x}")
    >>> a, b, c = image("a", 0b0, 300), image("b", 0b1111, 200), image("c", 0b11111111, 100)
    >>> for dropped in find_duplicates([c, image("d", 0b0, 300), b, a]):
    ...     print(dropped.path, dropped.step, dropped.reason, dropped.of, dropped.distance)
    d duplicates near_duplicate a 0
    b duplicates near_duplicate a 4
    """
    ranked = sorted(images, key=lambda image: (-image.width * image.height, -image.bytes, image.path))
    dropped, kept, hashes = list[DroppedImage](), list[str](), np.zeros(len(ranked), np.uint64)
    for image in ranked:
        own = np.uint64(int(image.phash or "0", 16))
        distances = np.bitwise_count(hashes[: len(kept)] ^ own)
        if kept and distances.min() <= NEAR:
            of, distance = kept[int(distances.argmin())], int(distances.min())
            gone = DroppedImage(path=image.path, step="duplicates", reason="near_duplicate", of=of, distance=distance)
            dropped.append(gone)
        else:
            hashes[len(kept)] = own
            kept.append(image.path)
    return dropped


def find_unusable(root: Path, images: Iterable[ImageFile], min_side: int) -> Iterator[DroppedImage]:
    """Yield the images to drop because they cannot be decoded, are links out of `root`, or are too small.

    `min_side` is the smallest allowed side in pixels.
    """
    for image in images:
        reason = image.failure
        # As no image outside of the folder is ever sent (`Images.load`).
        if reason is None and not (root / image.path).resolve().is_relative_to(root.resolve()):
            reason = "image_outside_root"
        elif reason is None and min(image.width, image.height) < min_side:
            reason = "too_small"
        if reason is not None:
            yield DroppedImage(path=image.path, step="files", reason=reason)


def merge_rare(categories: Mapping[str, str], rare: int) -> dict[str, str]:
    """Return the category of each image path, with categories of fewer than `rare` images replaced by OTHER.

    >>> merge_rare({"1.png": "Chart", "2.png": "Chart", "3.png": "Map"}, rare=2)
    {'1.png': 'Chart', '2.png': 'Chart', '3.png': 'Other'}
    """
    counts = Counter(categories.values())
    return {path: name if counts[name] >= rare else OTHER for path, name in categories.items()}


def draw_sample(categories: Mapping[str, str], cap: int) -> set[str]:
    """Return at most `cap` image paths, sampled from each category in proportion to its size (MultiVerse §2.1).

    `categories` maps paths to categories. Numbers per category are rounded by largest remainders. The sample is
    deterministic and does not depend on the order of the paths.

    >>> def counts(cap, **sizes):
    ...     categories = {f"{name}{number}": name for name, size in sizes.items() for number in range(size)}
    ...     drawn = draw_sample(categories, cap)
    ...     assert drawn == draw_sample(dict(reversed(categories.items())), cap) and drawn <= categories.keys()
    ...     return [sum(path.startswith(name) for path in drawn) for name in sizes]
    >>> counts(20, x=60, y=30, z=10), counts(4, x=5, y=3, z=3), counts(100, x=60, y=30, z=10)
    ([12, 6, 2], [2, 1, 1], [60, 30, 10])
    """
    # Nothing to draw: proportions would only lose images to rounding.
    if len(categories) <= cap:
        return set(categories)
    by_category = defaultdict[str, list[str]](list)
    for path in sorted(categories, key=lambda path: hashlib.sha256(f"0/{path}".encode()).digest()):
        by_category[categories[path]].append(path)
    exact = {name: cap * len(paths) / len(categories) for name, paths in by_category.items()}
    shares = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: (shares[name] - exact[name], name))[: cap - sum(shares.values())]:
        shares[name] += 1
    return {path for name, paths in by_category.items() for path in paths[: shares[name]]}
