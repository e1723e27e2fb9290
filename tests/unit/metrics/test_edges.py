import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from fedhca2.metrics import OdsF
from fedhca2.metrics.edge_kernels import sweep, thin
from fedhca2.metrics.edges import PRESETS, EdgeRules, average_precision, levels, suppress_non_maxima, triangle


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def skimage_thin(mask):
    from skimage.morphology import thin  # every worker collects this file, and only one runs it

    return thin(mask)


def smooth_map(rng, height, width, sigma=1.5):
    values = gaussian_filter(rng.random((height, width)), sigma)
    return (values - values.min()) / (np.ptp(values) + 1e-9)


def pairs(predicted, truth, radius):
    """Pairs of predicted and true pixels within the radius."""
    pixels = np.argwhere(predicted)[:, None], np.argwhere(truth)[None]
    return csr_matrix(((pixels[0] - pixels[1]) ** 2).sum(-1) <= radius**2)


@pytest.mark.parametrize("density", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("seed", range(8))
def test_thinning_is_that_of_scikit_image(density, seed):
    rng = np.random.default_rng(seed)
    for mask in (rng.random(rng.integers(1, 40, 2)) < density, smooth_map(rng, 60, 70, sigma=4) > density):
        np.testing.assert_array_equal(thin(mask), skimage_thin(mask))


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.3, 4.7])
@pytest.mark.parametrize("seed", range(5))
def test_each_threshold_is_thinned_alone_and_matched_as_scipy_does(radius, seed):
    rng = np.random.default_rng(seed)
    level = np.floor(smooth_map(rng, 40, 50, sigma=1.2) * 20.99).astype(np.uint8)
    truth = rng.random(level.shape) < 0.1
    thinned = [skimage_thin(level >= k) for k in range(1, 21)]
    matched = [maximum_bipartite_matching(pairs(each, truth, radius), perm_type="column") >= 0 for each in thinned]
    assert sweep(level, truth, 20, radius).tolist() == [[int(each.sum()) for each in all] for all in (matched, thinned)]


def test_a_value_on_a_threshold_reaches_it_and_a_match_may_be_exactly_at_the_distance():
    assert levels(np.full((15, 15), 51, np.uint8), EdgeRules())[7, 7] == 20
    level, truth = np.zeros((6, 7), np.uint8), np.zeros((6, 7), bool)
    level[1, 1], truth[4, 5] = 1, True
    assert [sweep(level, truth, 1, radius)[0, 0] for radius in (4.99, 5.0)] == [0, 1]


def reference_suppression(image, radius):
    """The definition, with angles, in float64."""
    smooth = triangle(image, 4).astype(np.float64)
    oy, ox = np.gradient(smooth)
    oxx, oxy, oyy = np.gradient(ox)[1], np.gradient(oy)[1], np.gradient(oy)[0]
    angle = np.mod(np.arctan(oyy * np.sign(-oxy) / (oxx + 1e-5)), np.pi)
    is_ridge = np.ones(image.shape, bool)
    for (i, j), a in np.ndenumerate(angle):
        for d in (d for d in range(-radius, radius + 1) if d):
            y = np.clip(i + d * np.sin(a), 0, image.shape[0] - 1.001)
            x = np.clip(j + d * np.cos(a), 0, image.shape[1] - 1.001)
            top, left = int(y), int(x)
            weights = np.outer([1 - (y - top), y - top], [1 - (x - left), x - left])
            is_ridge[i, j] &= 1.01 * image[i, j] >= (image[top : top + 2, left : left + 2] * weights).sum()
    return np.where(is_ridge, image, 0)


@pytest.mark.parametrize("radius", [1, 4])
def test_suppression_follows_its_definition(radius, rng):
    image = smooth_map(rng, 40, 50, sigma=2).astype(np.float32)
    differing = suppress_non_maxima(image, radius, border=0, smooth=False) != reference_suppression(image, radius)
    assert differing.mean() < 2e-3


def test_suppression_keeps_the_crest_of_a_wide_stroke_and_the_rim_fades_to_nothing():
    stroke = np.tile(np.exp(-((np.arange(41) - 20.0) ** 2) / 18), (41, 1)).astype(np.float32)
    assert set(np.nonzero(suppress_non_maxima(stroke, radius=4, border=0, smooth=True))[1]) == {20}
    ridge = suppress_non_maxima(np.ones((20, 20), np.float32), radius=4, border=5, smooth=True)
    np.testing.assert_allclose(ridge[10, :6], [0, 0.2, 0.4, 0.6, 0.8, 1], rtol=1e-6)


def score(edges, label, **options):
    metric = OdsF(0.02, workers=1, **options)
    metric.update(torch.as_tensor(edges)[None, None], torch.as_tensor(label)[None, None])
    return metric.compute()


def square():
    label = np.zeros((60, 70), np.uint8)
    label[20:40, 20] = label[20:40, 50] = label[20, 20:51] = label[39, 20:51] = 1
    return label


@pytest.mark.parametrize("preset", PRESETS)
def test_a_clear_drawing_of_the_truth_is_nearly_perfect_and_an_empty_map_scores_zero(preset):
    edges = np.minimum(gaussian_filter(square().astype(np.float32), 1.5) * 3, 1)
    assert score(edges, square(), rules=PRESETS[preset])["ods_f"] > 97
    assert score(np.zeros_like(edges), square(), rules=PRESETS[preset])["ods_f"] == 0


def test_padding_does_not_count(rng):
    edges, label = smooth_map(rng, 60, 70).astype(np.float32), square()
    padded = np.pad(edges, 9, constant_values=0.9), np.pad(label, 9, constant_values=255)
    scores = score(edges, label)
    assert score(*padded) == scores
    assert scores["ois_f"] >= scores["ods_f"] > 0  # the best threshold of each image is at least as good


def test_average_precision_of_a_straight_curve():
    """Precision falls from 1 at recall 0.5 to 0.5 at recall 1, so the area from .5 to 1 is 51 samples of mean .75."""
    counts = np.array([[100, 200, 100], [50, 50, 100]])
    assert average_precision(counts) == pytest.approx(0.51 * 0.75)
