"""Readers of published data sets, on small files of the same format and on the real files."""

import gzip
import os
import tarfile
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from latent_morph.datasets import (
    activity,
    fetch_activity,
    fetch_ecg,
    fetch_physionet,
    files,
    physionet,
    split_activity,
)
from latent_morph.series import from_long

REAL = os.environ.get("LATENT_MORPH_DATA")
needs_files = pytest.mark.skipif(
    not REAL, reason="LATENT_MORPH_DATA names no folder of real files"
)
unknown = pytest.mark.filterwarnings("ignore:the content of:UserWarning")  # digests of toy files


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data home; no other folder has data."""
    monkeypatch.delenv("LATENT_MORPH_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    monkeypatch.setattr(files, "_get_checkout_data", lambda: [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Arguments to read the published files, with the cache in a folder of this test."""
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    return {"download_if_missing": False}


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("fetch", [fetch_activity, fetch_ecg, fetch_physionet])
def test_fetch_absent_files(home, fetch):
    with pytest.raises(FileNotFoundError, match="was not found; put it"):
        fetch(data_home=home, download_if_missing=False)


# Human Activity


def activity_text(lengths=(("A01", 80), ("B02", 51), ("C03", 50)), label="walking", gap=300_000):
    tags, start, lines = list(activity.TAGS), 633790226051280329, []
    for name, length in lengths:
        for i in range(length):
            stamp = start + gap * i
            lines.append(
                f"{name},{tags[i % 4]},{stamp},27.05.2009 14:03:25:127,{i},{-i},0.5,{label}"
            )
    return "\n".join(lines) + "\n"


@unknown
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_activity_windows(home, suffix):
    put(home / "activity" / f"ConfLongDemo_JSI.txt{suffix}", activity_text())
    bunch = fetch_activity(data_home=home)
    # offset + 50 < length: two windows of 80 points, one of 51, none of 50.
    assert bunch.data.shape == (3, 50, 12) and bunch.target.shape == (3, 50)
    assert bunch.recordings.tolist() == ["A01", "A01", "B02"]
    assert bunch.groups.tolist() == ["A", "A", "B"]
    np.testing.assert_allclose(bunch.data.times[1], np.arange(50) * 0.03)
    np.testing.assert_allclose(bunch.starts, [0.0, 0.75, 0.0])
    assert torch.equal(bunch.data.mask[0].float().mean(), torch.tensor(0.25))
    assert bunch.data.values[1, 0].tolist() == [0, 0, 0, 25, -25, 0.5] + [0] * 6
    assert bunch.source == "real" and len(bunch.feature_names) == 12


@unknown
def test_activity_averages_readings_of_a_tick(home):
    lines = activity_text((("A01", 60),)).splitlines()
    again = lines[4].replace(",4,-4,", ",6,-8,").replace("walking", "falling")
    lines.insert(5, again)
    put(home / "ConfLongDemo_JSI.txt", "\n".join(lines))
    bunch = fetch_activity(data_home=home)
    assert bunch.data.values[0, 4, :3].tolist() == [5, -6, 0.5]
    assert bunch.target[0, 3:6].tolist() == [0, 1, 0]


@unknown
def test_activity_sorts_readings(home):
    lines = activity_text((("A01", 60),)).splitlines()
    lines[7], lines[8] = lines[8], lines[7]
    put(home / "ConfLongDemo_JSI.txt", "\n".join(lines))
    assert fetch_activity(data_home=home).data.values[0, 8, 0] == 8


@unknown
@pytest.mark.parametrize("name", [name for names in activity.CLASSES.values() for name in names])
def test_activity_merges_labels(home, name):
    put(home / "ConfLongDemo_JSI.txt", activity_text((("A01", 51),), label=name))
    bunch = fetch_activity(data_home=home)
    merged = bunch.target_names[bunch.target[0, 0]]
    assert name.startswith(merged)


@unknown
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "must be the activity table"),
        ("<html>not found</html>\n", "must be the activity table"),
        (activity_text()[:-12], "got an empty table or an incomplete row"),
        (activity_text()[:-60], "got an empty table or an incomplete row"),
        (activity_text() + "1,2,3,4,5,6,7,8,9,10\n", "must be the activity table"),
        (activity_text(label="juggling"), "got the unknown label 'juggling'"),
        (activity_text((("A01", 50),)), "must have a recording of more than 50"),
        (b"\xff\xfe\x00\x01" * 50, "must be the activity table"),
    ],
)
def test_activity_rejects_other_content(home, text, match):
    put(home / "ConfLongDemo_JSI.txt", text)
    with pytest.raises(ValueError, match=match) as caught:
        fetch_activity(data_home=home)
    assert "ConfLongDemo_JSI.txt" in str(caught.value) and "\n" not in str(caught.value)


@unknown
def test_activity_as_frame_and_return_X_y(home):
    put(home / "ConfLongDemo_JSI.txt", activity_text())
    bunch = fetch_activity(data_home=home)
    X, y = fetch_activity(data_home=home, return_X_y=True)
    assert torch.equal(X.values, bunch.data.values) and np.array_equal(y, bunch.target)
    frame, target = fetch_activity(data_home=home, return_X_y=True, as_frame=True)
    assert len(frame) == len(target) == 150 and list(frame)[:2] == ["case", "time"]
    back = from_long(frame, "case", "time", bunch.feature_names)
    assert torch.equal(back.values, bunch.data.values) and torch.equal(back.mask, bunch.data.mask)


@unknown
def test_activity_second_call_reads_cache(home, monkeypatch):
    put(home / "ConfLongDemo_JSI.txt", activity_text())
    first = fetch_activity(data_home=home)
    monkeypatch.setattr(activity, "_build", lambda found: pytest.fail("parsed again"))
    second = fetch_activity(data_home=home)
    assert torch.equal(first.data.values, second.data.values)
    assert first.recordings.tolist() == second.recordings.tolist()


@needs_files
def test_activity_published_file(real):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bunch = fetch_activity(**real)
    assert bunch.data.shape == (6554, 50, 12)
    assert abs(bunch.data.mask.float().mean() - 0.25) < 0.001
    assert bunch.data.observed.all()
    assert np.bincount(bunch.target.ravel()).tolist() == [
        63440, 5946, 121282, 57890, 45174, 10420, 23548
    ]  # fmt: skip
    assert sorted(set(bunch.recordings)) == [f"{p}{i:02d}" for p in "ABCDE" for i in range(1, 6)]
    train, test = split_activity(bunch)
    assert (len(train), len(test)) == (5243, 1311)
    train, test = split_activity(bunch, "person")
    assert set(bunch.groups[test]) == {"E"} and set(bunch.groups[train]) == set("ABCD")


# ECG


def ecg_text(*beats):
    rows = []
    for label, samples in beats:
        padded = list(samples) + [0] * (187 - len(samples))
        rows.append(",".join(f"{x:.4g}" for x in padded) + f",{label:.18e}")
    return "\n".join(rows) + "\n"


BEATS = ((0, [1, 0, 0.5]), (4, [0.25] * 187), (2, [0.0]))


@unknown
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_ecg_masks_padding_but_not_zeros(home, suffix):
    put(home / "ecg" / f"mitbih_train.csv{suffix}", ecg_text(*BEATS))
    bunch = fetch_ecg(data_home=home)
    assert bunch.data.shape == (3, 187, 1) and bunch.data.lengths.tolist() == [3, 187, 1]
    assert bunch.data.mask[0, :4, 0].tolist() == [True, True, True, False]
    np.testing.assert_allclose(bunch.data.times[0, :4], np.array([0, 1, 2, 2]) / 120)
    assert bunch.target.tolist() == [0, 4, 2] and bunch.target.dtype == np.int64
    assert bunch.target_names == ["N", "S", "V", "F", "Q"]


@unknown
def test_ecg_subsets_and_subsampling(home):
    put(home / "mitbih_train.csv", ecg_text(*BEATS))
    put(home / "mitbih_test.csv", ecg_text((1, np.linspace(0.1, 1, 100))))
    bunch = fetch_ecg(data_home=home, subset="all")
    assert bunch.target.tolist() == [0, 4, 2, 1]
    half = fetch_ecg(data_home=home, subset="test", keep=0.5, random_state=3).data
    assert half.shape == (1, 50, 1) and half.mask.all()
    ticks = (half.times[0] * 120).round().long()
    assert (ticks.diff() > 0).all() and ticks.diff().max() > 1
    torch.testing.assert_close(half.values[0, :, 0], torch.linspace(0.1, 1, 100)[ticks],
                               rtol=0, atol=1e-4)  # fmt: skip
    same = fetch_ecg(data_home=home, subset="test", keep=0.5, random_state=3).data
    assert torch.equal(half.times, same.times)
    with pytest.raises(ValueError, match="subset must be one of"):
        fetch_ecg(data_home=home, subset="valid")
    with pytest.raises(ValueError, match="keep must be a fraction .*, got 0"):
        fetch_ecg(data_home=home, keep=0)
    frame = fetch_ecg(data_home=home, as_frame=True)
    assert len(frame.data) == 191 and frame.target.index.name == "case"


@unknown
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "must be a table of 187 samples"),
        ("1,2,3\n", "got 3 columns"),
        ("<html>\n", "must be a table of 187 samples"),
        (ecg_text((7, [1.0])), "label 0-4, got the label 7"),
        (ecg_text((0.5, [1.0])), "label 0-4, got the label 0.5"),
        (ecg_text(*BEATS)[:-30], "got an incomplete row"),
    ],
)
def test_ecg_rejects_other_content(home, text, match):
    put(home / "mitbih_train.csv", text)
    with pytest.raises(ValueError, match=match) as caught:
        fetch_ecg(data_home=home)
    assert "mitbih_train.csv" in str(caught.value)


@needs_files
def test_ecg_published_file(real):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bunch = fetch_ecg(subset="test", **real)
    assert bunch.data.shape == (21892, 187, 1)
    assert np.bincount(bunch.target).tolist() == [18118, 556, 1448, 162, 1608]
    assert 0 <= bunch.data.values.min() and bunch.data.values.max() == 1


@needs_files
@unknown
def test_ecg_kaggle_rows(home):
    sample = os.path.join(REAL, "ecg", "kaggle_mitbih_test_2000rows.csv.gz")
    if not os.path.exists(sample):
        pytest.skip("the sample of Kaggle's own file is not there")
    (home / "ecg").mkdir()
    os.symlink(sample, home / "ecg" / "mitbih_test.csv.gz")
    bunch = fetch_ecg(data_home=home, subset="test")
    assert len(bunch.data) == 2000 and bunch.data.values.max() == 1


# PhysioNet

STAY = """Time,Parameter,Value
00:00,RecordID,7
00:00,Age,54
00:00,Gender,1
00:00,Height,-1
00:00,ICUType,4
00:00,Weight,-1
00:30,HR,70
00:30,HR,80
47:45,Temp,-17.8
"""
OUTCOMES = "RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death\n{}"


def put_stays(home, packed, stays, outcomes="7,6,1,5,-1,0\n12,6,1,5,2,1\n", subset="a"):
    folder = home / "physionet" / f"set-{subset}"
    for name, text in stays.items():
        put(folder / f"{name}.txt", text)
    if packed:
        with tarfile.open(folder.with_name(f"{folder.name}.tar.gz"), "w:gz") as archive:
            archive.add(folder, folder.name)
        for name in stays:
            (folder / f"{name}.txt").unlink()
        folder.rmdir()
    put(home / "physionet" / f"Outcomes-{subset}.txt", OUTCOMES.format(outcomes))


@unknown
@pytest.mark.parametrize("packed", [False, True])
def test_physionet_channels_and_outcomes(home, packed):
    put_stays(home, packed, {"12": STAY.replace("RecordID,7", "RecordID,12"), "7": STAY.rstrip()})
    for _ in range(2):  # parsed, then cached
        bunch = fetch_physionet(data_home=home)
        assert bunch.data.shape == (2, 3, 37)
        assert bunch.data.times.tolist() == [[0, 0.5, 47.75]] * 2
        assert bunch.record_ids.tolist() == [12, 7] and bunch.target.tolist() == [1, 0]
    observed = {
        (bunch.feature_names[c], float(bunch.data.values[0, t, c]))
        for t, c in bunch.data.mask[0].nonzero().tolist()
    }
    assert {(name, round(value, 1)) for name, value in observed} == {
        ("HR", 75.0), ("Temp", -17.8)
    }  # fmt: skip
    assert bunch.feature_names == sorted(bunch.feature_names)
    assert bunch.target_names == ["survived", "died"]
    static = bunch.data.static
    assert list(static) == bunch.static_names == ["Age", "Gender", "Height", "ICUType"]
    assert static["Age"].tolist() == [54.0, 54.0] and static["Height"].isna().all()
    assert static["Gender"].tolist() == ["male", "male"]
    assert static["ICUType"].tolist() == ["surgical", "surgical"]


@unknown
def test_physionet_facts_in_words_missing_and_as_columns(home):
    lines = {
        "12": STAY.replace("RecordID,7", "RecordID,12"),
        "7": STAY.replace("Gender,1", "Gender,-1").replace("ICUType,4", "ICUType,2"),
        "9": "Time,Parameter,Value\n00:00,RecordID,9\n00:00,Gender,0\n00:00,ICUType,1\n",
    }
    put_stays(home, False, lines, "7,6,1,5,-1,0\n9,6,1,5,-1,0\n12,6,1,5,2,1\n")
    bunch = fetch_physionet(data_home=home)
    assert bunch.record_ids.tolist() == [12, 7, 9]
    static = bunch.data.static
    assert static["Gender"].astype(object).fillna("?").tolist() == ["male", "?", "female"]
    assert static["ICUType"].tolist() == ["surgical", "cardiac surgery recovery", "coronary care"]
    assert static["Age"].fillna(-1).tolist() == [54, 54, -1]
    assert bunch.data.lengths.tolist() == [3, 3, 1]  # a row at time 0, also of no measurement
    assert not bunch.data.mask[2].any()
    frame = fetch_physionet(data_home=home, as_frame=True).data
    assert list(frame) == ["case", "time", *bunch.feature_names, *bunch.static_names]
    back = from_long(frame, "case", "time", static=bunch.static_names)
    assert torch.equal(back.mask, bunch.data.mask) and torch.equal(back.times, bunch.data.times)
    pd.testing.assert_frame_equal(back.static, static)


@unknown
@pytest.mark.parametrize(
    ("stays", "outcomes", "match"),
    [
        ({"7": "<html>"}, "7,6,1,5,-1,0\n", r"got another content in 7\.txt"),
        ({"7": STAY + "00:31,Mood,3\n"}, "7,6,1,5,-1,0\n", "got the unknown parameter 'Mood'"),
        ({"7": STAY + "noon,HR,3\n"}, "7,6,1,5,-1,0\n", "got the time 'noon', which is not hh:mm"),
        ({"7": STAY + "00:31,HR,fast\n"}, "7,6,1,5,-1,0\n", "Time,Parameter,Value"),
        ({"7": STAY[:38]}, "7,6,1,5,-1,0\n", r"got no measurement in 7\.txt"),
        ({"7": STAY.replace("Type,4", "Type,5")}, "7,6,1,5,-1,0\n", r"ICUType .* got 5 in 7\.txt"),
        (
            {"7": STAY.replace("Gender,1", "Gender,2")},
            "7,6,1,5,-1,0\n",
            "a Gender among .0, 1. or",
        ),
        ({"7": STAY}, "8,6,1,5,-1,0\n", "got no outcome of record 7"),
        ({"7": STAY}, "7,6,1,5,-1,\n", "got no outcome of record 7"),
    ],
)
def test_physionet_rejects_other_content(home, stays, outcomes, match):
    put_stays(home, False, stays, outcomes)
    with pytest.raises(ValueError, match=match):
        fetch_physionet(data_home=home)


@unknown
@pytest.mark.parametrize("packed", [False, True])
def test_physionet_subsets_are_apart(home, packed):
    for record, subset in enumerate("abc", start=1):
        text = STAY.replace("RecordID,7", f"RecordID,{record}")
        put_stays(home, packed, {str(record): text}, f"{record},6,1,5,-1,{record % 2}\n", subset)
    for _ in range(2):  # parsed, then cached
        bunches = [fetch_physionet(data_home=home, subset=subset) for subset in "abc"]
        assert [bunch.record_ids.tolist() for bunch in bunches] == [[1], [2], [3]]
        assert [bunch.target.tolist() for bunch in bunches] == [[1], [0], [1]]
        for subset, bunch in zip("abc", bunches, strict=True):
            assert f"set {subset}:" in bunch.DESCR
    assert {path.name for path in (home / "physionet").glob("*.npz")} == {
        "physionet_a.npz", "physionet_b.npz", "physionet_c.npz"
    }  # fmt: skip
    assert fetch_physionet(data_home=home).record_ids.tolist() == [1]


def test_physionet_says_that_set_b_is_not_verified(home):
    put_stays(home, True, {"7": STAY}, subset="b")
    with pytest.warns(UserWarning, match="was not verified, as no SHA-256 of it is known") as seen:
        fetch_physionet(data_home=home, subset="b")
    assert len(seen) == 2  # records and outcomes


@pytest.mark.parametrize("subset", ["d", "A", None])
def test_physionet_rejects_unknown_subset(home, subset):
    with pytest.raises(ValueError, match=f"subset must be one of a, b, c, got {subset!r}"):
        fetch_physionet(data_home=home, subset=subset)


def test_physionet_absent_subset(home):
    put_stays(home, False, {"7": STAY})
    with pytest.raises(
        FileNotFoundError, match=r"physionet/set-c was not found; put it \(or set-c"
    ):
        fetch_physionet(data_home=home, subset="c", download_if_missing=False)


@needs_files
@pytest.mark.parametrize(
    ("subset", "n_times", "outcomes"), [("a", 203, [3446, 554]), ("c", 215, [3415, 585])]
)
def test_physionet_published_files(real, subset, n_times, outcomes):
    if not os.path.exists(os.path.join(REAL, "physionet", f"Outcomes-{subset}.txt")):
        pytest.skip(f"set {subset} is not there")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bunch = fetch_physionet(subset=subset, **real)
    assert bunch.data.shape == (4000, n_times, 37)
    assert bunch.feature_names == physionet.DYNAMIC_NAMES
    assert np.bincount(bunch.target).tolist() == outcomes
    static = bunch.data.static
    assert static[["Age", "ICUType"]].notna().all(axis=None)  # known at admission
    assert static["Gender"].notna().mean() > 0.99 > 0.6 > static["Height"].notna().mean() > 0.4
    assert static["Age"].between(15, 90).all()
    for name, words in physionet.CATEGORIES.items():
        assert set(static[name].dropna()) == set(words.values())
    assert (bunch.data.times[:, 0] == 0).all()
    assert bunch.data.mask.any((0, 1)).all()  # every channel
    assert bunch.data.times.max() <= 48


@needs_files
def test_physionet_sets_share_channels_and_no_record(real):
    if not os.path.exists(os.path.join(REAL, "physionet", "Outcomes-c.txt")):
        pytest.skip("set c is not there")
    a, c = (fetch_physionet(subset=subset, **real) for subset in "ac")
    assert a.feature_names == c.feature_names and a.target_names == c.target_names
    assert not set(a.record_ids) & set(c.record_ids)
    # A channel in another place would be observed more or less often.
    for series in (a.data, c.data):
        assert series.mask.any((0, 1)).all()
    rates = [bunch.data.mask.float().sum((0, 1)) / 4000 for bunch in (a, c)]
    torch.testing.assert_close(*rates, rtol=0.15, atol=0.05)
