"""train: reproducible, resumable after an interrupt, and stopping as the settings say."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from latent_morph.encoders import GRUODEEncoder
from latent_morph.flows import LinearFlow
from latent_morph.losses import LatentODELoss
from latent_morph.models import LatentODE
from latent_morph.models.decoders import Decoder, SeriesHead
from latent_morph.series import Examples, as_series
from latent_morph.training import (
    OPTIMIZERS,
    Settings,
    TrainingError,
    loop,
    train,
)
from latent_morph.training.loop import learning_rate_factor

QUICK = Settings(
    optimizer="adamw",
    learning_rate=0.02,
    weight_decay=1e-4,
    schedule="one-cycle",
    gradient_clip=1.0,
    batch_size=4,
    max_epochs=4,
)
LOSS = LatentODELoss(kl_warmup=0.2)


def build():
    torch.manual_seed(0)
    encoder = GRUODEEncoder(1, 2, LinearFlow, hidden_dim=4)
    head = SeriesHead(2, encoder.state_dim, 2, head="trajectory+context", width=4)
    return LatentODE(encoder, LinearFlow(2), Decoder(2, 1, width=4), head)


def examples(n=10):
    rng = np.random.default_rng(0)
    cases = [np.full(2 + i % 3, float(i % 2)) + 0.1 * rng.standard_normal() for i in range(n)]
    return Examples(as_series(cases), labels=torch.arange(n) % 2)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def run(settings=QUICK, *, model=None, score=None, loss=LOSS, train_examples=None, **options):
    """Trains and returns the model and the history. `score` receives the number of the call."""
    model = build() if model is None else model
    calls = iter(range(1, 1000))
    score_call = (lambda model, part: score(next(calls))) if score else (lambda model, part: 0.0)
    train_examples = examples() if train_examples is None else train_examples
    val_examples = train_examples if score else None
    return model, train(
        model, loss, train_examples, val_examples, score_call, settings, seed=1, **options
    )


def assert_equal_weights(a, b):
    a, b = (x if isinstance(x, dict) else x.state_dict() for x in (a, b))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)


def interrupt_after(n_epochs):
    def callback(history, settings):
        if len(history.rows) == n_epochs:
            raise KeyboardInterrupt

    return callback


# Reproducibility


@pytest.mark.parametrize("keep", [None, 0.5])
def test_train_is_reproducible(keep):
    loss = replace(LOSS, keep=keep)
    # Subsampled rows have no labels.
    train_examples = replace(examples(), labels=None) if keep else examples()
    (one, history), (other, _) = (run(loss=loss, train_examples=train_examples) for _ in range(2))
    assert_equal_weights(one, other)
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4]
    model = build()
    train(model, loss, train_examples, None, lambda m, e: 0.0, QUICK, seed=2)
    assert any(
        not torch.equal(p, q) for p, q in zip(model.parameters(), one.parameters(), strict=True)
    )


def test_train_reduces_loss():
    _, history = run(replace(QUICK, max_epochs=30))
    assert history.rows[-1]["train_loss"] < 0.5 * history.rows[0]["train_loss"]


def test_make_batches_visits_every_case_once():
    batches = loop._make_batches(examples(11), 4, np.random.RandomState(0))
    assert sorted(np.concatenate(batches)) == list(range(11))
    assert max(map(len, batches)) == 4


# Interruptions


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_train_resumes_after_interrupt(tmp_path, optimizer):
    settings = replace(QUICK, optimizer=optimizer, checkpoint=tmp_path / "run.pt")
    scores = [0.1, 0.5, 0.2, 0.4]
    arguments = {
        "train_examples": replace(examples(), labels=None),
        "loss": replace(LOSS, keep=0.6),
    }
    whole, history = run(settings, **arguments, score=lambda n: scores[n - 1])
    settings.checkpoint.unlink()
    with pytest.raises(KeyboardInterrupt):
        run(settings, **arguments, score=lambda n: scores[n - 1], callbacks=[interrupt_after(2)])
    resumed, resumed_history = run(
        replace(settings, resume=True), **arguments, score=lambda n: scores[n + 1]
    )
    assert_equal_weights(whole, resumed)
    assert [row["epoch"] for row in resumed_history.rows] == [1, 2, 3, 4]
    assert resumed_history.best_epoch == history.best_epoch == 2
    for uninterrupted, continued in zip(history.rows, resumed_history.rows, strict=True):
        assert uninterrupted["train_loss"] == continued["train_loss"]


def test_train_resumes_after_interrupt_within_epoch(tmp_path, monkeypatch):
    settings = replace(QUICK, checkpoint=tmp_path / "run.pt")
    scores = [0.5, 0.1, 0.2, 0.9]  # the best epoch is not the last one before the interrupt
    whole, _ = run(settings, score=lambda n: scores[n - 1])
    settings.checkpoint.unlink()
    step, steps = torch.optim.AdamW.step, iter(range(100))

    def interrupted_step(self, *args, **kwargs):
        if next(steps) == 7:  # three batches per epoch: within the third epoch
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        run(settings, score=lambda n: scores[n - 1])
    monkeypatch.undo()
    resumed, history = run(replace(settings, resume=True), score=lambda n: scores[n + 1])
    assert len(history.rows) == 4
    assert_equal_weights(whole, resumed)


def test_train_resume_adds_epochs_to_finished_run(tmp_path):
    settings = replace(QUICK, max_epochs=2, checkpoint=tmp_path / "run.pt", schedule="constant")
    run(settings)
    model, history = run(replace(settings, max_epochs=5, resume=True))
    assert [row["epoch"] for row in history.rows] == [1, 2, 3, 4, 5]
    again, same = run(replace(settings, max_epochs=5, resume=True))
    assert len(same.rows) == 5
    assert_equal_weights(model, again)


def test_checkpoint_is_overwritten_without_resume(tmp_path):
    settings = replace(QUICK, max_epochs=2, checkpoint=tmp_path / "run.pt")
    run(settings)
    _, history = run(settings)
    assert len(history.rows) == 2


def corrupt_by_emptying(path):
    path.write_bytes(b"")


def corrupt_by_truncating(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def corrupt_by_text(path):
    path.write_text("not a checkpoint")


def corrupt_version(path):
    torch.save(torch.load(path) | {"version": 99}, path)


def corrupt_rows(path):
    content = torch.load(path)
    del content["rows"]
    torch.save(content, path)


def corrupt_model(path):
    torch.save(torch.load(path) | {"model": {}}, path)


@pytest.mark.parametrize(
    "corrupt",
    [
        corrupt_by_emptying,
        corrupt_by_truncating,
        corrupt_by_text,
        corrupt_version,
        corrupt_rows,
        corrupt_model,
    ],
)
def test_checkpoint_damaged_is_named_and_kept(tmp_path, corrupt):
    settings = replace(QUICK, max_epochs=1, checkpoint=tmp_path / "run.pt")
    run(settings)
    corrupt(settings.checkpoint)
    before = settings.checkpoint.read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint must be .*, got .*run\.pt.*Delete it"):
        run(replace(settings, resume=True))
    assert settings.checkpoint.read_bytes() == before


def test_checkpoint_rejects_absent_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        run(replace(QUICK, checkpoint=tmp_path / "absent" / "run.pt"))


# Stopping and best weights


def test_train_keeps_best_weights_and_later_of_ties():
    kept = []

    def watch(history, settings):
        kept.append(weights(model))

    model = build()
    scores = [0.3, 0.9, 0.5, 0.9]
    _, history = run(replace(QUICK), model=model, score=lambda n: scores[n - 1], callbacks=[watch])
    assert (history.best_epoch, history.best_score) == (4, 0.9)
    model = build()
    scores = [0.3, 0.9, 0.5, 0.8]
    kept.clear()
    _, history = run(replace(QUICK), model=model, score=lambda n: scores[n - 1], callbacks=[watch])
    assert history.best_epoch == 2
    assert_equal_weights(model, kept[1])


def test_train_keeps_buffers_of_best_epoch():
    model = build()
    model.register_buffer("seen", torch.zeros(()))

    def count(part, _):
        part.seen += part.training

    model.register_forward_pre_hook(count)
    scores = [0.1, 0.5, 0.2, 0.4]
    _, history = run(model=model, score=lambda n: scores[n - 1])
    assert history.best_epoch == 2 and model.seen == 6  # three batches per epoch


def test_train_restores_training_mode_after_callback():
    modes = []

    def callback(history, settings):
        modes.append(model.decoder.training)
        model.decoder.eval()

    model = build()
    run(model=model, callbacks=[callback])
    assert modes == [True] * 4


@pytest.mark.parametrize(
    ("options", "error"),
    [({"callbacks": [3]}, TypeError), ({"settings": replace(QUICK, patience=0)}, ValueError)],
)
def test_train_leaves_model_unchanged_on_invalid_arguments(options, error):
    model = build()
    with pytest.raises(error):
        run(model=model, **options)
    assert all(weight.grad is None for weight in model.parameters())
    storages = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    assert len(storages) == len(list(model.parameters()))


def test_train_without_validation_keeps_last_weights():
    kept = []
    model = build()
    _, history = run(model=model, callbacks=[lambda *_: kept.append(weights(model))])
    assert history.best_epoch == 4 and "validation_score" not in history.rows[0]
    assert_equal_weights(model, kept[-1])


@pytest.mark.parametrize(
    ("scores", "n_epochs"),
    [
        ([1, 2, 3, 2, 2, 9], 5),
        ([1, 2, 3, 3, 3, 9], 5),  # an equal score is no improvement
        ([math.nan, 1, math.nan, 2, 2, 3], 6),
        ([6, 5, 4, 3, 2, 1], 3),
    ],
)
def test_patience_counts_epochs_without_improvement(scores, n_epochs):
    settings = replace(QUICK, max_epochs=6, patience=2)
    _, history = run(settings, score=lambda n: float(scores[n - 1]))
    assert len(history.rows) == n_epochs


def test_patience_without_validation_never_stops():
    _, history = run(replace(QUICK, patience=1))
    assert len(history.rows) == 4


def test_budget_ends_training_and_schedule(monkeypatch):
    clock = iter(np.arange(0, 1e4, 0.5))  # every reading of the clock takes half a second
    monkeypatch.setattr(loop.time, "perf_counter", lambda: float(next(clock)))
    _, history = run(replace(QUICK, max_epochs=1000, budget=30.0))
    assert 2 <= len(history.rows) <= 20
    assert history.rows[-1]["learning_rate"] < 0.3 * QUICK.learning_rate


# Non-finite losses


class NonFiniteLoss(LatentODELoss):
    """A loss that is NaN, or has a non-finite gradient, from the given call on."""

    def __init__(self, call, how):
        super().__init__(kl_warmup=LOSS.kl_warmup)
        object.__setattr__(self, "calls", iter(range(1, 1000)))
        object.__setattr__(self, "rule", (call, how))

    def __call__(self, *args, **kwargs):
        loss = super().__call__(*args, **kwargs)
        call, how = self.rule
        if next(self.calls) < call:
            return loss
        if how == "loss":
            return loss._replace(total=loss.total * math.nan)
        # Adds 0, which has an infinite gradient.
        return loss._replace(total=loss.total + (0 * loss.total).sqrt())


@pytest.mark.parametrize("how", ["loss", "gradient"])
@pytest.mark.parametrize("clip", [1.0, None])
def test_train_non_finite_loss_restores_last_good_weights(tmp_path, how, clip):
    settings = replace(QUICK, checkpoint=tmp_path / "run.pt", gradient_clip=clip)
    model, kept = build(), []
    with pytest.raises(TrainingError, match=f"{how} is (nan|inf) in epoch 2, batch 2 of 3"):
        run(
            settings,
            model=model,
            loss=NonFiniteLoss(5, how),
            callbacks=[lambda *_: kept.append(weights(model))],
        )
    assert len(kept) == 1
    assert_equal_weights(model, kept[0])
    assert_equal_weights(torch.load(settings.checkpoint)["model"], kept[0])
    resumed, history = run(replace(settings, resume=True))
    whole, _ = run(replace(settings, checkpoint=None))
    assert len(history.rows) == 4
    assert_equal_weights(resumed, whole)


def test_train_non_finite_loss_in_first_epoch_restores_initial_weights():
    model = build()
    before = weights(model)
    with pytest.raises(TrainingError, match="epoch 1, batch 3 of 3"):
        run(model=model, loss=NonFiniteLoss(3, "loss"))
    assert_equal_weights(model, before)


# Schedules


@pytest.mark.parametrize(
    ("schedule", "start", "end"),
    [("one-cycle", 0.1, 0.005), ("exponential", 1.0, 0.01), ("constant", 1.0, 1.0)],
)
def test_learning_rate_schedule_start_and_end(schedule, start, end):
    factors = [learning_rate_factor(schedule, p) for p in np.linspace(0, 1, 201)]
    assert factors[0] == pytest.approx(start) and factors[-1] == pytest.approx(end)
    assert max(factors) == pytest.approx(1.0)
    assert np.abs(np.diff(factors)).max() < 0.05  # no jumps
    _, history = run(replace(QUICK, schedule=schedule))
    last = history.rows[-1]["learning_rate"]
    assert last == pytest.approx(end * QUICK.learning_rate)


@pytest.mark.parametrize("clip", [0.01, None])
def test_gradient_clip_limits_norm(monkeypatch, clip):
    norms = []
    step = torch.optim.AdamW.step

    def recorded_step(self, *args, **kwargs):
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", recorded_step)
    run(replace(QUICK, gradient_clip=clip))
    assert len(norms) == 12
    assert max(norms) <= 0.0101 if clip else min(norms) > 0.02


@pytest.mark.parametrize(("warmup", "expected"), [(0.5, [0.5, 1, 1, 1]), (0.0, [1, 1, 1, 1])])
def test_kl_warmup_factors(warmup, expected):
    kl_factors = []

    class RecordingLoss(LatentODELoss):
        def evaluate(self, *args, kl_factor, **kwargs):
            kl_factors.append(kl_factor)
            return super().evaluate(*args, kl_factor=kl_factor, **kwargs)

    run(replace(QUICK, batch_size=10), loss=RecordingLoss(kl_warmup=warmup))
    assert kl_factors == pytest.approx(expected)


@pytest.mark.parametrize("name", ["optimizer", "schedule"])
def test_train_rejects_unknown_optimizer_and_schedule(name):
    with pytest.raises(ValueError, match=f"{name} must be one of .*, got 'adamwww'"):
        run(replace(QUICK, **{name: "adamwww"}))
