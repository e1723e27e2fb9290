"""The catalogue of methods, one value each."""

from fedhca2.aggregation import (
    Attentive,
    Clustered,
    ConflictAverse,
    CrossAttention,
    GroupMean,
    HyperWeights,
    Mean,
    Pull,
    Robust,
    Voting,
    Weighted,
)
from fedhca2.methods.method import Method
from fedhca2.objectives import Attracted, Frozen, HeadsFirst, PersonalCopy, Proximal

METHODS: dict[str, Method] = {
    "local": Method(reference="every client on its own"),
    "fedavg": Method(encoder=Mean(), decoder=Mean(), reference="McMahan et al., AISTATS 2017"),
    "fedprox": Method(encoder=Mean(), decoder=Mean(), local=Proximal(), reference="Li et al., MLSys 2020"),
    "fedper": Method(encoder=Mean(), reference="Arivazhagan et al., arXiv:1912.00818"),
    "fedrep": Method(encoder=Mean(), local=HeadsFirst(), reference="Collins et al., ICML 2021"),
    "ditto": Method(encoder=Mean(), decoder=Mean(), local=PersonalCopy(), reference="Li et al., ICML 2021"),
    "fedamp": Method(encoder=Attentive(), decoder=Attentive(), local=Attracted(), reference="Huang et al., AAAI 2021"),
    "fedbabu": Method(encoder=Mean(), local=Frozen(), reference="Oh et al., ICLR 2022"),
    "fedsta": Method(encoder=Mean(), reference="Park et al., NeurIPS 2021"),
    "matfl": Method(encoder=Clustered(), reference="Cai et al., CVPRW 2023, released code"),
    "matfl_voting": Method(encoder=Voting(), reference="Cai et al., CVPRW 2023"),
    "single_task_fl": Method(encoder=GroupMean(), decoder=GroupMean(), reference="baseline of Cai et al., CVPRW 2023"),
    "fedpull": Method(encoder=Pull(), decoder=GroupMean(), reference="ours: docs/methods.md"),
    "fedhca2": Method(encoder=ConflictAverse(), decoder=CrossAttention(), reference="Lu et al., CVPR 2024"),
    "colnet": Method(
        encoder=ConflictAverse(alpha=1, groups=True, across="groups"),
        weights=HyperWeights(learn=False),
        reference="Feng et al., arXiv:2501.10347",
    ),
    "cagrad": Method(encoder=ConflictAverse(alpha=None), reference="Liu et al., NeurIPS 2021"),
    "mgda": Method(encoder=Weighted(weighting="mgda"), reference="Désidéri, C. R. Math. 350, 2012"),
    "pcgrad": Method(encoder=Weighted(weighting="pcgrad"), reference="Yu et al., NeurIPS 2020"),
    "upgrad": Method(encoder=Weighted(weighting="upgrad"), reference="Quinton and Rey, arXiv:2406.16232"),
    "dualproj": Method(encoder=Weighted(weighting="dualproj"), reference="Lopez-Paz and Ranzato, NeurIPS 2017"),
    "imtl_g": Method(encoder=Weighted(weighting="imtl_g"), reference="Liu et al., ICLR 2021"),
    "aligned_mtl": Method(encoder=Weighted(weighting="aligned_mtl"), reference="Senushkin et al., CVPR 2023"),
    "nash_mtl": Method(encoder=Weighted(weighting="nash_mtl"), reference="Navon et al., ICML 2022"),
    "fairgrad": Method(encoder=Weighted(weighting="fairgrad"), reference="Ban and Ji, ICML 2024"),
    "krum": Method(encoder=Robust(rule="krum"), reference="Blanchard et al., NeurIPS 2017"),
    "multi_krum": Method(encoder=Robust(rule="krum", chosen=None), reference="Blanchard et al., NeurIPS 2017"),
    "geometric_median": Method(encoder=Robust(), reference="Pillutla et al., IEEE TSP 70, 2022"),
    "norm_clipping": Method(encoder=Robust(rule="clipped_mean"), reference="Sun et al., arXiv:1911.07963"),
}
