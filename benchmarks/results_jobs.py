"""The runs behind the curve and the sensitivity tables of docs/results.md, a line each: NAME EXPERIMENT --set …

python benchmarks/results_jobs.py curve sensitivity |
    while read name options; do fedhca2 run $options --out runs/results/scenes_1c/$name; done
"""

import sys

# Images per outdoor client: rounds, epochs per round, seeds. The indoor client has 0.8 times as many images, as in
# scenes_1c, which is the point at 500. Every outdoor client takes 2,400 to 2,500 steps, so that the smallest shards are
# trained out as well (on 25 images, semantic segmentation still gains between 600 and 1,200 steps), and one point
# differs from the next in the number of images. Exchanges are 50 to 62 steps apart, and 125 at 1,000 images.
CURVE = {25: (40, 20, 2), 50: (40, 10, 2), 100: (40, 5, 2), 200: (50, 2, 2), 1000: (20, 1, 1)}
CURVE_METHODS = ("local", "fedper", "matfl", "fedhca2", "fedpull")
# What the supplementary's tables 4, 6, 7 and table 3 change, and α and β alone. The defaults are in scenes_1c itself.
SENSITIVITY = {
    **{f"c{c}": [f"c={c}"] for c in (0.2, 0.6, 0.8)},
    **{f"start{start}": [f"alpha={start}", f"beta={start}"] for start in (0.01, 0.5, 1)},
    "alpha1": ["alpha=1"],
    "beta1": ["beta=1"],
    **{f"rate{rate}": [f"lr={rate}"] for rate in (0.005, 0.05, 0.1)},
    "encoder_alone": ["decoder=null"],
    "decoder_alone": ["encoder=null"],
}
SEEDS = 3


def curve():
    """When does federation help: Δm over images per client. One seed of every size first."""
    for seed in range(SEEDS):
        for images, (rounds, epochs, seeds) in CURVE.items():
            settings = [f"rounds={rounds}", f"training.schedule.warmup_epochs={2 * epochs}"]
            settings += [f"clients.{entry}.epochs={epochs}" for entry in (0, 1)]
            settings += [f"data.outdoor.train={5 * images}", f"data.indoor.train={4 * images // 5}"]
            for method in CURVE_METHODS if seed < seeds else ():
                yield job(f"{method}-{images}", method, seed, settings)


def sensitivity():
    """FedHCA² with other settings, and with one of its two parts."""
    for seed in range(SEEDS):
        for name, settings in SENSITIVITY.items():
            yield job(f"fedhca2-{name}", "fedhca2", seed, [f"method.{setting}" for setting in settings])


def job(name, method, seed, settings):
    options = [f"--set {setting}" for setting in (f"seed={seed}", f"method.name={method}", *settings)]
    return " ".join([f"{name}-s{seed}", "scenes_1c", *options])


if __name__ == "__main__":
    for part in sys.argv[1:] or ["curve", "sensitivity"]:
        print("\n".join({"curve": curve, "sensitivity": sensitivity}[part]()))
