"""What pages say about every method: when to use it, and what follows from its definition."""

import re

from fedhca2.cli.show import shared_parts
from fedhca2.experiment.settings import SecureAggregation
from fedhca2.methods import METHODS

WHEN = {
    "local": "always: it is what every other method has to beat",
    "alone_longer": "as a control: alone, with as many steps as `pooled`, which tells steps from data",
    "pooled": "as a ceiling: all data in one place, which federation cannot reach without sharing them",
    "fedavg": "all clients have the same task; across tasks, averaging decoders loses",
    "fedprox": "as `fedavg`, with clients that drift apart",
    "fedper": "few images per client, and one client per group",
    "fedrep": "as `fedper`, if decoders and heads should settle first",
    "ditto": "every client should keep a model that federation never replaces",
    "fedamp": "clients should attend to those with similar models",
    "fedbabu": "comparison with the literature; decoders that stay random learn little here",
    "fedsta": "comparison with FedHCA²'s tables; it equals `fedper` with its defaults",
    "matfl": "unknown groups of clients, to be found by clustering",
    "matfl_voting": "unknown groups of clients, found by votes of layers",
    "single_task_fl": "several clients per group, nothing shared between groups",
    "fedpull": "several clients per group, and an encoder pre-trained on similar images",
    "fedhca2": "several clients per group (with `groups: true`), and different tasks",
    "colnet": "several clients per group, encoders alone",
    "cagrad": "updates conflict, and clients should stay near the mean",
    "mgda": "no client may lose, at the price of slow progress",
    "pcgrad": "updates conflict in pairs",
    "upgrad": "no client's loss should rise because of another's",
    "dualproj": "as `upgrad`, with one projection",
    "imtl_g": "all clients should make the same progress",
    "aligned_mtl": "lengths of updates differ, and the slowest should set the pace",
    "nash_mtl": "no client should dominate by its scale",
    "fairgrad": "as `nash_mtl`, with a choice of fairness",
    "fedavg_ft": "as `fedavg`, with models that are adapted at the end",
    "fedper_ft": "as `fedper`, with models that are adapted at the end",
    "fedbn": "images of clients differ in colour or contrast",
    "fednova": "clients take very different numbers of steps",
    "fedexp": "the mean update is too short, as with nearly orthogonal updates",
    "model_stock": "the mean update should be trusted tensor by tensor, where clients agree",
    "pfedgraph": "clients should find partners with similar models",
    "scaffold": "clients drift apart in many local steps; corrects each step by what others do",
    "feddyn": "clients drift apart, and means should reach the common optimum",
    "fedavgm": "as `fedper` or `fedavg`, with rounds that differ much: momentum smooths them",
    "fedadam": "as `fedavgm`, with a rate for each value",
    "fedyogi": "as `fedadam`, where rare large updates should not dominate",
    "fedadagrad": "as `fedadam`, with rates that only fall",
    "coordinate_median": "fewer than half of the clients may be hostile; looks at each value by itself",
    "trimmed_mean": "a few clients may be hostile; drops the extremes of each value",
    "ties": "updates disagree in sign, and only the larger side should count",
    "emr": "one common update, scaled and masked for each client",
    "sign_agreement": "only values that most clients move in the same direction should move",
    "krum": "one client may be hostile, and one honest update is enough",
    "multi_krum": "one client may be hostile, and the others should still be averaged",
    "geometric_median": "fewer than half of the clients may be hostile and collude",
    "norm_clipping": "a client may send updates that are too large",
}
TITLES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "ditto": "Ditto",
    "fedamp": "FedAMP",
    "fedbabu": "FedBABU",
    "fedsta": "FedSTA",
    "matfl": "MaT-FL",
    "matfl_voting": "MaT-FL",
    "colnet": "ColNet",
    "cagrad": "CAGrad",
    "mgda": "MGDA",
    "pcgrad": "PCGrad",
    "upgrad": "UPGrad",
    "dualproj": "DualProj",
    "imtl_g": "IMTL-G",
    "aligned_mtl": "Aligned-MTL",
    "nash_mtl": "Nash-MTL",
    "fairgrad": "FairGrad",
    "krum": "Krum",
    "multi_krum": "Krum",
    "norm_clipping": "norm clipping",
    "ties": "TIES",
    "emr": "EMR",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
}


def when(name):
    """When to use a method; raises ValueError if nobody wrote it down."""
    if name not in WHEN:
        raise ValueError(f"docs/site/method_facts.py: expected WHEN to say when to use {name!r}, got nothing")
    return WHEN[name]


def with_sums(name):
    """Whether a method works if the server only gets sums of rows, and what it needs."""
    method = METHODS[name]
    if not method.all_aggregators:
        return "nothing is sent"
    if not list(SecureAggregation().faults(method, 0)):
        return "yes"
    if not list(SecureAggregation(sketch=1024).faults(method, 0)):
        return "with sketches"
    if name == "fedhca2":
        return "encoders, with sketches and `decoder: null`"
    return "no"


def local_work(name):
    """What a method changes in local training."""
    method = METHODS[name]
    kind = type(method.local)
    told = (kind.__doc__ or "").partition("\n")[0].partition(": ")[2] if method.local.kind != "plain" else ""
    return told or "Clients train as usual; the method adds no local work."


def measured(name, results):
    """The rows of a method in the tables of docs/results.md."""
    found = []
    for table in re.findall(r"<!-- results: summary .*?\n(.*?)<!-- end -->", results, re.S):
        head, rule, *rows = table.strip().splitlines()
        own = [row for row in rows if row.startswith(f"| `{name}` |")]
        if own and set(own[0].replace(f"| `{name}` |", "")) - set(" |–"):
            found.append("\n".join([head, rule, *own]))
    return "\n\n".join(found)


def differences(name, deviations):
    """The rows of docs/deviations.md about a method."""
    title = TITLES.get(name, name)
    section = deviations.partition("## FedHCA²\n")[2].partition("\n## ")[0] if name == "fedhca2" else deviations
    rows = re.findall(r"^\| .+ \|$", section, re.M)
    wanted = rows[2:] if name == "fedhca2" else [row for row in rows if re.search(rf"^\| [^|]*\b{title}\b", row)]
    return "\n".join(wanted)


def table():
    """Every method in a line: when to use it, what it shares, and whether it works with sums only."""
    rows = ["| method | use it if | shares | works with sums only |", "| --- | --- | --- | --- |"]
    rows += [f"| `{name}` | {when(name)} | {shared_parts(METHODS[name])} | {with_sums(name)} |" for name in METHODS]
    return "\n".join(rows)
