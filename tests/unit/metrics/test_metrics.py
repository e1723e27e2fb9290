from math import isnan

import pytest
import torch
from torch.testing import assert_close

from fedhca2.metrics import (
    Accuracy,
    AngularError,
    CorrectKeypoints,
    DepthRMSE,
    MaxF,
    MeanAveragePrecision,
    MeanIoU,
    OdsF,
    SalientIoU,
    SalientIoUOfImages,
    VectorMAE,
    VectorRMSE,
    delta_m,
)
from fedhca2.metrics.metric import average_precision
from fedhca2.metrics.pixels import angle

MAP, IMAGES = (4, 1, 8, 9), (12, 2)


def classes(rng):
    return torch.randint(0, 5, MAP, generator=rng), torch.randint(0, 5, MAP, generator=rng)


def probabilities(rng, shape=MAP):
    return torch.rand(shape, generator=rng), torch.randint(0, 2, shape, generator=rng)


def depths(rng):
    return torch.rand(MAP, generator=rng), torch.rand(MAP, generator=rng)


def vectors(rng, shape=(4, 3, 8, 9)):
    return torch.randn(shape, generator=rng), torch.randn(shape, generator=rng)


MAPS = {
    "miou": (lambda: MeanIoU(5), classes),
    "max_f": (MaxF, probabilities),
    "salient_iou": (SalientIoU, probabilities),
    "salient_iou_of_images": (SalientIoUOfImages, probabilities),
    "angle": (AngularError, vectors),
    "rmse": (DepthRMSE, depths),
}
KINDS = MAPS | {
    "ods_f": (lambda: OdsF(0.2), probabilities),
    "pck": (CorrectKeypoints, lambda rng: probabilities(rng, (4, 2, 8, 9))),
    "map": (MeanAveragePrecision, lambda rng: probabilities(rng, IMAGES)),
    "accuracy": (lambda: Accuracy(3), lambda rng: (torch.zeros(12, 1), torch.randint(0, 3, (12, 1), generator=rng))),
    "vector_rmse": (VectorRMSE, lambda rng: vectors(rng, IMAGES)),
    "vector_mae": (VectorMAE, lambda rng: vectors(rng, IMAGES)),
}


def score(make, *batches):
    metric = make()
    for prediction, label in batches:
        metric.update(prediction, label)
    return metric.compute()


@pytest.mark.parametrize(("make", "example"), KINDS.values(), ids=KINDS)
def test_images_add_up_in_any_batches(make, example, rng):
    p, g = example(rng)
    before, expected = (p.clone(), g.clone()), score(make, (p, g))
    metric = make()
    assert (next(iter(expected)), isnan(expected[metric.name])) == (metric.name, False)
    metric.update(p[:1], g[:1])
    metric.compute()  # which is no end
    metric.update(p[1:], g[1:])
    assert metric.compute() == pytest.approx(expected, rel=1e-12)
    assert_close((p, g), before, rtol=0, atol=0)


@pytest.mark.parametrize(("make", "example"), MAPS.values(), ids=MAPS)
def test_ignored_pixels_do_not_count(make, example, rng):
    p, g = example(rng)
    g[..., 5:] = 255
    assert score(make, (p, g)) == pytest.approx(score(make, (p[..., :5], g[..., :5])), rel=1e-12)


@pytest.mark.parametrize(("make", "example"), KINDS.values(), ids=KINDS)
def test_without_any_known_label_there_is_no_score(make, example, rng):
    p, g = example(rng)
    unknown = torch.full(g.shape, 255.0 if g.ndim > 2 else torch.nan)
    assert isnan(score(make, (p, unknown))[make().name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("make", "example"), MAPS.values(), ids=MAPS)
def test_update_never_waits_for_the_gpu(make, example, rng):
    p, g = (tensor.cuda() for tensor in example(rng))
    metric = make()
    metric.update(p, g)  # the first update moves the sums to the device
    torch.cuda.set_sync_debug_mode("error")  # waiting raises an error
    try:
        metric.update(p, g)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert metric.compute() == pytest.approx(score(make, (p.cpu(), g.cpu()), (p.cpu(), g.cpu())), rel=1e-9)


@pytest.mark.parametrize(
    ("make", "prediction", "label", "expected"),
    [
        (lambda: MeanIoU(4, absent="zero"), [[[[0, 1]]]], [[[[0, 1]]]], {"miou_all_classes": 50.0, "classes": 2.0}),
        (lambda: Accuracy(3), [[0.0]] * 5, [[0.0]] * 4 + [[1.0]], {"accuracy": 80.0}),
        (lambda: Accuracy(3, "classes"), [[0.0]] * 5, [[0.0]] * 4 + [[1.0]], {"mean_class_accuracy": 50.0}),
        # A class that all or no images have is left out.
        (MeanAveragePrecision, [[0.9, 0.5, 0], [0.2, 0.5, 0]], [[1.0, 1, 0], [0, 1, 0]], {"map": 100.0, "classes": 1}),
    ],
)
def test_rare_and_absent_classes(make, prediction, label, expected):
    assert score(make, (torch.tensor(prediction), torch.tensor(label))) == expected


def test_unknown_class_is_an_error():
    with pytest.raises(ValueError, match=r"0 … 1 or 255 \(ignored\), got 1 pixels"):
        score(lambda: MeanIoU(2), (torch.tensor([[[[0, 1]]]]), torch.tensor([[[[0, 2]]]])))


def test_max_f_equals_a_loop_over_thresholds(rng):
    p, g = probabilities(rng)
    p[0, 0, 0, :3] = torch.tensor([0.05, 0.5, 0.95])
    best = 0.0
    for t in range(1, 20):
        on = p >= torch.tensor(t) / 20
        hits = float((on & (g == 1)).sum())
        precision, recall = hits / max(float(on.sum()), 1), hits / float((g == 1).sum())
        best = max(best, 1.3 * precision * recall / max(0.3 * precision + recall, 1e-9))
    assert score(MaxF, (p, g))["max_f"] == pytest.approx(100 * best, rel=1e-9)
    assert score(MaxF, (p, torch.zeros_like(g)))["max_f"] == 0


def test_salient_iou_is_that_of_the_more_likely_class(rng):
    p, g = probabilities(rng)
    p[0, 0, 0, 0] = 0.5  # no more likely than the background
    assert score(SalientIoU, (p, g)) == score(lambda: MeanIoU(2), (torch.cat((1 - p, p), 1).argmax(1, True), g))


def test_iou_of_images_equals_a_loop_over_images_and_thresholds(rng):
    p, g = probabilities(rng)
    g[0] = 0
    p[0] = 0.1  # correctly empty
    means = []
    for t in range(4, 19):
        pairs = [((probability >= t / 20), label == 1) for probability, label in zip(p, g, strict=True)]
        ious = [float((on & is_).sum()) / float((on | is_).sum()) if (on | is_).any() else 1.0 for on, is_ in pairs]
        means.append(sum(ious) / len(ious))
    assert score(SalientIoUOfImages, (p, g))["miou_of_images"] == pytest.approx(100 * max(means), rel=1e-9)
    g[2:] = 255  # images without labels do not count
    assert score(SalientIoUOfImages, (p, g)) == score(SalientIoUOfImages, (p[:2], g[:2]))


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 30.0, 90.0, 179.999999, 180.0])
def test_angle_is_accurate_at_both_ends(degrees):
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    turned = torch.stack((radians.cos(), radians.sin(), torch.zeros_like(radians)))[None]
    assert float(angle(torch.tensor([[3.0, 0.0, 0.0]]), turned)) == pytest.approx(degrees, abs=1e-12)
    assert float(angle(torch.zeros(1, 3), turned)) == pytest.approx(90)  # a vector of length zero has no direction


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


PAIRS = {"a": {"semseg": 3.0}, "b": {"semseg": 1.0}, "c": {"semseg": 1.0, "depth": 0.5}}
ALONE = {"a": {"semseg": 1.5}, "b": {"semseg": 0.5}, "c": {"semseg": 1.0, "depth": 0.7}}
BETTER = {"semseg": True, "depth": False}


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ({"a": "one", "b": "one", "c": "another"}, (100 + 0 + 200 / 7) / 3),  # the gains of the three columns
        ({"a": "one", "b": "another", "c": "a third"}, delta_m(PAIRS, ALONE, BETTER)),
    ],
)
def test_clients_of_a_kind_count_once(kinds, expected):
    assert delta_m(PAIRS, ALONE, BETTER, kinds) == pytest.approx(expected)
    assert isnan(delta_m({**PAIRS, "b": {"semseg": float("nan")}}, ALONE, BETTER, kinds))


def test_a_baseline_of_zero_needs_another_client_of_its_kind():
    ours, alone = {"a": {"semseg": 2.0}, "b": {"semseg": 2.0}}, {"a": {"semseg": 0.0}, "b": {"semseg": 2.0}}
    assert delta_m(ours, alone, BETTER, {"a": "one", "b": "one"}) == 100
    assert isnan(delta_m(ours, alone, BETTER))


def test_delta_m_needs_the_same_pairs():
    with pytest.raises(ValueError, match="expected scores of the baseline"):
        delta_m({"a": {"semseg": 1.0}}, {"a": {"semseg": 1.0, "depth": 1.0}}, {"semseg": True, "depth": False})
