"""Tables about single claims of the papers: who takes part, how fast models learn, and what α and β become."""

from statistics import mean, median

from results_jobs import PARTIES, PARTIES_METHODS, party
from results_tables import NOT_RUN, markdown, over_local, spread_of

from fedhca2.reports.comparison import LOCAL
from fedhca2.run_folder.result import headline, overall_gain

THREE = ("outdoor-semseg", "outdoor-sal", "outdoor-normals")
# A federation: a name in PARTIES or an experiment, the clients whose gains count (by default all), Δm of FedHCA² in the
# papers (table 4, supplementary table 2, table 5).
FEDERATIONS = {
    "four indoor clients with one task each": ("indoor_alone", ("indoor-",), 0.64),
    "the same four, beside a client with five tasks": ("scenes_2", ("indoor-",), 1.44),
    "five outdoor clients with one task each": ("outdoor_alone", ("outdoor-",), 3.05),
    "the same five, beside a client with four tasks": ("scenes_1c", ("outdoor-",), 3.40),
    "two clients with several tasks": ("multi_task", (), 0.53),
    "three clients of one kind of scene": ("three", THREE, None),
    "the same three among six": ("scenes_1c", THREE, None),
    "the same three among nine": ("nine", THREE, None),
    "a hundred clients in six groups": ("hundred", (), None),
}
WITHIN = 0.05  # of Local's final score


def federations_table(runs):
    """Gains over Local by who takes part."""
    methods = [method for method in PARTIES_METHODS if method != LOCAL]
    rows = []
    for title, (name, counted, paper) in FEDERATIONS.items():
        experiment, settings = (PARTIES[name][0], party(name)) if name in PARTIES else (name, [])
        compared = over_local(runs.like(experiment, settings))
        gains = [[gain_among(run, counted) for run in compared if run.method == method] for method in methods]
        paper_cell = NOT_RUN if paper is None else f"{paper:+.2f}"
        rows.append(
            [title, *(spread_of(own) if own else NOT_RUN for own in gains), str(max(map(len, gains))), paper_cell]
        )
    heads = ["federation", *(f"`{method}`" for method in methods), "seeds", "paper,<br>`fedhca2`"]
    return markdown(heads, rows)


def gain_among(run, counted):
    """Δm over the clients whose names begin with one of these, or over all."""
    if not counted:
        return run.result.delta_m
    scores, alone = (
        {client: own for client, own in scores_of.items() if client.startswith(counted)}
        for scores_of in (run.scores, run.alone)
    )
    return overall_gain(scores, alone, run.task_set)


def runs_with_traces(runs, name):
    """The runs of an experiment that record what happens over rounds."""
    return [run for run in runs.plain(name) if "trace" in run.line]


def pace_table(runs, name):
    """How many rounds models need to come within 5% of Local's final score (median), and how often they do."""
    runs_with_rounds = runs_with_traces(runs, name)
    alone = {run.seed: run.line["trace"]["scores"] for run in runs_with_rounds if run.method == LOCAL}
    rounds = {}
    for run in (run for run in runs_with_rounds if run.seed in alone):
        for client, tasks in run.line["trace"]["scores"].items():
            for task, scores in tasks.items():
                higher = headline(run.task_set[task], run.scores[client][task]).higher_is_better
                reached = first_within(run.line["trace"]["rounds"], scores, alone[run.seed][client][task][-1], higher)
                rounds.setdefault(run.method, []).append(reached)
    if not rounds:
        return f"*`{name}` was not run with scores over rounds.*"
    rows = []
    for method, own in rounds.items():
        reached = [after for after in own if after is not None]
        rows.append([f"`{method}`", f"{median(reached):g}" if reached else NOT_RUN, f"{len(reached)} of {len(own)}"])
    return markdown(["method", "rounds, median", "reached"], rows)


def first_within(rounds, scores, goal, higher):
    """The first of these rounds with a score at most 5% worse than the goal; None if there is none.

    >>> first_within([2, 4, 6], [30, 38.1, 39], 40, higher=True)
    4
    >>> first_within([2, 4], [0.9, 0.8], 0.5, higher=False)
    """
    bound = goal * (1 - WITHIN if higher else 1 + WITHIN)
    good = (
        after for after, score in zip(rounds, scores, strict=True) if (score >= bound if higher else score <= bound)
    )
    return next(good, None)


def alpha_table(runs, name):
    """FedHCA²'s α of each client over rounds, mean over seeds."""
    traces = [run.line["trace"] for run in runs_with_traces(runs, name) if run.line["trace"]["alpha"]]
    if not traces:
        return f"*`{name}` was not run with α over rounds.*"
    rounds = traces[0]["rounds"]
    shown = sorted({*range(0, len(rounds), max(1, len(rounds) // 6)), len(rounds) - 1})
    rows = [
        [client, *(f"{mean(trace['alpha'][client][i] for trace in traces):.3f}" for i in shown)]
        for client in traces[0]["alpha"]
    ]
    return markdown(["α after round", *(str(rounds[i]) for i in shown)], rows)


def beta_table(runs, name):
    """FedHCA²'s last β of each decoder by layer, mean over seeds; L1 to L6 as in the paper."""
    betas = [run.line["trace"]["beta"] for run in runs_with_traces(runs, name) if run.line["trace"]["beta"]]
    if not betas:
        return f"*`{name}` was not run with β by layer.*"
    layers = len(next(iter(betas[0].values())))
    rows = [
        [decoder, *(f"{mean(trace[decoder][layer] for trace in betas):.3f}" for layer in range(layers))]
        for decoder in betas[0]
    ]
    return markdown(["β of decoder", *(f"L{layer + 1}" for layer in range(layers))], rows)
