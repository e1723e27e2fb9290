"""The ClientApp."""

from flwr.clientapp import ClientApp

from fedhca2.flower import FlowerClient
from flower_app.task import CLIENTS, Model, load_data, test, train

app = ClientApp()


def open_client(context):
    """This node's client with a new model, which gets its last values when a message arrives."""
    name = context.node_config.get("client") or list(CLIENTS)[context.node_config["partition-id"]]
    parts = {"encoder": "backbone"}
    for task in CLIENTS[name]:
        parts |= {f"decoder.{task}": f"decoders.{task}", f"head.{task}": f"heads.{task}"}
    model = Model(CLIENTS[name])
    return model, FlowerClient(name, model, parts, samples=256, folder=context.run_config["state"])


@app.query()
def introduce(message, context):
    """Say who this is."""
    return open_client(context)[1].introduce(message)


@app.train()
def fit(message, context):
    """Take the rows, train, and send the update."""
    model, client = open_client(context)
    data = load_data(client.profile.client)
    return client.train(message, lambda round: train(model, data, round.pull))


@app.evaluate()
def evaluate(message, context):
    """Take the rows and score the model."""
    model, client = open_client(context)
    return client.evaluate(message, lambda: test(model.eval(), load_data(client.profile.client, seed=1)))
