"""SeriesBatch, and the conversions of every accepted input to it."""

import ast
import importlib
import inspect
import pickle
import time

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.dummy import DummyClassifier
from sklearn.model_selection import KFold, cross_val_score, train_test_split

from latent_morph.series import SeriesBatch, as_series, from_long, insert_rows

NAN = float("nan")


def make_fields(n=2, t=3, c=2):
    """Valid fields of a batch."""
    return {
        "values": torch.zeros(n, t, c),
        "times": torch.arange(t, dtype=torch.float64).repeat(n, 1),
        "mask": torch.ones(n, t, c, dtype=torch.bool),
        "lengths": torch.full((n,), t),
    }


def random_cases(n, seed=0, c=2, longest=7):
    rng = np.random.default_rng(seed)
    cases = []
    for _ in range(n):
        length = rng.integers(1, longest + 1)
        values = rng.standard_normal((length, c)).astype(np.float32)
        values[rng.random(values.shape) < 0.3] = NAN
        cases.append((np.sort(rng.random(length)), values))
    return cases


def assert_same(a, b):
    for name in ("values", "times", "mask", "lengths"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=0)


# Construction


def test_series_batch_lengths_default_to_n_times():
    fields = make_fields()
    del fields["lengths"]
    batch = SeriesBatch(**fields)
    assert batch.lengths.tolist() == [3, 3]
    assert (batch.n_cases, batch.n_times, batch.n_channels) == tuple(batch.shape) == (2, 3, 2)
    assert batch.present.all() and len(batch) == 2 and batch.device.type == "cpu"


@pytest.mark.parametrize(
    ("name", "bad", "error", "match"),
    [
        ("values", np.zeros((2, 3, 2)), TypeError, "values must be a torch tensor, got ndarray"),
        ("values", torch.zeros(2, 3, 2, dtype=torch.float16), TypeError, "values must have dtype"),
        ("values", torch.zeros(2, 3), ValueError, "values must have shape"),
        (
            "values",
            torch.full((2, 3, 2), NAN),
            ValueError,
            "values must be finite, .*mark missing values in mask",
        ),
        (
            "times",
            torch.zeros(2, 3),
            TypeError,
            "times must have dtype torch.float64, got torch.float32",
        ),
        ("times", torch.zeros(3, 2, dtype=torch.float64), ValueError, "times must have shape"),
        ("times", torch.full((2, 3), NAN).double(), ValueError, "times must be finite, got NaN"),
        (
            "times",
            torch.tensor([[0.0, 2, 1]] * 2).double(),
            ValueError,
            "times must be non-decreasing .* in case 0",
        ),
        ("mask", torch.ones(2, 3, 2), TypeError, "mask must have dtype torch.bool"),
        ("mask", torch.ones(2, 3, dtype=torch.bool), ValueError, "mask must have shape"),
        ("lengths", torch.tensor([3.0, 3.0]), TypeError, "lengths must have dtype torch.int64"),
        ("lengths", torch.tensor([3]), ValueError, "lengths must have shape"),
        (
            "lengths",
            torch.tensor([0, 3]),
            ValueError,
            "lengths must be between 1 and T = 3, got 0",
        ),
        ("lengths", torch.tensor([2, 3]), ValueError, "mask must be False in the padding"),
    ],
)
def test_series_batch_rejects_invalid_field(name, bad, error, match):
    with pytest.raises(error, match=match):
        SeriesBatch(**{**make_fields(), name: bad})


def test_series_batch_rejects_new_times_in_padding():
    fields = make_fields()
    fields["mask"][0, 2] = False
    fields["lengths"][0] = 2
    with pytest.raises(ValueError, match="times must repeat the last real time"):
        SeriesBatch(**fields)


def test_series_batch_zero_is_observed_and_empty_row_is_present():
    batch = as_series(np.array([[0.0, NAN, 0.0, NAN]]))
    assert batch.observed.tolist() == [[True, False, True, False]]
    assert batch.present.all()


def test_series_batch_is_frozen_picklable_and_short_in_repr():
    batch = as_series(random_cases(5))
    with pytest.raises(AttributeError):
        batch.values = None
    assert_same(batch, pickle.loads(pickle.dumps(batch)))
    assert len(repr(batch)) < 120


def test_series_batch_rejects_conversion_to_array():
    with pytest.raises(TypeError, match=r"use batch\.values"):
        np.asarray(as_series(np.zeros((2, 2))))


# Selecting, moving, joining


@pytest.mark.parametrize(
    ("index", "picks"),
    [
        ([3, 0, 3], [3, 0, 3]),
        (np.array([3, 0, 3], dtype=np.int32), [3, 0, 3]),
        (np.array([True, False, True, False, True]), [0, 2, 4]),
        ([True, False, True, False, True], [0, 2, 4]),
        (torch.tensor([4, -1]), [4, 4]),
        (torch.tensor([True, False, True, False, True]), [0, 2, 4]),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -1), [4, 3, 2, 1, 0]),
        (np.arange(5)[::-1], [4, 3, 2, 1, 0]),
        ([], []),
        (pd.Index([1, 2]), [1, 2]),
    ],
)
def test_series_batch_index_selects_cases(index, picks):
    cases = random_cases(5)
    batch = as_series(cases)
    for chosen in (batch[index], batch[index, ...]):
        assert chosen.shape == (len(picks), *batch.shape[1:])
        for (times, values), pick in zip(chosen.to_ragged(), picks, strict=True):
            np.testing.assert_array_equal(times, cases[pick][0])
            np.testing.assert_array_equal(values, cases[pick][1])


def test_series_batch_integer_index_keeps_case_axis():
    batch = as_series(random_cases(3))
    assert_same(batch[-1], batch[[2]])
    assert len(list(batch)) == 3
    assert_same(SeriesBatch.concatenate(batch), batch)


@pytest.mark.parametrize("index", [7, (0, 1), 0.5, [0.5], True, np.zeros((2, 2), int)], ids=str)
def test_series_batch_rejects_invalid_index(index):
    with pytest.raises(IndexError):
        as_series(random_cases(3))[index]


def test_series_batch_to_converts_dtype_of_values_only():
    batch = as_series(random_cases(3)).to("cpu", torch.float64)
    assert (batch.values.dtype, batch.times.dtype) == (torch.float64, torch.float64)
    assert batch.to(dtype=torch.float32).values.dtype == torch.float32
    assert batch.mask.dtype == torch.bool and batch.lengths.dtype == torch.int64
    with pytest.raises(ValueError, match="dtype must be .*, got torch.float16"):
        batch.to(dtype=torch.float16)


def test_series_batch_trim_drops_common_padding():
    batch = as_series([np.ones(2), np.ones(5), np.ones(3)])
    short = batch[[0, 2]]
    assert short.n_times == 5
    assert short.trim().n_times == 3
    assert_same(short.trim(), as_series([np.ones(2), np.ones(3)]))


def test_series_batch_concatenate_pads():
    cases = random_cases(6)
    joined = SeriesBatch.concatenate([as_series(cases[:2]).trim(), as_series(cases[2:])])
    SeriesBatch(joined.values, joined.times, joined.mask, joined.lengths)
    assert_same(joined, as_series(cases))
    with pytest.raises(ValueError, match="batches must have the same number of channels"):
        SeriesBatch.concatenate([joined, as_series(np.zeros((1, 2)))])
    with pytest.raises(ValueError, match="batches must have at least one"):
        SeriesBatch.concatenate([])


def test_series_batch_ragged_round_trip():
    cases = random_cases(20)
    back = SeriesBatch.from_ragged(cases).to_ragged()
    for (times, values), (times_back, values_back) in zip(cases, back, strict=True):
        np.testing.assert_array_equal(times, times_back)
        np.testing.assert_array_equal(values, values_back)


# scikit-learn


def test_series_batch_train_test_split_and_kfold():
    batch, y = as_series(random_cases(20)), np.arange(20) % 2
    train, test, y_train, y_test = train_test_split(batch, y, test_size=0.25, random_state=0)
    assert isinstance(train, SeriesBatch) and (len(train), len(test)) == (15, 5)
    for train, val in KFold(4).split(batch):
        assert len(batch[train]) == 15 and len(batch[val]) == 5


def test_series_batch_cross_val_score():
    class Majority(DummyClassifier):
        def fit(self, X, y):
            assert isinstance(X, SeriesBatch)
            return super().fit(np.zeros((len(X), 1)), y)

    scores = cross_val_score(Majority(), as_series(random_cases(20)), [0] * 15 + [1] * 5, cv=5)
    np.testing.assert_allclose(scores, 0.75)


# as_series


def test_as_series_returns_series_batch_unchanged():
    batch = as_series(random_cases(2))
    assert as_series(batch) is batch


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        torch.tensor,
        lambda x: np.asarray(x, dtype=object),
        pd.DataFrame,
        list,
        tuple,
        lambda x: [np.asarray(row) for row in x],
        lambda x: np.asarray(x)[::-1][::-1],
        lambda x: tuple(tuple(row) for row in x),
    ],
)
def test_as_series_two_axes(make):
    batch = as_series(make([[1.0, NAN], [3.0, 4.0]]))
    assert batch.values[..., 0].tolist() == [[1.0, 0.0], [3.0, 4.0]]
    assert batch.mask[..., 0].tolist() == [[True, False], [True, True]]
    assert batch.times.tolist() == [[0.0, 1.0]] * 2
    assert batch.values.dtype == torch.float32


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, list])
def test_as_series_three_axes(make):
    X = np.arange(24.0).reshape(2, 4, 3)
    X[1, 2] = NAN
    batch = as_series(make(X.tolist()))
    assert batch.shape == (2, 4, 3) and batch.lengths.tolist() == [4, 4]
    np.testing.assert_array_equal(batch.values.numpy(), np.nan_to_num(X))
    np.testing.assert_array_equal(batch.mask.numpy(), ~np.isnan(X))


def test_as_series_integer_boolean_and_read_only_arrays():
    X = np.array([[1, 0], [0, 1]])
    X.flags.writeable = False
    assert_same(as_series(X), as_series(X.astype(bool)))
    assert_same(as_series(X), as_series([row for row in X]))


def test_as_series_copies_the_input():
    X = np.array([[1.0, NAN]], dtype=np.float32)
    as_series(X).values.fill_(7.0)
    np.testing.assert_array_equal(X, [[1.0, NAN]])


def test_as_series_unequal_lengths():
    objects = np.empty(2, dtype=object)
    objects[:] = [np.ones((2, 3)), np.ones((4, 3))]
    for X in ([*objects], objects):
        batch = as_series(X)
        assert batch.shape == (2, 4, 3) and batch.lengths.tolist() == [2, 4]
        assert batch.times[0].tolist() == [0.0, 1.0, 1.0, 1.0]
        assert not batch.mask[0, 2:].any()


def test_as_series_pairs_sorts_stably_and_keeps_repeated_times():
    batch = as_series([([2.0, 1.0, 2.0, 1.0], [1, 2, 3, 4]), ([5], [NAN])])
    assert batch.times.tolist() == [[1, 1, 2, 2], [5, 5, 5, 5]]
    assert batch.values[0, :, 0].tolist() == [2, 4, 1, 3]
    assert not batch.mask[1].any() and batch.lengths.tolist() == [4, 1]


def test_as_series_list_of_two_is_not_a_pair():
    assert as_series([[[1.0, 2.0], [3.0, 4.0]]]).shape == (1, 2, 2)
    assert as_series([([1.0, 2.0], [3.0, 4.0])]).shape == (1, 2, 1)


def test_as_series_keeps_milliseconds_of_epoch_seconds():
    times = 1.7e9 + np.array([0.0, 0.001, 0.002])
    assert (as_series([(times, np.ones(3))]).times[0].diff() > 0.0009).all()


def test_as_series_frames_use_index_as_times_and_match_columns():
    a = pd.DataFrame({"u": [1.0, 2.0], "v": [3.0, NAN]}, index=[0.5, 0.25])
    b = pd.DataFrame({"v": [6], "u": [5]}, index=[9])
    batch = as_series([a, b])
    assert batch.times.tolist() == [[0.25, 0.5], [9.0, 9.0]]
    assert batch.values.tolist() == [[[2, 0], [1, 3]], [[5, 6], [0, 0]]]
    with pytest.raises(ValueError, match="case 1 of X must have columns"):
        as_series([a, b.rename(columns={"u": "w"})])
    with pytest.raises(
        ValueError, match="case 1 of X must be a DataFrame like the others, got ndarray"
    ):
        as_series([a, np.ones(3)])


@pytest.mark.parametrize("zone", [None, "Europe/Ljubljana"])
def test_as_series_datetimes_become_seconds_since_first(zone):
    stamps = pd.date_range("2024-03-31 00:00", periods=3, freq="90min", tz=zone)[::-1]
    frame = pd.DataFrame({"u": [3.0, 2.0, 1.0]}, index=stamps)
    for X in ([frame], [frame["u"]], [(stamps, frame["u"])]):
        batch = as_series(X)
        assert batch.times.tolist() == [[0.0, 5400.0, 10800.0]]
        assert batch.values.flatten().tolist() == [1.0, 2.0, 3.0]


def test_as_series_timedeltas_become_seconds():
    frame = pd.DataFrame({"u": [1.0, 2.0]}, index=pd.to_timedelta([60, 90], unit="s"))
    assert as_series([frame]).times.tolist() == [[60.0, 90.0]]


def test_as_series_null_of_nullable_column_is_missing():
    frame = pd.DataFrame({"u": pd.array([1, None], dtype="Int64"), "v": [True, False]})
    assert as_series(frame).mask[..., 0].tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        (5, TypeError, "X must be .*, got int"),
        ("series", TypeError, "X must be .*, got str"),
        (np.ones(3), ValueError, r"X must have shape .*, got \(3,\)"),
        (np.ones((2, 0)), ValueError, "X must have shape"),
        (np.ones((1, 2), complex), ValueError, "X must be numeric"),
        (np.array([["a", "b"]]), ValueError, "X must be numeric"),
        (np.array([[1.0, np.inf]]), ValueError, "X must be finite or NaN, got infinity"),
        (np.array([[1e300]]), ValueError, "X must have values within torch.float32"),
        ([], ValueError, "X must have at least one case"),
        ([1.0, 2.0], ValueError, r"case 0 of X must have shape .*, got \(\)"),
        ([[1.0], []], ValueError, r"case 1 of X must have at least one value, got shape \(0, 1\)"),
        (
            [np.ones(2), np.ones((2, 2))],
            ValueError,
            "case 1 of X must have 1 channels like case 0, got 2",
        ),
        ([np.ones(2), [1.0, -np.inf]], ValueError, "case 1 of X must have finite values"),
        ([np.ones(2), [1.0, "x"]], ValueError, "case 1 of X must be numeric"),
        ([([0.0], [1.0]), ([NAN], [1.0])], ValueError, "case 1 of X must have finite times"),
        ([([0.0, 1.0], [1.0])], ValueError, "case 0 of X must have .*, got 2 times and 1 rows"),
        ([([[0.0]], [1.0])], ValueError, "the times of case 0 of X must have shape"),
        (
            [(["noon", "night"], [1.0, 2.0])],
            ValueError,
            "the times of case 0 of X must be numbers",
        ),
        (pd.DataFrame({"d": pd.to_datetime(["2024-01-01"])}), ValueError, "X must be numeric"),
        (pd.DataFrame({"u": [1]}, index=[[0], [1]]), ValueError, "use from_long"),
    ],
)
def test_as_series_rejects_invalid_input(X, error, match):
    with pytest.raises(error, match=match):
        as_series(X)


def test_as_series_ten_thousand_cases_is_fast():
    cases = [(np.arange(50.0), np.ones((50, 3)))] * 10_000
    begin = time.perf_counter()
    as_series(cases)
    assert time.perf_counter() - begin < 5  # about 0.4 s; generous for busy machines


# from_long


def test_from_long_sorts_and_selects_columns():
    frame = pd.DataFrame(
        {
            "who": ["b", "a", "b", "b", "a"],
            "when": [2.0, 7.0, 1.0, 2.0, 6.0],
            "u": [1.0, 2.0, 3.0, NAN, 5.0],
            "v": [1, 2, 3, 4, 5],
            "note": list("xxxxx"),
        }
    )
    batch = from_long(frame, "who", "when")
    assert batch.times.tolist() == [[1, 2, 2], [6, 7, 7]]
    assert batch.values[..., 0].tolist() == [[3, 1, 0], [5, 2, 0]]
    assert batch.values[..., 1].tolist() == [[3, 1, 4], [5, 2, 0]]
    assert batch.lengths.tolist() == [3, 2]
    assert_same(from_long(frame, "who", "when", ["v"]), from_long(frame, "who", "when", "v"))


def test_from_long_datetimes_start_each_case_at_zero():
    when = pd.to_datetime([5, 100, 3, 101], unit="s", utc=True)
    frame = pd.DataFrame({"who": [1, 0, 1, 0], "when": when, "u": [1.0, 2, 3, 4]})
    assert from_long(frame, "who", "when").times.tolist() == [[0, 2], [0, 1]]
    frame.loc[1, "when"] = pd.NaT
    with pytest.raises(ValueError, match="case 1 of frame must have finite times"):
        from_long(frame, "who", "when")


@pytest.mark.parametrize(
    ("change", "arguments", "match"),
    [
        ({}, ("who", "hour"), r"frame must have columns \['hour'\], got"),
        ({}, ("who", "when", ["w"]), r"frame must have columns \['w'\], got"),
        ({"who": [None, 1]}, ("who", "when"), "must have an id in every row"),
        ({"u": ["a", "b"]}, ("who", "when", ["u"]), "columns must be numeric"),
        ({"u": ["a", "b"]}, ("who", "when"), "columns must have at least one"),
        ({"when": ["a", "b"]}, ("who", "when"), "column 'when' of frame must be numbers"),
    ],
)
def test_from_long_rejects_invalid_columns(change, arguments, match):
    frame = pd.DataFrame({"who": [0, 1], "when": [0.0, 1.0], "u": [1.0, 2.0], **change})
    with pytest.raises(ValueError, match=match):
        from_long(frame, *arguments)


def test_from_long_rejects_non_frame_and_empty_frame():
    with pytest.raises(TypeError, match="frame must be a pandas DataFrame, got list"):
        from_long([], "who", "when")
    with pytest.raises(ValueError, match="frame must have at least one row"):
        from_long(pd.DataFrame({"who": [], "when": [], "u": []}), "who", "when")


# insert_rows


def test_insert_rows_adds_unobserved_sorted_rows():
    batch = as_series([([1.0, 3.0], [10, 30]), ([0.0, 1.0, 2.0], [0, NAN, 20])])
    times = torch.tensor([[2.0, 0.5], [9.0, -1.0]], dtype=torch.float64)
    wide, rows = insert_rows(batch, times)
    SeriesBatch(wide.values, wide.times, wide.mask, wide.lengths)  # obeys every rule
    assert wide.lengths.tolist() == [4, 5]
    assert wide.times.tolist() == [[0.5, 1, 2, 3, 3], [-1, 0, 1, 2, 9]]
    assert rows.tolist() == [[2, 0], [4, 0]]
    assert wide.mask[..., 0].int().tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 1, 0]]
    assert wide.values[wide.mask].tolist() == [10, 30, 0, 20]


def test_insert_rows_keeps_the_other_rows():
    batch = as_series(random_cases(20))
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(20, 4, generator=generator, dtype=torch.float64) * 2 - 0.5
    wide, rows = insert_rows(batch, times)
    torch.testing.assert_close(wide.times.gather(1, rows), times, rtol=0, atol=0)
    assert not wide.observed.gather(1, rows).any() and wide.present.gather(1, rows).all()
    old = torch.ones(20, wide.n_times, dtype=torch.bool).scatter(1, rows, False)
    kept = SeriesBatch(
        wide.values[old].view(batch.shape),
        torch.where(batch.present, wide.times[old].view(20, -1), batch.times),
        wide.mask[old].view(batch.shape),
        batch.lengths,
    )
    assert_same(kept, batch)


def test_insert_rows_at_existing_time_comes_after_it():
    batch = as_series([([0.0, 1.0], [1, 2])])
    wide, rows = insert_rows(batch, torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64))
    assert wide.times.tolist() == [[0, 0, 1, 1, 1]] and rows.tolist() == [[3, 1, 4]]
    assert wide.observed.int().tolist() == [[1, 0, 1, 0, 0]]


def test_insert_rows_without_queries_and_rejects_other_shapes():
    batch = as_series(random_cases(3))
    same, rows = insert_rows(batch, torch.zeros(3, 0, dtype=torch.float64))
    assert_same(same, batch)
    assert rows.shape == (3, 0)
    for times in (torch.zeros(3), torch.zeros(2, 1)):
        with pytest.raises(ValueError, match=r"times must have shape \(3, Q\), got"):
            insert_rows(batch, times)


@pytest.mark.parametrize("name", ["batch", "conversion", "scaling", "subsample"])
def test_series_modules_import_neither_pandas_nor_sklearn(name):
    module = importlib.import_module(f"latent_morph.series.{name}")
    tree = ast.parse(inspect.getsource(module))
    names = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert "torch" in names
    assert not {name for name in names if name.split(".")[0] in ("pandas", "sklearn")}
