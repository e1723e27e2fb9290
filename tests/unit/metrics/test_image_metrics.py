"""Metrics of tasks with one answer per image, or a few points in it."""

import pytest
import torch

from fedhca2.metrics import Accuracy, CorrectKeypoints, MeanAveragePrecision, VectorMAE, VectorRMSE
from fedhca2.metrics.images import average_precision


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns(ties):
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        labels = (torch.rand(30, generator=rng) < 0.3).double()
        labels[:2] = torch.tensor([0, 1])
        scores = torch.rand(30, generator=rng, dtype=torch.float64)
        scores = (4 * scores).round() if ties else scores
        expected = sklearn.average_precision_score(labels.numpy(), scores.numpy())
        assert average_precision(scores, labels) == pytest.approx(expected, abs=1e-12)


def test_a_class_that_all_or_no_images_have_is_left_out():
    metric = MeanAveragePrecision()
    metric.update(torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.5, 0.1]]), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    assert metric.compute() == {"map": 100.0, "classes": 1.0}


def test_accuracy_over_classes_counts_rare_ones_as_much():
    prediction, label = torch.zeros(5, 1), torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0]])
    found = {}
    for over in ("images", "classes"):
        metric = Accuracy(3, over)
        metric.update(prediction, label)
        found |= metric.compute()
    assert found == {"accuracy": 80.0, "mean_class_accuracy": 50.0}


@pytest.mark.parametrize("make", [MeanAveragePrecision, VectorRMSE, VectorMAE, lambda: Accuracy(3), CorrectKeypoints])
def test_batches_add_up_in_any_grouping(make):
    rng = torch.Generator().manual_seed(1)
    shape = (6, 2, 8, 8) if make is CorrectKeypoints else (6, 1)
    label = torch.randint(0, 2, shape, generator=rng).float()
    label[0] = 255 if make is CorrectKeypoints else torch.nan
    prediction = torch.rand(shape, generator=rng).round()
    whole, first, second = make(), make(), make()
    whole.update(prediction, label)
    first.update(prediction[:2], label[:2])
    second.update(prediction[2:], label[2:])
    first.merge(second)
    assert first.compute() == whole.compute()


@pytest.mark.parametrize("make", [MeanAveragePrecision, VectorRMSE, VectorMAE, lambda: Accuracy(3)])
def test_nothing_known_has_no_score(make):
    metric = make()
    metric.update(torch.zeros(2, 1), torch.full((2, 1), torch.nan))
    assert metric.compute()[metric.name] != metric.compute()[metric.name]  # NaN
