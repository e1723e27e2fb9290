"""The papers' experiments, cut down so that a round of one takes a second."""

from fedhca2.experiment import Experiment
from fedhca2.experiment.sources import read_config
from tiny_encoder import TINY

SCENES = {"size": (32, 32), "train": 40, "val": 1}
DOMAINS = {"pascal_context": "outdoor", "nyud": "indoor"}
ENCODERS = {"fcn": {"name": TINY}, "deeplab": {"name": "test_resnet", "output_stride": 8}}


def in_the_small(name, client=lambda entry: entry):
    """The experiment with a tiny encoder, a few small scenes of the same tasks, and one epoch of one round.

    `client` may change a line of its clients.
    """
    values = read_config(name)
    model = values.get("model", {})
    encoder = {**ENCODERS[model.get("decoder", "fcn")], "drop_path": model.get("encoder", {}).get("drop_path", 0.0)}
    values["model"] = {**model, "encoder": encoder, "decoder_width": 8}
    values["training"] = {
        **values.get("training", {}),
        "batch_size": 2 if model.get("decoder") == "deeplab" else 1,
        "workers": 0,
    }
    values["data"] = {key: _as_scenes(data) for key, data in values["data"].items()}
    own = {"encoder": {"name": "test_convnext"}}  # BatchNorm cannot train on one image of a few pixels
    entries = [{**entry, "epochs": 1, **({"model": own} if "model" in entry else {})} for entry in values["clients"]]
    values["clients"] = [client(entry) for entry in entries]
    return Experiment.parse({**values, "rounds": 1})


def _as_scenes(data):
    domain = DOMAINS.get(data["kind"]) or data["domain"]
    rest = {"partition": data["partition"]} if "partition" in data else {}
    return {"kind": "scenes", "domain": domain, **SCENES, **rest}
