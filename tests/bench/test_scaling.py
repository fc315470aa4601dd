"""tools/scaling: every contestant of every curve runs, who fails is an error and the rest goes on, and a page is drawn
of what was measured."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURE = ROOT / "tools" / "scaling" / "measure.py"
sys.path += [str(MEASURE.parent), str(ROOT / "bench")]

import curves  # noqa: E402
import measure  # noqa: E402

NAMES = [curve.name for curve in curves.CURVES]


def test_the_names_of_the_curves_differ():
    assert len(set(NAMES)) == len(NAMES) == 16


@pytest.mark.parametrize("name", NAMES)
def test_each_contestant_of_a_curve_is_measured(name):
    """But culsans where it is not installed: that is its error, and the others are measured."""
    curve = next(curve for curve in curves.CURVES if curve.name == name)
    point = measure.measure_place(curve, 2, [], 0.0)
    assert {*point.rounds, *point.errors} == set(curve.contestants)
    assert set(point.errors) <= {"culsans"}
    assert all(value > 0 for values in point.rounds.values() for value in values)


def fake(folder, *lines):
    """A command that prints these lines and fails, unless the second contestant is left out: then it measures."""
    script = folder / "python"
    script.write_text(
        f"#!{sys.executable}\nimport json, sys\nif 'b' in json.loads(sys.argv[5]):\n"
        "    print(json.dumps({'x': json.loads(sys.argv[4])[0], 'rounds': {'a': [1.0]}, 'errors': {}}))\n"
        f"else:\n    print({chr(10).join(lines)!r})\n    sys.exit('a planted fault')\n"
    )
    script.chmod(0o755)
    return str(script)


def test_who_ends_the_process_is_left_out_and_the_rest_goes_on(tmp_path):
    curve = curves.Curve("x", "", "N", "items/s", (3,), {"a": None, "b": None})
    python = fake(tmp_path, json.dumps({"at": "a"}), json.dumps({"at": "b"}))
    (point,) = measure.points(python, curve, 60.0, measure.time.monotonic() + 600.0)
    assert point["rounds"] == {"a": [1.0]}
    assert point["errors"] == {"b": "at 3: exit status 1: a planted fault"}


def test_where_no_time_is_left_that_is_the_error(tmp_path):
    curve = curves.Curve("x", "", "N", "items/s", (3, 4), {"a": None, "b": None})
    made = list(measure.points(fake(tmp_path), curve, 1.0, measure.time.monotonic() - 1.0))
    assert [(point["x"], point["errors"]) for point in made] == [(x, {"all": "no time was left"}) for x in (3, 4)]


def test_a_process_that_never_measures_is_not_started_again(tmp_path):
    curve = curves.Curve("x", "", "N", "items/s", (3, 4), {"a": None, "b": None})
    made = list(measure.points("/bin/false", curve, 60.0, measure.time.monotonic() + 600.0))
    assert [point["errors"] for point in made] == [{"all": "at 3: exit status 1: "}] * 2


def test_a_result_has_every_place_of_every_curve(tmp_path):
    """Also where no time is left: then each curve is begun at best."""
    result = tmp_path / "scaling.json"
    made = measure.measure_all({"gil": "/bin/false"}, 1.0)
    result.write_text(json.dumps({"environment": {}, "curves": made}))
    for curve, read in zip(curves.CURVES, json.loads(result.read_text())["curves"], strict=True):
        assert (curve.name, [*curve.places]) == (read["name"], [point["x"] for point in read["points"]["gil"]])
        assert all(point["errors"] for point in read["points"]["gil"])


def result_of(better, ours, theirs):
    rounds = {"manytail": [ours], "Queue": [theirs], "manytail, a sub-queue per putter": [theirs]}
    points = [{"x": x, "rounds": rounds, "more": {}, "errors": {"culsans": "none"}} for x in (1, 8)]
    about = {"name": "pairs", "what": "N & N", "x": "N", "unit": "items/s", "more_is_better": better}
    where = {"date": "today", "cpus": 16, "cpu": "a processor", "kernel": "6", "load": [0.0], "load at the end": [1.0]}
    where |= {"seconds": 1.0, "pythons": {"gil": "3.11"}, "made": {"commit": "abc"}}
    return {"environment": where, "curves": [{**about, "points": {"gil": points, "free": points}}]}


def test_a_page_has_the_curves_the_losses_and_the_errors():
    pytest.importorskip("matplotlib", reason="draws")
    import page_of_curves

    text = page_of_curves.whole(result_of(True, 1.0, 2.0))
    assert text.count("<svg") == 2  # with the GIL and without
    assert "pairs, with the GIL: Queue 2 x at 1, 2 x at 8" in text
    assert "pairs at 8, free, culsans: none" in text
    assert "N &amp; N" in text


@pytest.mark.parametrize(
    ("better", "ours", "theirs", "lost"),
    [(True, 1.0, 2.0, True), (True, 2.0, 1.0, False), (False, 2.0, 1.0, True), (False, 1.0, 2.0, False)],
    ids=["slower", "faster", "later", "sooner"],
)
def test_a_loss_is_where_a_rival_is_better(better, ours, theirs, lost):
    pytest.importorskip("matplotlib", reason="draws")
    import page_of_curves

    assert bool([*page_of_curves.losses(result_of(better, ours, theirs))]) == lost


def test_the_docs_say_what_was_measured():
    pytest.importorskip("matplotlib", reason="draws")
    import page_of_curves

    docs = page_of_curves.DOCS
    table = page_of_curves.MADE.search((docs / "design" / "record.md").read_text(encoding="utf-8"))[0]
    data = json.loads((docs / "scaling.json").read_text(encoding="utf-8"))
    assert table == page_of_curves.markdown(data), "run `python tools/scaling docs`"
    text = (docs / "performance.md").read_text(encoding="utf-8")
    for name in page_of_curves.PICTURES:
        assert f"(assets/{name}.svg)" in text
        assert (docs / "assets" / f"{name}.svg").exists()
