import pytest
import torch
from torch import nn

from fedhca2.models import ModelConfig, build_model
from fedhca2.models.multitask import TaskAttention
from fedhca2.models.own import check_parts
from tiny_encoder import TINY

TASKS = {"semseg": 5, "depth": 1}
SIZE = (48, 80)  # whose maps the pooling does not divide evenly


def built(interaction="cross_attention", tasks=TASKS, client="a", **changes):
    config = ModelConfig.model_validate(
        {"encoder": {"name": TINY}, "decoder_width": 8, "interaction": interaction, **changes}
    )
    return build_model(config, tasks, SIZE, seed=0, client=client).eval()


def image(seed=0):
    return torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decoder", ["fcn", "deeplab"])
def test_a_model_starts_as_without_it_and_leaves_this_start_with_the_first_gradient(decoder):
    without, model = built(None, decoder=decoder), built(decoder=decoder)
    own, others = model.state_dict(), without.state_dict()
    assert all(tensor.equal(own[name]) for name, tensor in others.items())
    assert {name.partition(".")[0] for name in own.keys() - others.keys()} == {"interaction"}
    outputs = model(image())
    assert all(tensor.equal(outputs[task]) for task, tensor in without(image()).items())
    outputs["depth"].square().sum().backward()
    assert model.interaction.project.weight.grad.any()


@pytest.mark.parametrize("decoder", ["fcn", "deeplab"])
def test_it_carries_gradients_from_one_task_to_the_decoder_of_another(decoder):
    def reached(model):
        parameters = list(model.decoders["semseg"].parameters())
        gradients = torch.autograd.grad(model(image())["depth"].square().sum(), parameters, allow_unused=True)
        return any(gradient is not None and bool(gradient.any()) for gradient in gradients)

    busy = built(decoder=decoder)
    nn.init.eye_(busy.interaction.project.weight)  # it has left its start
    assert reached(busy)
    assert not reached(built(None, decoder=decoder))


def test_attention_is_between_positions_of_the_encoders_coarsest_map():
    seen = []
    model = built()
    model.interaction.qkv.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    inputs = torch.zeros(1, 3, 64, 96)
    height, width = model.encoder(inputs)[-1].shape[-2:]
    model(inputs)
    assert seen == [len(TASKS) * height * width]


def test_interactions_are_drawn_by_client_and_distinguish_kinds_of_models():
    first, again, other = (built(client=client).interaction.state_dict() for client in "aab")
    assert all(tensor.equal(again[name]) for name, tensor in first.items())
    assert not first["qkv.weight"].equal(other["qkv.weight"])
    assert len({built(None).kind, built().kind, built(tasks={"depth": 1, "semseg": 5}).kind}) == 3
    assert built().kind == built().kind
    assert built(tasks={"depth": 1}).interaction is None  # it has nobody to exchange with


def test_a_width_that_heads_cannot_share_is_named():
    with pytest.raises(ValueError, match=r"interaction cross_attention: expected .* 4 divides, got 6"):
        TaskAttention(["a", "b"], 6, 1)


class Mean(nn.Module):
    """Adds the mean of all tasks' maps to each."""

    def __init__(self, tasks, width, share=0.5):
        super().__init__()
        self.arguments = tasks, width
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, maps):
        mean = torch.stack(list(maps.values())).mean(0)
        return {task: each + self.share * mean for task, each in reversed(maps.items())}


class Unfit(nn.Module):
    """Returns what the test wants."""

    def __init__(self, tasks, width, returned):
        super().__init__()
        self.returned = returned

    def forward(self, maps):
        return UNFIT[self.returned][0](maps)


UNFIT = {
    "coarser": (lambda maps: {task: each[..., ::2] for task, each in maps.items()}, "{'semseg': '2×8×12×10'"),
    "fewer": (lambda maps: {"depth": maps["depth"]}, "{'depth': '2×8×12×20'}"),
    "stacked": (lambda maps: torch.stack(list(maps.values())), "2×2×8×12×20"),
    "of another task": (lambda maps: maps["normals"], "KeyError: 'normals'"),
}


def test_a_class_of_ones_own_gets_the_tasks_the_width_and_its_settings():
    model = built({"kind": f"{__name__}:Mean", "share": 0.25})
    assert model.interaction.arguments == (("semseg", "depth"), 8)
    decoded = {task: decoder(model.encoder(image())) for task, decoder in model.decoders.items()}
    expected = decoded["depth"] + 0.25 * torch.stack(list(decoded.values())).mean(0)
    assert model.decode(model.encoder(image()))["depth"].equal(expected)
    assert list(model(image())) == list(TASKS)  # outputs are in this order whatever the class returns


@pytest.mark.parametrize("returned", UNFIT)
def test_a_class_of_ones_own_that_does_not_fit_is_one_line(returned):
    interaction = {"kind": f"{__name__}:Unfit", "returned": returned}
    config = ModelConfig.model_validate({"encoder": {"name": TINY}, "decoder_width": 8, "interaction": interaction})
    model = build_model(config, TASKS, SIZE, seed=0, client="a")
    with pytest.raises(ValueError, match=rf"^interaction .*:Unfit\b.*expected .*, got {UNFIT[returned][1]}[^\n]*$"):
        check_parts(model, config, (3, *SIZE), TASKS)
