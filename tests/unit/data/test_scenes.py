from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.files import decode_normals
from fedhca2.data.label_spaces import CONTEXT_IDS
from fedhca2.data.label_spaces import SCENE_LABELS as LABELS
from fedhca2.data.scenes.drawing import draw_room, draw_street
from fedhca2.data.scenes.rendering import count_people, encode_normals, render, salient, see
from fedhca2.data.scenes.solids import UPRIGHT, Dice, Paint, Solid, box, capsule, ellipsoid, photograph, plane, sky
from fedhca2.metrics.edges import boundaries

DOMAINS = ("outdoor", "indoor")
WHITE = Paint((0.5,) * 6, 0, 1.0, 0.0)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def batches():
    return {domain: render(domain, range(20), size=(32, 40), seed=5) for domain in DOMAINS}


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("size", [(32, 32), (19, 45)])
def test_a_scene_depends_on_its_seed_and_number_and_not_on_its_batch(domain, size):
    together = render(domain, [3, 11, 4], size=size, seed=1)
    for position, index in enumerate([3, 11]):
        alone = render(domain, [index], size=size, seed=1)
        for name, label in alone.items():
            assert torch.equal(label[0], together[name][position]), name
    scenes = [render(domain, [i], size=size, seed=seed)["normals"] for i in (0, 1) for seed in (0, 1)]
    assert len({scene.numpy().tobytes() for scene in scenes}) == 4


@pytest.mark.parametrize(("domain", "least", "edges_of"), [("outdoor", 7, "context"), ("indoor", 12, "semseg")])
def test_labels_are_those_declared_with_many_classes_and_their_boundaries(domain, least, edges_of, batches):
    batch = batches[domain]
    assert set(LABELS[domain]) | {"image"} == set(batch) - {"context"}
    classes = batch["semseg"].unique()
    assert classes.max() < LABELS[domain]["semseg"].classes
    assert len(classes) >= least
    assert set(batches["outdoor"]["context"].unique().tolist()) <= set(CONTEXT_IDS.values())
    assert torch.equal(batch["edge"].bool(), boundaries(batch[edges_of]))


@pytest.mark.parametrize("domain", DOMAINS)
def test_normals_have_unit_length_but_in_the_sky_and_survive_an_8_bit_image(domain, batches):
    batch = batches[domain]
    normals = batch["normals"]
    solid = torch.ones_like(normals[:, 0]) if domain == "indoor" else (batch["context"][:, 0] != 360).float()
    assert_close(normals.norm(dim=1), solid, atol=2 / 255, rtol=0)
    decoded = decode_normals(encode_normals(normals))
    assert torch.equal(torch.where((normals == 0).all(1, keepdim=True), 0, decoded), normals)


def test_normals_agree_with_the_slope_of_the_depth():
    size, index = 96, 3
    batch = render("indoor", [index], size=(size, size), seed=0)
    focal = float(draw_room(Dice([0, 1, index])).light[11])
    grid = ((torch.arange(size) + 0.5) / (size / 2) - 1) / focal
    depth, normals = batch["depth"][0, 0].double(), batch["normals"][0].double()
    points = torch.stack([grid * depth, -grid[:, None] * depth, -depth])
    across = (points[:, 1:-1, 2:] - points[:, 1:-1, :-2]) / 2
    down = (points[:, 2:, 1:-1] - points[:, :-2, 1:-1]) / 2
    slope = torch.nn.functional.normalize(torch.linalg.cross(down, across, dim=0), dim=0)
    around = torch.stack([normals[:, y : y + size - 2, x : x + size - 2] for y in range(3) for x in range(3)])
    label = torch.stack([batch["semseg"][0, :, y : y + size - 2, x : x + size - 2] for y in range(3) for x in range(3)])
    flat = ((around - around[4]).abs().amax((0, 1)) == 0) & (label == label[4]).all(0).all(0)
    cosine = torch.cosine_similarity(slope, around[4], dim=0)[flat]
    assert flat.float().mean() > 0.4
    assert (cosine > 0.9999).float().mean() > 0.98


def test_every_outdoor_scene_has_a_salient_object_and_most_a_person_with_parts(batches):
    batch = batches["outdoor"]
    semseg, sal, people = batch["semseg"], batch["sal"].bool(), batch["people"].flatten()
    assert sal.flatten(1).any(1).all()
    assert not (sal & (semseg == 0)).any()
    assert 0.45 < (semseg == 15).flatten(1).any(1).float().mean() < 0.95
    assert torch.equal(batch["human_parts"] > 0, semseg == 15)
    assert batch["human_parts"].unique().tolist() == list(range(7))
    assert (people[batch["things"][:, 15] == 0].max(), people.max() > 1) == (0, True)


def test_salient_objects_are_in_the_middle_people_are_counted_and_rooms_are_short(batches):
    assert not salient(torch.zeros(1, 1, 4, 4, dtype=torch.long)).any()
    semseg, objects = (torch.tensor(row).expand(1, 1, 4, 4) for row in ([15, 15, 12, 0], [1, 2, 3, 0]))
    assert count_people(semseg, objects).tolist() == [[2.0]]  # two people and a dog
    depth = batches["indoor"]["depth"]
    assert 0 < depth.min() < depth.max() < 10


@pytest.mark.parametrize("draw", [draw_street, draw_room])
def test_a_mirrored_scene_has_mirrored_labels_and_negated_x_normals(draw):
    scene = draw(Dice([9]))
    solids = scene.solids.copy()
    solids[:, Solid.CENTRE.start] *= -1
    solids[:, Solid.AXES.start : Solid.AXES.stop : 3] *= -1
    there, mirrored = (see([s], (32, 48), CPU) for s in (scene, replace(scene, solids=solids)))
    expected = there["normals"].flip(3) * torch.tensor([-1.0, 1, 1])[:, None, None]
    # Pixels on a silhouette may fall either way.
    assert ((mirrored["normals"] - expected).abs() > 1e-3).float().mean() < 0.005


def _before_the_camera(*rows):
    camera = {"eye": [0.0, 0.0, 0.0], "view": np.eye(3), "focal": 1.0}
    return photograph(Dice([0]), rows, sky(WHITE), **camera, elevation=(1.2, 1.3), haze=0.0)


@pytest.mark.parametrize(
    ("solid", "depth"),
    [
        (box((0, 0, -5), (1, 1, 1), WHITE), 4.0),
        (ellipsoid((0, 0, -5), (1, 1, 2), WHITE), 3.0),
        (capsule((-1, 0, -5), (1, 0, -5), 0.5, WHITE), 4.5),
        (capsule((0, 0, -5), (0, 0, -7), 0.5, WHITE), 4.5),
        (plane((0, 0, -5), ((1, 0, 0), (0, 0, 1), (0, 1, 0)), WHITE), 5.0),
    ],
)
def test_distance_to_a_solid_straight_ahead(solid, depth):
    seen = see([_before_the_camera(solid)], (1, 1), CPU)
    assert_close(seen["depth"].item(), depth, atol=1e-4, rtol=0)
    assert_close(seen["normals"].flatten(), torch.tensor([0.0, 0, 1]), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "roof",
    [
        box((0, 2, -4), (9, 0.1, 9), WHITE),
        ellipsoid((0, 3, -4), (9, 1, 9), WHITE),
        capsule((0, 30, -4), (0, 40, -4), 25, WHITE),
    ],
)
def test_a_solid_overhead_keeps_the_light_off_the_ground(roof):
    ground = plane((0, -1, 0), UPRIGHT, WHITE)
    below = (slice(None), slice(None), slice(6, None))
    open_, roofed = (see([_before_the_camera(*rows)], (8, 8), CPU)["image"] for rows in ([ground], [ground, roof]))
    assert roofed[below].float().mean() < open_[below].float().mean() - 20
