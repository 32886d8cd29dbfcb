"""Videos: frames at even times with their times, from the file to the request, the judgment and the page."""

import base64
import io
import threading
import wave
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import Servers, assert_one_line_error, completion, human_row, read_jsonl, run, sample, write_jsonl

av = pytest.importorskip("av", reason="needs PyAV")
Picture = pytest.importorskip("PIL.Image", reason="needs Pillow")

from critic import benchmarks, jsonl  # noqa: E402
from critic import images as images_module  # noqa: E402
from critic.images import ImageError, Images  # noqa: E402
from critic.tables import rows  # noqa: E402

STEADY = [number / 25 for number in range(126)]
"""Times of the frames of five seconds."""

UNEVEN = [*STEADY[:50], 2, 2.5, 3, 3.5, 4, 4.5, 5]
VERDICT = '{"Rating":7,"Reason":"seen"}'


def film(path: Path, times: list[float] = STEADY, begins: int = 0, turned: int = 0) -> Path:
    """Write a video whose frames are as bright as they are late, by 40 a second, with a white corner.

    `begins`: the time of the first frame in seconds. A Matroska file has no duration and no index, as if it were live.
    """
    path.parent.mkdir(exist_ok=True)
    with av.open(str(path), "w", options={"live": "1"} if path.suffix == ".mkv" else {}) as out:
        stream = out.add_stream({".webm": "libvpx", ".avi": "mpeg4"}.get(path.suffix, "libx264"), rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, "yuv420p", 30
        stream.codec_context.time_base = Fraction(1, 1000)
        if turned:
            stream.set_display_rotation(turned)
        for time in times:
            pixels = np.full((48, 64, 3), int(time * 40), "uint8")
            pixels[:16, :16] = 255
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts, frame.time_base = round((begins + time) * 1000), Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def shade(uri: str) -> int:
    """Return the brightness of a sent picture."""
    data = base64.b64decode(uri.partition(",")[2])
    return int(Picture.open(io.BytesIO(data)).convert("L").getpixel((48, 40)))


@pytest.mark.parametrize("begins", [0, 1000])
@pytest.mark.parametrize("times", [STEADY, UNEVEN], ids=["steady", "uneven"])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm", "a.ts", "a.avi", "a.mov", "a.flv"])
def test_frames_are_even_and_their_times_true(tmp_path: Path, times: list[float], name: str, begins: int) -> None:
    if name == "a.avi" and (times is UNEVEN or begins):
        pytest.skip("AVI knows no times")
    film(tmp_path / name, times, begins)
    for count in (1, 2, 5, 8):
        frames = Images(tmp_path, frames=count).load(f"video:{name}").frames
        found = [float(frame.time.removesuffix(" s")) for frame in frames]
        # Nearest to the even moments, and rounded; no further apart than the frames are.
        assert found == pytest.approx([*np.linspace(0, 5, count)], abs=0.3 if times is UNEVEN else 0.07)
        assert [shade(frame.uri) for frame in frames] == pytest.approx([40 * time for time in found], abs=5)


def test_short_and_turned_videos(tmp_path: Path) -> None:
    cases = {(0.0,): ["0.0 s"], (0.0, 1.0, 2.0): ["0.0 s", "1.0 s", "2.0 s"], (0, 0.04): ["0.00 s", "0.04 s"]}
    for times, shown in cases.items():
        loaded = Images(tmp_path).load(f"video:{film(tmp_path / 'short.mp4', [*times]).name}")
        assert [frame.time for frame in loaded.shown] == shown
    small = Images(tmp_path, resize_to=300).load(f"video:{film(tmp_path / 'turned.mp4', turned=90).name}")
    picture = Picture.open(io.BytesIO(small.data))
    assert picture.width < picture.height and picture.width * picture.height <= 300 and small.resized
    assert picture.getpixel((1, picture.height - 2))[0] > 200, "by 90 degrees to the left"


def test_what_is_no_video_is_refused_by_name(tmp_path: Path) -> None:
    """FFmpeg would take a text for a film, and a playlist for the files that it names."""
    root = film(tmp_path / "root/fine.ts").parent
    (root / "half").write_bytes(film(tmp_path / "whole.mp4").read_bytes()[:2000])
    (root / "text.txt").write_bytes(b"hello " * 400)
    (root / "list.m3u8").write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{root / 'fine.ts'}\n", "utf-8")
    (root / "parts.ffconcat").write_text("ffconcat version 1.0\nfile fine.ts\n", "utf-8")
    with wave.open(str(root / "sound"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\0" * 8000)
    expected = dict.fromkeys(("half", "text.txt", "list.m3u8", "parts.ffconcat", "sound"), "image_unreadable")
    for name, failure in {**expected, "none": "image_missing", "../whole.mp4": "image_outside_root"}.items():
        with pytest.raises(ImageError, match=f"^video:{name}: ") as caught:
            Images(root).load(f"video:{name}")
        assert caught.value.failure == failure and str(tmp_path) not in str(caught.value)


def test_a_video_is_decoded_once_for_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film(tmp_path / "a.mp4")
    images, sample_frames = Images(tmp_path), Mock(wraps=images_module._sample_frames)
    monkeypatch.setattr(images_module, "_sample_frames", sample_frames)
    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        loaded = [*pool.map(lambda _: (barrier.wait(), images.load("video:a.mp4"))[1], range(8))]
    assert sample_frames.call_count == 1 and all(image is loaded[0] for image in loaded)


def sent(server: Any) -> list[Any]:
    """Return the parts of the first request, images as their brightness."""
    parts = server.requests[0]["messages"][-1]["content"]
    return [part["text"] if part["type"] == "text" else shade(part["image_url"]["url"]) for part in parts]


def test_a_judge_sees_the_frames_and_their_times(tmp_path: Path, scripted: Servers) -> None:
    """A row whose video is not to be had fails by name. Another number of frames is another way to judge."""
    for name in ("a.mp4", "b.mp4"):
        film(tmp_path / name)
    (tmp_path / "torn.mp4").write_bytes(b"no video")
    columns = {"image": None, "reference": None, "flags": ["no_reference"]}
    shown = [human_row(n, **columns, video=name) for n, name in enumerate(("a.mp4", "b.mp4", "torn.mp4"))]
    file, server = write_jsonl(tmp_path / "rows.jsonl", shown), scripted(lambda _: completion(VERDICT))
    words = ["critic", "judge", file, "--judge", server.url, "--score", "argmax", "--images", "show"]
    out = tmp_path / "out.jsonl"
    done = run(*words, "--out", out, "--frames", 4, "--max-failed", "0.5", code=0)
    front, *times, behind = sent(server)
    assert times[::2] == ["0.0 s", "1.7 s", "3.3 s", "5.0 s"] and front.endswith("# Question\n")
    assert times[1::2] == pytest.approx([0, 67, 133, 200], abs=5) and behind.startswith("> How many")
    judged = sorted(read_jsonl(out), key=lambda line: str(line["sample"]))
    assert [line.get("images", 0) for line in judged] == [4, 4, 0] and "1 times" not in done.stderr
    assert judged[2]["verdict"]["failure"] == "image_unreadable" and "leave the row out" in judged[2]["detail"]
    facts = jsonl.facts(out)
    assert facts["images"]["frames"] == facts["setup"]["decoding"]["frames"] == 4
    assert_one_line_error(run(*words, "--out", out, "--max-failed", "0.5"), "frames=4", "choose another --out")
    page = run("critic", "audit", out, "--out", tmp_path / "audit")
    assert page.returncode in (0, 3), page.stderr
    html = (tmp_path / "audit/report.html").read_text("utf-8")
    assert html.count("data:image/jpeg") == 8 * 2 * 2 and "Frame 8 of the question&#39;s video" in html
    only = write_jsonl(tmp_path / "gone.jsonl", [human_row(0, **columns, video="none.mp4")])
    assert_one_line_error(run(*words[:2], only, *words[3:], "--out", tmp_path / "none"), "not there", "none.mp4")


def test_a_model_is_shown_a_benchmark_s_videos(tmp_path: Path, scripted: Servers) -> None:
    """What is sent changes with the file's bytes; what stays is a record of each frame."""
    question = {"question_id": "1", "prompt": "?", "ref_answer": "", "task": "OCR", "video": "a.mp4"}
    file, server = write_jsonl(tmp_path / "questions.jsonl", [question]), scripted(lambda _: completion("fine"))
    words = ["critic", "infer", film(tmp_path / "a.mp4").parent / file.name, "--benchmark", "alignmmbench"]
    words += ["--base-url", server.url, "--frames", "3", "--cache", tmp_path / "cache.sqlite"]
    run(*words, "--out", tmp_path / "a.jsonl", code=0)
    assert sent(server)[::2] == ["0.0 s", "2.5 s", "5.0 s", "?"]
    (line,) = read_jsonl(tmp_path / "a.jsonl")
    assert [image["path"] for image in line["seen"][0]["images"]] == [
        f"video:a.mp4#t={t}" for t in ("0.0", "2.5", "5.0")
    ]
    assert line["conversation"]["turns"][0]["images"] == ["video:a.mp4"] and line["sampling"]["frames"] == 3
    again = run(*words, "--frames", "2", "--out", tmp_path / "a.jsonl")
    assert_one_line_error(again, "frames=3", "choose another --out")
    for number, times in enumerate((STEADY, STEADY[:100])):
        film(tmp_path / "a.mp4", times)
        run(*words, "--out", tmp_path / f"again-{number}.jsonl", code=0)
    assert len(server.requests) == 2, "the cache knows the frames, and no others"


@pytest.mark.parametrize("benchmark", ["convbench", "multiverse", "visitbench"])
def test_a_video_stands_beside_or_in_place_of_an_image(tmp_path: Path, benchmark: str) -> None:
    column = {"convbench": "image_id", "multiverse": "image", "visitbench": "images"}[benchmark]
    row = next(rows(sample(benchmark)))[1]
    for image, shown in ((row[column], 2), (None, 1)):
        file = write_jsonl(tmp_path / "file.jsonl", [row | {column: image, "video": "a.mp4"}])
        names = benchmarks.read(benchmark, file)[0].turns[0].images
        assert names[-1] == "video:a.mp4" and (len(names) >= shown if image else names == ["video:a.mp4"])
