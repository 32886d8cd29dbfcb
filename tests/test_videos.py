"""Videos: frames at even times with their times, from the file to the request, the judgment and the page."""

import base64
import io
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

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
    options = {"live": "1"} if path.suffix == ".mkv" else {}
    with av.open(str(path), "w", options=options) as out:
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


def open_uri(uri: str) -> Any:
    return Picture.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("L")


@pytest.mark.parametrize("begins", [0, 1000])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm", "a.ts", "a.avi", "a.mov", "a.flv"])
@pytest.mark.parametrize("times", [STEADY, UNEVEN], ids=["steady", "uneven"])
def test_frames_are_even_and_their_times_true(tmp_path: Path, times: list[float], name: str, begins: int) -> None:
    if name == "a.avi" and (times is UNEVEN or begins):
        pytest.skip("AVI knows no times")
    film(tmp_path / name, times, begins)
    for count in (1, 2, 5, 8):
        frames = Images(tmp_path, frames=count).load(f"video:{name}").frames
        found = [float(frame.time.removesuffix(" s")) for frame in frames]
        even = np.linspace(0, 5, count)
        gap = 0.25 if times is UNEVEN else 0.02
        assert found == pytest.approx([*even], abs=gap + 0.05) and len(frames) == count
        assert all(frame.path == f"video:{name}#t={frame.time[:-2]}" for frame in frames)
        shades = [open_uri(frame.uri).getpixel((48, 40)) for frame in frames]
        assert shades == pytest.approx([40 * time for time in found], abs=5), "the frame of another time"


def test_short_and_turned_videos(tmp_path: Path) -> None:
    for times, shown in (([0.0], ["0.0 s"]), ([0.0, 1.0, 2.0], ["0.0 s", "1.0 s", "2.0 s"])):
        loaded = Images(tmp_path).load(f"video:{film(tmp_path / f'{len(times)}.mp4', times).name}")
        assert [frame.time for frame in loaded.shown] == shown
    film(tmp_path / "short.mp4", STEADY[:5])
    short = [frame.time for frame in Images(tmp_path).load("video:short.mp4").frames]
    assert short == ["0.00 s", "0.04 s", "0.08 s", "0.12 s", "0.16 s"], "no two frames have one time"
    small = Images(tmp_path, resize_to=300).load(f"video:{film(tmp_path / 'turned.mp4', turned=90).name}").frames[0]
    picture = open_uri(small.uri)
    assert picture.width < picture.height and picture.width * picture.height <= 300 and small.resized
    assert picture.getpixel((1, picture.height - 2)) > 200, "by 90 degrees to the left"


def test_what_is_no_video_is_refused_by_name(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    whole = film(tmp_path / "whole.mp4").read_bytes()
    (root / "half.mp4").write_bytes(whole[: len(whole) // 2])
    (root / "text.mp4").write_bytes(b"hello " * 400)
    (root / "list.mp4").write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{tmp_path / 'whole.ts'}\n", "utf-8")
    (root / "parts.mp4").write_text("ffconcat version 1.0\nfile fine.mp4\n", "utf-8")
    shutil.copy(film(tmp_path / "whole.ts"), root / "fine.mp4")
    with av.open(str(root / "sound.mp4"), "w") as out:
        sound = out.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), "float32"), "fltp", "mono")
        frame.rate = 8000
        out.mux([*sound.encode(frame), *sound.encode()])
    images = Images(root)
    assert len(images.load("video:fine.mp4").frames) == 8
    expected = dict.fromkeys(("half", "text", "list", "parts", "sound"), "image_unreadable")
    for name, failure in {**expected, "none": "image_missing", "../whole": "image_outside_root"}.items():
        with pytest.raises(ImageError, match=f"^video:{name}.mp4: ") as caught:
            images.load(f"video:{name}.mp4")
        assert caught.value.failure == failure and str(tmp_path) not in str(caught.value)


def test_a_video_is_decoded_once_for_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film(tmp_path / "a.mp4")
    images, decoded, sample_frames = Images(tmp_path), list[int](), images_module._sample_frames

    def count(file: Any, frames: int) -> Any:
        decoded.append(frames)
        return sample_frames(file, frames)

    monkeypatch.setattr(images_module, "_sample_frames", count)
    with ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)
        loaded = [*pool.map(lambda _: (barrier.wait(), images.load("video:a.mp4"))[1], range(8))]
    assert decoded == [8] and all(image is loaded[0] for image in loaded)
    state = images.state(["video:a.mp4"])
    film(tmp_path / "a.mp4", UNEVEN)
    assert images.state(["video:a.mp4"]) != state


def sent(server: Any) -> list[list[Any]]:
    """Return the parts of each request, images as their brightness."""
    contents = [body["messages"][-1]["content"] for body in server.requests]
    return [
        [
            part["text"] if part["type"] == "text" else open_uri(part["image_url"]["url"]).getpixel((48, 40))
            for part in parts
        ]
        for parts in contents
    ]


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
    front, *times, behind = sent(server)[0]
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
    assert sent(server)[0][::2] == ["0.0 s", "2.5 s", "5.0 s", "?"]
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
