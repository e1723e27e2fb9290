"""The runs behind docs/results.md, the most important first, a line each: NAME EXPERIMENT --set …

    python benchmarks/results_jobs.py [PART …] [--missing]

Parts are `catalogue`, `curve`, `sensitivity`, `photographs` and so on; by default all. --missing leaves out the runs
that are in the records. NAME is a name for the run's folder. Photographs need --set for data and weights besides.
"""

import argparse
import json
from pathlib import Path

from results_records import RECORDS, find_missing, read_records

from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS

SEEDS = 3
SCENES = ("scenes_1c", "scenes_2c", "scenes_4c", "scenes_2")
PHOTOGRAPHS = ("real_1c", "real_2c", "real_2")
PHOTOGRAPHS_METHODS = (
    "local",
    "pooled",
    "fedavg",
    "fedprox",
    "fedper",
    "ditto",
    "fedamp",
    "matfl",
    "single_task_fl",
    "fedpull",
    "fedhca2",
)
# What the settings of photographs gain: each run takes one of them back, and the last takes all back but the encoder.
LITE2 = ["encoder.name=tf_efficientnet_lite2", "encoder.weights=data/tf_efficientnet_lite2.safetensors"]
RECIPE = {
    "frozen": ["model.encoder.frozen=true"],
    "one_rate": ["training.encoder_rate=null"],
    "transposed": ["model.head=transposed"],
    "narrow": ["model.decoder_width=64"],
    "wide_scales": ["training.scales=[0.5,2.0]"],
    "lite2": [f"model.{setting}" for setting in LITE2],
}
# Images per outdoor client: rounds, epochs per round, seeds. The indoor client has 0.8 times as many images, as in
# scenes_1c, which is the point at 500. Every outdoor client takes 2,400 to 2,500 steps, so that the smallest shards are
# trained out as well (on 25 images, semantic segmentation still gains between 600 and 1,200 steps), and one point
# differs from the next in the number of images. Exchanges are 50 to 62 steps apart, and 125 at 1,000 images.
CURVE = {25: (40, 20, 2), 50: (40, 10, 2), 100: (40, 5, 2), 200: (50, 2, 2), 1000: (20, 1, 1)}
CURVE_METHODS = ("local", "fedper", "matfl", "fedhca2", "fedpull")
# Exchanges per epoch of scenes_1c with 60 batches in an outdoor client's epoch and 48 in the indoor one's, so that all
# take equal numbers of steps in 40 epochs. Alone, the length of rounds does not matter, so Local is run with one.
EXCHANGES = (0.25, 1, 2, 4, 12)
EXCHANGES_METHODS = ("fedper", "matfl", "fedpull", "fedhca2")
# What the supplementary's tables 4, 6, 7 and table 3 change, fixed weights, and α and β alone. The defaults are in
# scenes_1c itself. What the supplementary's tables 5 and 8 change in the second scenario, with c from 0.1 to 0.9.
SENSITIVITY = {
    **{f"c{c}": [f"c={c}"] for c in (0.2, 0.6, 0.8)},
    **{f"start{start}": [f"alpha={start}", f"beta={start}"] for start in (0.01, 0.5, 1)},
    "alpha1": ["alpha=1"],
    "beta1": ["beta=1"],
    "fixed": ["learn=false"],
    **{f"rate{rate}": [f"lr={rate}"] for rate in (0.005, 0.05, 0.1)},
    "encoder_alone": ["decoder=null"],
    "decoder_alone": ["encoder=null"],
}
SENSITIVITY_2 = {
    **{f"c{c}": [f"c={c}"] for c in (0.1, 0.2, 0.6, 0.8, 0.9)},
    **{f"start{start}": [f"alpha={start}", f"beta={start}"] for start in (0.01, 0.5, 1)},
}
# How decoders start: these in experiments with several clients of a kind, which otherwise have a common start.
STARTS = ("scenes_2c", "scenes_4c")
STARTS_METHODS = ("local", "fedper", "single_task_fl", "fedpull", "fedhca2")
LORA = "adapters.kind=lora"
ENCODERS = {
    "lora8": [LORA, "adapters.rank=8"],
    "lora32": [LORA, "adapters.rank=32", "adapters.alpha=32"],
    "frozen": ["frozen=true"],
}
SMALL_METHODS = ("local", "alone_longer", "pooled", "fedper", "matfl", "fedpull", "fedhca2")
MIXED_METHODS = ("local", "fedavg", "fedper", "fedpull", "fedhca2")
DEMO_SEEDS = 5
EARTH_METHODS = ("local", "fedper", "fedpull", "fedhca2", "pooled")
MOLECULES = ("molecules_10", "molecules_few", "molecules_families")
SCAFFOLDS = ("molecules_10_scaffolds", "molecules_families_scaffolds")  # with scores on molecules that nobody has
LATE = ["method.until=0.75"]
SCAFFOLDS_METHODS = ("local", "fedpull", "fedper", "fedhca2", "pooled")
MOLECULES_SEEDS = 5
# Who takes part. A client has 500 images outdoors and 400 or 500 indoors, or 100 if there are a hundred clients.
OUTDOOR = {"data": "outdoor", "split": ["semseg", "human_parts", "sal", "normals", "edge"]}
HOME = {"name": "home", "data": "indoor", "tasks": ["semseg", "depth", "normals", "edge"]}
STREET = {"name": "street", "data": "outdoor", "tasks": ["semseg", "human_parts", "normals"]}
ROOMS = {"kind": "scenes", "domain": "indoor", "size": [64, 64], "seed": 1, "train": 1200, "val": 400}
PARTIES = {
    "outdoor_alone": ("scenes_1c", {"clients": [OUTDOOR]}),
    "indoor_alone": ("scenes_2", {"clients": [{"data": "indoor", "split": ["semseg", "normals", "edge", "depth"]}]}),
    "multi_task": (
        "scenes_1c",
        {"data.outdoor.train": 500, "clients": [STREET, HOME | {"tasks": ["semseg", "normals"]}]},
    ),
    "three": (
        "scenes_1c",
        {"data.outdoor.train": 1500, "clients": [OUTDOOR | {"split": ["semseg", "sal", "normals"]}]},
    ),
    "nine": (
        "scenes_1c",
        {"data.rooms": ROOMS, "clients": [OUTDOOR, HOME, {"data": "rooms", "split": ["semseg", "depth", "normals"]}]},
    ),
    "hundred": (
        "scenes_4c",
        {
            "rounds": 15,
            "data.outdoor.train": 8000,
            "data.indoor.train": 2000,
            "clients": [OUTDOOR | {"copies": 16, "epochs": 2}, HOME | {"copies": 20, "epochs": 2}],
        },
    ),
}
PARTIES_METHODS = ("local", "fedper", "matfl", "fedpull", "fedhca2")
TRACED_METHODS = ("local", "fedavg", "matfl", "fedpull", "fedhca2")
TRACE = "evaluate_every=2"  # which changes no score
ALONE = ["baseline=false"]  # for experiments that would train Local in every run; the page compares with its own run


def catalogue():
    """All methods on rendered scenes. One seed of everything first, here and below."""
    yield from each(SCENES, METHODS)


def curve():
    """When does federation help: Δm over images per client."""
    for seed in range(SEEDS):
        for images, (rounds, epochs, seeds) in CURVE.items():
            settings = [f"rounds={rounds}", f"training.schedule.warmup_epochs={2 * epochs}"]
            settings += [f"clients.{entry}.epochs={epochs}" for entry in (0, 1)]
            settings += [f"data.outdoor.train={5 * images}", f"data.indoor.train={4 * images // 5}"]
            for method in CURVE_METHODS if seed < seeds else ():
                yield job("scenes_1c", method, seed, settings, f"{images}")


def exchanges():
    """What more frequent exchanges give: Δm over exchanges per epoch, with equal total steps."""
    for seed in range(SEEDS):
        yield job("scenes_1c", "local", seed, exchanging(1), "x1")
        for often in EXCHANGES:
            for method in EXCHANGES_METHODS:
                yield job("scenes_1c", method, seed, exchanging(often), f"x{often}")


def exchanging(often):
    """The settings of this number of exchanges per epoch."""
    settings = ["data.outdoor.train=2400", "data.indoor.train=384", f"rounds={round(40 * often)}"]
    return settings + [f"clients.{entry}.steps={round(batches / often)}" for entry, batches in enumerate((60, 48))]


def sensitivity():
    """FedHCA² with other settings, and with one of its two parts."""
    for seed in range(SEEDS):
        for experiment, changes in {"scenes_1c": SENSITIVITY, "scenes_2": SENSITIVITY_2}.items():
            for name, settings in changes.items():
                yield job(experiment, "fedhca2", seed, [f"method.{setting}" for setting in settings], name)


def parties():
    """Who takes part: with and without clients of several tasks, 3 to 9 clients that differ more and more, and 100."""
    for seed in range(SEEDS):
        for name in PARTIES:
            for method in PARTIES_METHODS:
                yield job(PARTIES[name][0], method, seed, party(name), name)


def party(name):
    """The settings of a federation in PARTIES."""
    return [f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in PARTIES[name][1].items()]


def traces():
    """Runs that record scores and learned weights over rounds, as the papers' figures show them."""
    yield from each(["scenes_1c"], TRACED_METHODS, [TRACE], variant="traced")


def photographs():
    """The papers' scenarios on photographs, and one seed of all other methods in the first."""
    yield from each(PHOTOGRAPHS, PHOTOGRAPHS_METHODS)
    yield from each(PHOTOGRAPHS[:1], [method for method in METHODS if method not in PHOTOGRAPHS_METHODS], seeds=1)


def recipe():
    """Training alone on photographs without one of the settings that make it work, with one seed."""
    for name, settings in RECIPE.items():
        yield job("real_1c", "local", 0, settings, name)


def starts():
    """Decoders and heads that start from values of their own."""
    for seed in range(SEEDS):
        for experiment in STARTS:
            for method in STARTS_METHODS:
                yield job(experiment, method, seed, ["model.common_start=[]"], "own_start")


def encoders():
    """Adapters and a frozen backbone on photographs, with one seed."""
    for name, settings in ENCODERS.items():
        changes = [f"model.encoder.{setting}" for setting in settings]
        yield job("real_1c", "fedhca2", 0, changes, name)


def small():
    """Few images and few steps, for a CPU."""
    yield from each(["scenes_1c_small"], SMALL_METHODS)


def mixed():
    """Clients with different encoders."""
    yield from each(["scenes_mixed"], MIXED_METHODS, ALONE)


def demo():
    yield from each(["demo"], ("local", "fedhca2"), ALONE, DEMO_SEEDS)


def earth():
    """Continents on real maps."""
    yield from each(["earth"], EARTH_METHODS, ALONE)


def molecules():
    """Companies with molecules, with `fedpull` also as it did best in plain PyTorch, and families of targets alone."""
    for seed in range(MOLECULES_SEEDS):
        for experiment in (*MOLECULES, *SCAFFOLDS):
            yield job(experiment, "fedpull", seed, LATE, "late")
        for experiment in (MOLECULES[-1], SCAFFOLDS[-1]):
            for name, settings in families(experiment).items():
                yield from (job(experiment, method, seed, settings, name) for method in ("pooled", "fedper"))
                yield job(experiment, "fedpull", seed, [*LATE, *settings], f"{name}-late")
    yield from each(SCAFFOLDS, SCAFFOLDS_METHODS, seeds=MOLECULES_SEEDS)
    yield from each(MOLECULES, METHODS, seeds=MOLECULES_SEEDS)


def families(experiment):
    """Settings that leave one family of targets in an experiment."""
    clients = Experiment.load(experiment).to_dict()["clients"]
    parts = {"opioid": clients[:3], "amine": clients[3:6], "unrelated": clients[6:]}
    return {name: [f"clients={json.dumps(part, separators=(',', ':'))}"] for name, part in parts.items()}


PARTS = {
    part.__name__: part
    for part in (
        catalogue,
        curve,
        exchanges,
        sensitivity,
        parties,
        traces,
        photographs,
        recipe,
        starts,
        encoders,
        small,
        mixed,
        demo,
        earth,
        molecules,
    )
}


def each(experiments, methods, settings=(), seeds=SEEDS, variant=""):
    """One run per seed, experiment and method."""
    for seed in range(seeds):
        for experiment in experiments:
            for method in methods:
                yield job(experiment, method, seed, settings, variant)


def job(experiment, method, seed, settings, variant=""):
    """A run as one line."""
    name = "-".join(filter(None, [experiment, method, variant, f"s{seed}"]))
    options = [f"--set {setting}" for setting in (f"seed={seed}", f"method.name={method}", *settings)]
    return " ".join([name, experiment, *options])


def settings_in(options):
    """What the options of a line set."""
    return options[1::2]


def settings_of(line):
    """All settings of the run in a line."""
    _, experiment, *options = line.split()
    return Experiment.load(experiment, settings_in(options)).to_dict()


def lines_of(parts):
    """The lines of these parts, by default of all."""
    return [line for part in parts or PARTS for line in PARTS[part]()]


def part(name):
    """The name of a part, as an argument of a command."""
    if name not in PARTS:
        raise argparse.ArgumentTypeError(f"{name!r} is not a part ({', '.join(PARTS)})")
    return name


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--missing", action="store_true", help="only those that are not in the records")
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="FOLDER")
    options = parser.parse_args(argv)
    is_missing = find_missing(read_records(options.records) if options.missing else ())
    for line in lines_of(options.parts):
        if not options.missing or is_missing(settings_of(line)):
            print(line)


if __name__ == "__main__":
    main()
