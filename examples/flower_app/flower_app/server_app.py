"""The ServerApp."""

from pathlib import Path

from flwr.serverapp import ServerApp

from fedhca2.flower import Federated

app = ServerApp()


@app.main()
def main(grid, context):
    """Run the rounds; with the file of an interrupted run, those that are left."""
    config = context.run_config
    strategy = Federated(config["method"], min_clients=3, save_to=Path(config["state"]) / "server.safetensors")
    result = strategy.start(grid, num_rounds=config["num-rounds"])
    for name, score in result.evaluate_metrics_clientapp[config["num-rounds"]].items():
        print(f"{name}: {score:.4f}")
