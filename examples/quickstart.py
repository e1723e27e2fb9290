"""Train a small federation from Python and print its results: python examples/quickstart.py [SETTING=VALUE ...]"""

import sys

import fedhca2

SMALL = ["rounds=5", "data.outdoor.train=80", "data.indoor.train=24", "data.outdoor.val=20", "data.indoor.val=20"]


def main() -> None:
    """Run the demo on fewer images, print each client's scores, and write the report."""
    run = fedhca2.run(fedhca2.Experiment.load("demo", [*SMALL, *sys.argv[1:]]))

    gain = run.result.delta_m  # None if training alone scored 0
    print("Δm is unknown" if gain is None else f"Δm {gain:+.2f}%")
    for client, tasks in run.result.clients.items():
        for task, scores in tasks.items():
            metric, value = next(iter(scores.items()))
            print(f"{client:22} {task:12} {metric} {value:.2f}")

    print("page:", run.report())


if __name__ == "__main__":
    main()
