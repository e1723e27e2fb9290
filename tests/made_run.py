"""A run's files, written by hand: two clients with one task each, and one with two."""

import json

import numpy as np
import yaml

from fedhca2.run_folder.reader import RunFiles

TASKS = {"road": ["semseg"], "shop": ["sal"], "home": ["semseg", "depth"]}
METRIC = {"semseg": "miou", "sal": "max_f", "depth": "rmse"}
DECODER = ["fuse.weight", "fuse.bias", "norm.weight", "norm.bias"]
SIZE = 16


def made_run(path, method="fedhca2", rounds=3, better=1.0, seed=0, finished=True, away=(), refused=()):
    """Write a run; `better` multiplies the scores, `away` miss the second round, `refused` (pairs) were left out."""
    path.mkdir(parents=True, exist_ok=True)
    parts = {"encoder": {"kind": "mean"}, "decoder": {"kind": "mean"}, "head": None}
    config = {"name": "made", "seed": seed, "rounds": rounds, "method": {"name": method, **parts}}
    rng, gains = np.random.default_rng(seed), dict.fromkeys(TASKS, better)
    lines = [*_profiles(), *(event for round in range(rounds) for event in _round(rng, round, gains, away, refused))]
    lines += _scores(rounds, TASKS, gains)
    _samples(path / "samples", rng)
    result = _result(config, TASKS, gains, None if method == "local" else 100 * (better - 1))
    return _written(path, config, lines, result if finished else None)


def _written(path, config, lines, result):
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if result:
        (path / "result.json").write_text(json.dumps(result))
    return RunFiles.open(path)


def with_events(run, *events):
    """The run with more events."""
    with run.events_file.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    return RunFiles.open(run.path)


def with_twin(run, **gains):
    """The run with a second client of the kind of `road`, which scores 10 alone and 20 here, and with these gains."""
    result = json.loads((run.path / "result.json").read_text())
    for scores, value in ((result["clients"], 20.0), (result["baseline"] or {}, 10.0)):
        if scores:
            scores["road-2"] = {"semseg": {"miou": value}}
    written = {key: value for key, value in result.items() if not key.startswith("delta_m")} | gains
    (run.path / "result.json").write_text(json.dumps(written))
    road = next(event for event in run.of("profile") if event["client"] == "road")
    return with_events(run, road | {"client": "road-2"})


def with_diagnostics(run, loss=1.01):
    """The run with who helps whom, measured in its last round; the server's rows change a loss of 1 to this one."""
    members = sorted(TASKS)
    measured = {"round": 1, "members": members, "products": np.eye(len(members)).tolist(), "seconds": 0.1}
    help = [[None if giver == taker else 0.01 for taker in members] for giver in members]
    transfer = {"event": "transfer", **measured, "losses": [1.0] * len(members), "transfer": help}
    about = {"event": "effect", "round": 2, "before": 1.0, "after": loss, "seconds": 0.1}
    return with_events(run, transfer, *(about | {"client": client} for client in members))


def score(task, better):
    return 2.0 / better if task == "depth" else 40.0 * better


def _scores(round, clients, gains):
    for client in clients:
        for task in clients[client]:
            about = {"round": round, "client": client, "task": task, "metric": METRIC[task]}
            yield {"event": "metric", **about, "value": score(task, gains[client])}


def _work(round, clients, losses):
    """What clients log in a round that they train in: their losses, time and bytes."""
    for client, tasks in clients.items():
        about = {"round": round, "client": client}
        for task in tasks:
            yield {"event": "loss", **about, "task": task, "metric": "loss", "value": losses[client]}
        yield {"event": "client", **about, "seconds": 0.5, "bytes_up": 400, "bytes_down": 400}


def _profiles():
    for client, tasks in TASKS.items():
        parameters = {"encoder": 100, **{f"decoder.{task}": 20 for task in tasks}}
        decoders = dict.fromkeys(tasks, DECODER)
        about = {"client": client, "dataset": "indoor" if client == "home" else "outdoor", "tasks": tasks}
        yield {"event": "profile", **about, "samples": 8, "parameters": parameters, "decoders": decoders}


def _round(rng, round, gains, away, refused):
    clients = {client: tasks for client, tasks in TASKS.items() if not (round == 1 and client in away)}
    yield from _work(round, clients, dict.fromkeys(clients, 1 / (round + 1)))
    yield from _scores(round, TASKS, gains)
    decoders = sorted(f"{client}/{task}" for client in clients for task in TASKS[client])
    encoder = _shares(rng, len(clients))
    yield _aggregation(rng, round, "encoder", sorted(clients), encoder, votes=rng.integers(0, 3, (2, *encoder.shape)))
    attention = np.stack([_shares(rng, len(decoders)) for _ in DECODER])
    yield _aggregation(rng, round, "decoder", decoders, attention)
    learned = {f"{client}/encoder": [0.1 + 0.01 * round] for client in clients}
    learned |= {name.replace("/", "/decoder."): [0.1, 0.2] for name in decoders}
    yield {"event": "weights", "round": round, "weights": learned}
    yield {"event": "round", "round": round, "seconds": 1.5, "refused": dict(refused) if round == 1 else {}}


def _shares(rng, count):
    raw = rng.random((count, count))
    return raw / raw.sum(axis=1, keepdims=True)


def _aggregation(rng, round, part, members, mixing, votes=None):
    rows = rng.standard_normal((len(members), 5))
    about = {"event": "aggregation", "round": round, "part": part, "members": members, "measure": "rows"}
    gets = [list(range(len(members)))]
    matrices = {"products": (rows @ rows.T).tolist(), "mixing": [mixing.tolist()]}
    return {**about, **matrices, "gets": gets, "votes": votes.tolist() if votes is not None else None}


def _samples(folder, rng):
    folder.mkdir(exist_ok=True)
    for client, tasks in TASKS.items():
        arrays = {"image": rng.integers(0, 255, (2, 3, SIZE, SIZE), dtype=np.uint8)}
        for task in tasks:
            for when in ("label", "before", "after"):
                arrays[f"{when}.{task}"] = rng.integers(0, 2, (2, 1, SIZE, SIZE)).astype(np.float32)
        np.savez(folder / f"{client}.npz", **arrays)


def _result(config, clients, gains, delta_m):
    def scores(gains):
        return {c: {t: {METRIC[t]: score(t, gains[c])} for t in tasks} for c, tasks in clients.items()}

    method = config["method"]["name"]
    alone = None if method == "local" else scores(dict.fromkeys(clients, 1.0))
    cost = {"seconds": 4.5, "bytes": {"up": 3600, "down": 3600}, "versions": {"fedhca2": "0"}, "device": "a CPU"}
    about = {**{key: config[key] for key in ("name", "rounds", "seed")}, "method": method, "clients": scores(gains)}
    return {**about, "baseline": alone, "delta_m": delta_m, "delta_m_by_client": delta_m, **cost}


def crowded_run(path, count=1000, rounds=3):
    """Write a run of many clients of three kinds; each gains something else, and one in ten misses the last round."""
    path.mkdir(parents=True, exist_ok=True)
    parts = {"encoder": {"kind": "mean"}, "decoder": None, "head": None}
    config = {"name": "crowd", "seed": 0, "rounds": rounds, "method": {"name": "fedhca2", **parts}}
    rng = np.random.default_rng(0)
    tasks = {f"site-{i:04}": list(TASKS.values())[i % 3] for i in range(count)}
    gains = {client: rng.normal(1.05, 0.05) for client in tasks}
    lines = [profile | {"client": client} for client, profile in zip(tasks, list(_profiles()) * count, strict=False)]
    for round in range(rounds):
        there = {client: own for i, (client, own) in enumerate(tasks.items()) if round < rounds - 1 or i % 10}
        lines += [*_scores(round, there, gains), *_work(round, there, {c: 1 / (round + gains[c]) for c in there})]
        lines.append({"event": "weights", "round": round, "weights": {f"{c}/encoder": [0.1 * gains[c]] for c in there}})
        lines.append({"event": "round", "round": round, "seconds": 60.0, "refused": {}})
    rows = rng.standard_normal((count, 5))
    about = {"event": "aggregation", "round": 0, "part": "encoder", "members": sorted(tasks), "measure": "rows"}
    mixed = {"mixing": [[[1 / count] * count]], "gets": [[0] * count], "votes": None}
    lines.append({**about, "products": (rows @ rows.T).round(3).tolist(), **mixed})
    return _written(path, config, lines, _result(config, tasks, gains, 100 * (1.05 - 1)))
