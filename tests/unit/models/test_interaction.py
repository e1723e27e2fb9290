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


def busy(**changes):
    """A model whose interaction has left its start."""
    model = built(**changes)
    nn.init.eye_(model.interaction.project.weight)
    return model


@pytest.mark.parametrize("decoder", ["fcn", "deeplab"])
def test_a_model_starts_as_without_it(decoder):
    without, model = built(None, decoder=decoder), built(decoder=decoder)
    assert all(tensor.equal(without(image())[task]) for task, tensor in model(image()).items())


def test_all_other_parts_start_as_without_it():
    without, model = built(None).state_dict(), built().state_dict()
    assert all(tensor.equal(model[name]) for name, tensor in without.items())
    assert {name.partition(".")[0] for name in model.keys() - without.keys()} == {"interaction"}


@pytest.mark.parametrize("decoder", ["fcn", "deeplab"])
def test_it_carries_gradients_from_one_task_to_the_decoder_of_another(decoder):
    def reached(model):
        parameters = list(model.decoders["semseg"].parameters())
        found = torch.autograd.grad(model(image())["depth"].square().sum(), parameters, allow_unused=True)
        return any(gradient is not None and bool(gradient.any()) for gradient in found)

    assert reached(busy(decoder=decoder))
    assert not reached(built(None, decoder=decoder))


def test_its_projection_leaves_zero_with_the_first_gradient():
    model = built()
    model(image())["depth"].square().sum().backward()
    assert model.interaction.project.weight.grad.any()


def test_places_are_as_coarse_as_the_encoders_coarsest_map():
    seen = []
    model = built()
    model.interaction.qkv.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    inputs = torch.zeros(1, 3, 64, 96)
    height, width = model.encoder(inputs)[-1].shape[-2:]
    model(inputs)
    assert seen == [len(TASKS) * height * width]


def test_every_client_draws_its_own_again_and_again():
    first, again, other = (built(client=client).interaction.state_dict() for client in "aab")
    assert all(tensor.equal(again[name]) for name, tensor in first.items())
    assert not first["qkv.weight"].equal(other["qkv.weight"])


def test_one_task_has_nobody_to_exchange_with():
    assert built(tasks={"depth": 1}).interaction is None


def test_models_that_differ_in_their_interaction_are_of_different_kinds():
    kinds = {built(None).kind, built().kind, built(tasks={"depth": 1, "semseg": 5}).kind}
    assert len(kinds) == 3
    assert built().kind == built().kind


def test_a_width_that_heads_cannot_share_is_named():
    with pytest.raises(ValueError, match=r"interaction cross_attention: expected .* 4 divides, got 6"):
        TaskAttention(["a", "b"], 6, 1)


class Mean(nn.Module):
    """Adds the mean of all tasks' maps to each."""

    def __init__(self, tasks, width, share=0.5):
        super().__init__()
        self.given = tasks, width
        self.share = nn.Parameter(torch.tensor(share))

    def forward(self, maps):
        mean = torch.stack(list(maps.values())).mean(0)
        return {task: each + self.share * mean for task, each in reversed(maps.items())}


class Coarser(Mean):
    def forward(self, maps):
        return {task: each[..., ::2] for task, each in maps.items()}


class Fewer(Mean):
    def forward(self, maps):
        return {"depth": maps["depth"]}


class Stacked(Mean):
    def forward(self, maps):
        return torch.stack(list(maps.values()))


class Asking(Mean):
    def forward(self, maps):
        return maps["normals"]


def own(kind):
    return f"{__name__}:{kind.__name__}"


def test_a_class_of_ones_own_gets_the_tasks_the_width_and_its_settings():
    model = built({"kind": own(Mean), "share": 0.25})
    assert model.interaction.given == (("semseg", "depth"), 8)
    decoded = {task: decoder(model.encoder(image())) for task, decoder in model.decoders.items()}
    expected = decoded["depth"] + 0.25 * torch.stack(list(decoded.values())).mean(0)
    assert model.decode(model.encoder(image()))["depth"].equal(expected)


def test_outputs_are_in_the_order_of_the_tasks_whatever_the_class_returns():
    assert list(built(own(Mean))(image())) == list(TASKS)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (Coarser, "expected maps {'semseg': '2×8×12×20', .*, got {'semseg': '2×8×12×10'"),
        (Fewer, "expected maps .*, got {'depth': '2×8×12×20'}"),
        (Stacked, "expected maps .*, got 2×2×8×12×20"),
        (Asking, "got KeyError: 'normals'"),
    ],
)
def test_a_class_of_ones_own_that_does_not_fit_is_one_line(kind, line):
    config = ModelConfig.model_validate({"encoder": {"name": TINY}, "decoder_width": 8, "interaction": own(kind)})
    model = build_model(config, TASKS, SIZE, seed=0, client="a")
    with pytest.raises(ValueError, match=rf"^interaction .*:{kind.__name__}\b.*{line}[^\n]*$"):
        check_parts(model, config, (3, *SIZE), TASKS)
