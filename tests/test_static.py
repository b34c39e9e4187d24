"""Static facts: series carry them everywhere, and StaticEncoder converts them to numbers."""

import copy
import inspect
import json
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split

from latent_morph import SeriesBatch, as_series, from_long
from latent_morph.series import SeriesScaler, StaticEncoder, insert_rows, subsample

NAN = float("nan")
AGES = [30.0, 70.0, NAN, 50.0]
SEXES = ["f", "m", "m", None]


def facts():
    return pd.DataFrame({"age": AGES, "sex": SEXES}, index=[9, 8, 7, 6])


def series():
    """Four series of 2 to 5 rows, whose values are 10 times their number, and facts."""
    cases = [(np.arange(n) * 1.0, np.full((n, 2), 10.0 * i)) for i, n in enumerate((2, 5, 3, 4))]
    return SeriesBatch.from_ragged(cases).with_static(facts())


def assert_facts(batch, cases):
    """The facts of a batch are those of these cases, in this order, with a new index."""
    expected = facts().reset_index(drop=True).iloc[cases].reset_index(drop=True)
    pd.testing.assert_frame_equal(batch.static, expected)


# The container

CARRIED = {
    "index": (lambda X: X[2], [2]),
    "slice": (lambda X: X[1:3], [1, 2]),
    "backwards": (lambda X: X[::-1], [3, 2, 1, 0]),
    "list": (lambda X: X[[3, 0, 3]], [3, 0, 3]),
    "array": (lambda X: X[np.array([1, 0])], [1, 0]),
    "tensor": (lambda X: X[torch.tensor([2, 1])], [2, 1]),
    "mask": (lambda X: X[np.array([True, False, False, True])], [0, 3]),
    "mask tensor": (lambda X: X[torch.tensor([False, True, True, False]), ...], [1, 2]),
    "none": (lambda X: X[[]], []),
    "concatenate": (lambda X: SeriesBatch.concatenate([X[2:], X[:2]]), [2, 3, 0, 1]),
    "pad": (lambda X: SeriesBatch.concatenate([X[2:].trim(), X[:2]]), [2, 3, 0, 1]),
    "as_series": (as_series, [0, 1, 2, 3]),
    "as_series of batches": (lambda X: as_series([X[1], X[3]]), [1, 3]),
    "to": (lambda X: X.to("cpu", torch.float64), [0, 1, 2, 3]),
    "trim": (lambda X: X[[0, 2]].trim(), [0, 2]),
    "insert_rows": (lambda X: insert_rows(X, torch.zeros(4, 1))[0], [0, 1, 2, 3]),
    "subsample": (lambda X: subsample(X, 0.5, np.random.RandomState(0)), [0, 1, 2, 3]),
    "scaler": (lambda X: SeriesScaler("none").fit(X).transform(X), [0, 1, 2, 3]),
    "constructor": (
        lambda X: SeriesBatch(X.values, X.times, X.mask, X.lengths, X.static),
        [0, 1, 2, 3],
    ),
    "copy": (copy.deepcopy, [0, 1, 2, 3]),
    "pickle": (lambda X: pickle.loads(pickle.dumps(X)), [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("change", "cases"), CARRIED.values(), ids=CARRIED)
def test_facts_go_with_their_series(change, cases):
    changed = change(series())
    assert_facts(changed, cases)
    assert changed.values.amax((1, 2)).tolist() == [10.0 * case for case in cases]


def test_every_construction_from_fields_says_what_becomes_of_facts():
    """`_unchecked` has no default for facts, so that no path drops them by oversight."""
    parameters = inspect.signature(SeriesBatch._unchecked).parameters
    assert parameters["static"].default is inspect.Parameter.empty


def test_splitters_keep_facts_with_their_series():
    X = series()
    train, test = train_test_split(X, test_size=2, random_state=0)
    for part in (train, test):
        cases = (part.values[:, 0, 0] / 10).long().tolist()
        assert_facts(part, cases)


def test_with_static_returns_a_new_batch():
    X = as_series(np.ones((4, 3)))
    with_facts = X.with_static(facts())
    assert X.static is None and with_facts.values is X.values
    assert with_facts.with_static(None).static is None
    assert "static=['age', 'sex']" in repr(with_facts) and "static" not in repr(X)
    table = facts()
    with_facts = X.with_static(table)
    table.loc[9, "age"] = -1.0  # the batch is its own
    assert_facts(with_facts, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("static", "error", "match"),
    [
        ([[1]] * 4, TypeError, "static must be a pandas DataFrame, got list"),
        (facts()[:3], ValueError, "static must have 4 rows, one per series, got 3"),
        (facts()[[]], ValueError, "static must have at least one column, got none"),
        (pd.DataFrame({0: [1] * 4}), TypeError, "columns of static must be text, got 0"),
        (
            pd.DataFrame([[1, 2]] * 4, columns=["a", "a"]),
            ValueError,
            "columns of static must be unique, got 'a' twice",
        ),
        (
            pd.DataFrame({"age": [1, 2, 3, np.inf]}),
            ValueError,
            "column 'age' of static must be finite or missing, got infinity",
        ),
        (
            pd.DataFrame({"born": pd.to_datetime(["2020-01-01"] * 4)}),
            TypeError,
            "column 'born' of static must hold numbers or categories, got datetime64",
        ),
        (
            pd.DataFrame({"waves": [1j] * 4}),
            TypeError,
            "column 'waves' of static must hold numbers or categories, got complex",
        ),
        (
            pd.DataFrame({"sex": ["m", None, "f", (1, 2)]}),
            TypeError,
            "column 'sex' of static must be text, numbers or booleans, got a tuple",
        ),
    ],
)
def test_invalid_facts_are_refused(static, error, match):
    X = as_series(np.ones((4, 3)))
    with pytest.raises(error, match=match):
        X.with_static(static)
    with pytest.raises(error, match=match):
        SeriesBatch(X.values, X.times, X.mask, static=static)


def test_concatenate_matches_columns_by_name():
    X = series()
    turned = X[2:].with_static(X[2:].static[["sex", "age"]])
    assert_facts(SeriesBatch.concatenate([X[:2], turned]), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("static", "match"),
    [
        (None, r"batches must all have the static facts \['age', 'sex'\], got none"),
        (
            facts()[["age"]],
            r"batches must all have the static facts \['age', 'sex'\], got \['age'\]",
        ),
        (
            facts().assign(sex=1.0),
            "batches must have one kind of static 'sex', got numbers and categories",
        ),
    ],
)
def test_concatenate_refuses_other_facts(static, match):
    with pytest.raises(ValueError, match=match):
        SeriesBatch.concatenate([series(), series().with_static(static)])


def test_concatenate_takes_other_types_of_one_kind():
    X = as_series(np.ones((2, 3)))
    parts = [
        pd.DataFrame({"age": [1, 2], "unit": pd.Categorical(["a", "b"])}),
        pd.DataFrame({"age": [NAN, 2.5], "unit": ["c", None]}),
        pd.DataFrame({"age": [None, None], "unit": [NAN, NAN]}),
    ]
    joined = SeriesBatch.concatenate([X.with_static(part) for part in parts]).static
    np.testing.assert_array_equal(joined["age"].astype(float), [1, 2, NAN, 2.5, NAN, NAN])
    assert joined["unit"].fillna("?").tolist() == ["a", "b", "c", "?", "?", "?"]
    assert StaticEncoder().fit(joined).names() == [
        "age", "age missing", "unit=a", "unit=b", "unit=c"
    ]  # fmt: skip


def test_package_does_not_import_pandas():
    code = (
        "import sys, numpy, latent_morph; X = latent_morph.as_series(numpy.ones((2, 3)))[0];"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# Long tables


def table():
    return pd.DataFrame(
        {
            "id": ["b", "a", "b", "a", "c"],
            "hour": [1.0, 0.0, 0.0, 1.0, 0.0],
            "pulse": [80.0, 70.0, 81.0, 71.0, 90.0],
            "age": [NAN, 60.0, 40.0, 60.0, NAN],
            "sex": ["f", None, "f", "m", None],
        }
    )


def test_from_long_gathers_the_known_value_of_each_case():
    X = from_long(table(), "id", "hour", static=["age", "sex"])
    assert X.shape == (3, 2, 1)  # age is no channel
    np.testing.assert_array_equal(X.values[:, 0, 0], [81, 70, 90])
    np.testing.assert_array_equal(X.static["age"], [40, 60, NAN])
    assert X.static["sex"].fillna("?").tolist() == ["f", "m", "?"]
    assert from_long(table(), "id", "hour").static is None
    assert from_long(table(), "id", "hour", "pulse", static="sex").static.columns == ["sex"]


@pytest.mark.parametrize("dtype", [object, "string", "category"])
def test_from_long_takes_columns_of_categories(dtype):
    frame = table()
    frame["sex"] = frame["sex"].astype(dtype)
    X = from_long(frame, "id", "hour", static=["sex"])
    assert X.static["sex"].astype(object).where(X.static["sex"].notna(), "?").tolist() == [
        "f", "m", "?"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        (
            {"age": [41.0, 60, 40, 60, 1]},
            {},
            "column 'age' of frame must have one value per case, got 2 in case 'b'",
        ),
        (
            {"sex": ["f", "f", "f", "m", "m"]},
            {},
            "column 'sex' of frame must have one value per case, got 2 in case 'a'",
        ),
        ({}, {"static": ["size"]}, r"frame must have columns \['size'\]"),
        (
            {},
            {"columns": ["pulse", "age"]},
            r"static must have other columns than id, time and columns, got \['age'\]",
        ),
        ({}, {"static": ["hour"]}, r"than id, time and columns, got \['hour'\]"),
    ],
)
def test_from_long_refuses_invalid_facts(change, options, match):
    with pytest.raises(ValueError, match=match):
        from_long(table().assign(**change), "id", "hour", **{"static": ["age", "sex"]} | options)


# The encoder


def rows(**columns):
    return pd.DataFrame(columns)


def encode(encoder, **columns):
    return encoder.transform(rows(**columns)).tolist()


def test_numbers_are_scaled_by_median_and_interquartile_range():
    encoder = StaticEncoder().fit(rows(age=[10.0, 20.0, 30.0, 40.0, 50.0]))
    assert encoder.names() == ["age"]
    # Median 30, quartiles 20 and 40; 1.349 is the interquartile range of a standard normal
    # distribution, and arsinh compresses what is far out.
    deviation = np.array([0.0, 30.0, -5.0]) / (20 / 1.349)
    expected = 3 * np.arcsinh(deviation / 3)
    actual = encoder.transform(rows(age=[30, 60, 25]))
    np.testing.assert_allclose(actual[:, 0], expected, rtol=1e-12)
    assert actual.dtype == torch.float64
    assert encode(encoder, age=[1e9, -1e9]) == [[5.0], [-5.0]]


def test_numbers_of_which_most_are_equal_are_scaled_by_their_deviation():
    encoder = StaticEncoder().fit(rows(smokes=[False] * 9 + [True]))
    deviation = 3 * np.arcsinh(1 / 0.3 / 3)  # the standard deviation is 0.3
    np.testing.assert_allclose(encode(encoder, smokes=[True, False]), [[deviation], [0.0]])


def test_missing_numbers_have_an_indicator_where_training_had_one():
    encoder = StaticEncoder().fit(rows(age=[1.0, 2.0, 3.0], height=[1.0, NAN, 3.0]))
    assert encoder.names() == ["age", "height", "height missing"]
    assert encode(encoder, age=[NAN], height=[NAN]) == [[0.0, 0.0, 1.0]]
    assert encode(encoder, age=[2.0], height=[1.0]) == [[0.0, 0.0, 0.0]]  # a median of two


def test_categories_are_one_hot_and_unknown_ones_are_zero():
    encoder = StaticEncoder().fit(rows(sex=["m", "f", None, "m"]))
    assert encoder.names() == ["sex=f", "sex=m"]
    assert encode(encoder, sex=["m", "f", None, "x"]) == [[0, 1], [1, 0], [0, 0], [0, 0]]
    # Whether a table has text, categories or, of nothing known, numbers, does not matter.
    assert encode(encoder, sex=pd.Categorical(["f", "x"])) == [[1, 0], [0, 0]]
    assert encode(encoder, sex=pd.Series(["f", None], dtype="string")) == [[1, 0], [0, 0]]
    assert encode(encoder, sex=[NAN]) == encode(encoder, sex=[None]) == [[0, 0]]


def test_categories_keep_their_type():
    encoder = StaticEncoder().fit(rows(unit=pd.Categorical([2, 1, 2])))
    assert encoder.categories_ == {"unit": [1, 2]}
    assert encode(encoder, unit=pd.Categorical([1.0, 3.0])) == [[1, 0], [0, 0]]
    assert encode(encoder, unit=["1"]) == [[0, 0]]


def test_constant_and_unknown_facts():
    encoder = StaticEncoder().fit(rows(constant=[7, 7], never=[NAN, NAN], unit=["a", "a"]))
    assert encoder.names() == ["constant", "unit=a"]
    assert encode(encoder, constant=[7, 100], never=[1, 2], unit=["a", "b"]) == [[0, 1], [0, 0]]
    assert encode(encoder, constant=[7], never=["x"], unit=["a"]) == [[0, 1]]
    nothing = StaticEncoder().fit(rows(never=[None, None]))
    assert nothing.transform(rows(never=[1.0, 2.0])).shape == (2, 0)


def test_columns_are_matched_by_name():
    table = rows(age=[1.0, 2.0, 4.0], sex=["m", "f", "m"], height=[3.0, 1.0, 2.0])
    encoder = StaticEncoder().fit(table)
    turned = table[["height", "sex", "age"]]
    assert torch.equal(encoder.transform(turned), encoder.transform(table))
    assert torch.equal(encoder.tabulate(turned, fill=True), encoder.tabulate(table, fill=True))


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (
            rows(age=[1.0]),
            r"static must have the columns \['age', 'sex'\] as in fit, got \['age'\]",
        ),
        (rows(age=[1.0], sex=["m"], size=[1]), r"\[\] absent, \['size'\] unknown"),
        (rows(age=[1.0], gender=["m"]), r"\['sex'\] absent, \['gender'\] unknown"),
        (rows(age=["old"], sex=["m"]), "'age' of static must hold numbers as in fit, got categ"),
        (
            rows(age=[1.0], sex=[1.0]),
            "'sex' of static must hold categories as in fit, got numbers",
        ),
    ],
)
def test_other_columns_are_refused(table, match):
    encoder = StaticEncoder().fit(rows(age=[1.0, 2.0], sex=["m", "f"]))
    for method in (encoder.transform, lambda static: encoder.tabulate(static, fill=True)):
        with pytest.raises(ValueError, match=match):
            method(table)


def test_encoder_tabulates_facts_in_their_units():
    encoder = StaticEncoder().fit(rows(sex=["m", "f", "m"], age=[20.0, NAN, 50.0]))
    assert encoder.names(tabulated=True) == ["age", "sex=f", "sex=m"]
    table = rows(age=[NAN, 80.0], sex=["f", "?"])
    assert encoder.tabulate(table, fill=True).tolist() == [[35, 1, 0], [80, 0, 0]]
    np.testing.assert_equal(encoder.tabulate(table, fill=False).numpy(), [[NAN, 1, 0], [80, 0, 0]])


def test_a_weight_of_two_is_a_second_copy():
    table = rows(age=[1.0, 5.0, 20.0, 21.0], height=[NAN, 3.0, 4.0, 9.0])
    weighted = StaticEncoder().fit(table, weight=torch.tensor([1.0, 2.0, 1.0, 1.0]))
    copied = StaticEncoder().fit(table.iloc[[0, 1, 1, 2, 3]])
    assert weighted.state() == copied.state() != StaticEncoder().fit(table).state()


def test_encoder_state_survives_json():
    table = rows(
        age=[1.0, NAN, 4.0], sex=["m", "f", None], unit=pd.Categorical([1, 2, 1]), no=[None] * 3
    )
    encoder = StaticEncoder().fit(table)
    loaded = StaticEncoder.from_state(json.loads(json.dumps(encoder.state())))
    assert loaded.names() == encoder.names() and loaded.state() == encoder.state()
    assert torch.equal(loaded.transform(table), encoder.transform(table))
    assert torch.equal(loaded.tabulate(table, fill=True), encoder.tabulate(table, fill=True))


@pytest.mark.parametrize(
    "change",
    [
        {"columns": ["age"]},
        {"columns": ["age", "sex", "size"]},
        {"categories": {"sex": [["m"]]}},
        {"missing": ["size"]},
        {"means": []},
        {"scaler": None},
    ],
    ids=str,
)
def test_encoder_refuses_a_state_that_does_not_fit(change):
    state = StaticEncoder().fit(rows(age=[1.0, NAN], sex=["m", "f"])).state()
    StaticEncoder.from_state(state)
    with pytest.raises(ValueError, match="state must have parts that belong together"):
        StaticEncoder.from_state(state | change)
    for key in change:
        incomplete = {name: value for name, value in state.items() if name != key}
        with pytest.raises(ValueError, match="state must have the keys"):
            StaticEncoder.from_state(incomplete)


def test_encoder_must_be_fitted():
    with pytest.raises(NotFittedError, match="this StaticEncoder is not fitted"):
        StaticEncoder().transform(facts())
    with pytest.raises(ValueError, match="static must have at least one row, got none"):
        StaticEncoder().fit(facts()[:0])


@pytest.mark.parametrize("fitted", [[True, False], [True, False, None]])
def test_booleans_are_numbers_with_and_without_missing_ones(fitted):
    """pandas makes a column of objects of booleans of which some are missing."""
    encoder = StaticEncoder().fit(pd.DataFrame({"smoker": fitted}))
    assert encoder.numbers_ == ["smoker"]
    for facts in ([True, False], [True, None], [None, False]):
        encoded = encoder.transform(pd.DataFrame({"smoker": facts}))[:, 0]
        alone = [encoder.transform(pd.DataFrame({"smoker": [fact]}))[0, 0] for fact in facts]
        assert encoded.tolist() == [float(each) for each in alone]
    full = encoder.transform(pd.DataFrame({"smoker": [True, False]}))[:, 0]
    assert full[0] > full[1]
