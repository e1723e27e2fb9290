"""Every method, one value each."""

from fedhca2.aggregation import Attentive, Clustered, ConflictAverse, CrossAttention, GroupMean, Mean, Pull, Voting
from fedhca2.methods.method import Method
from fedhca2.objectives import Attracted, Frozen, PersonalCopy, Proximal

METHODS: dict[str, Method] = {
    "local": Method(reference="every client on its own"),
    "fedavg": Method(encoder=Mean(), decoder=Mean(), reference="McMahan et al., AISTATS 2017"),
    "fedprox": Method(encoder=Mean(), decoder=Mean(), local=Proximal(), reference="Li et al., MLSys 2020"),
    "fedper": Method(encoder=Mean(), reference="Arivazhagan et al., arXiv:1912.00818"),
    "ditto": Method(encoder=Mean(), decoder=Mean(), local=PersonalCopy(), reference="Li et al., ICML 2021"),
    "fedamp": Method(encoder=Attentive(), decoder=Attentive(), local=Attracted(), reference="Huang et al., AAAI 2021"),
    "fedbabu": Method(encoder=Mean(), local=Frozen(), reference="Oh et al., ICLR 2022"),
    "fedsta": Method(encoder=Mean(), reference="Park et al., NeurIPS 2021"),
    "matfl": Method(encoder=Clustered(), reference="Cai et al., CVPRW 2023, released code"),
    "matfl_voting": Method(encoder=Voting(), reference="Cai et al., CVPRW 2023"),
    "single_task_fl": Method(encoder=GroupMean(), decoder=GroupMean(), reference="baseline of Cai et al., CVPRW 2023"),
    "fedpull": Method(encoder=Pull(), decoder=GroupMean(), reference="ours: docs/methods.md"),
    "fedhca2": Method(encoder=ConflictAverse(), decoder=CrossAttention(), reference="Lu et al., CVPR 2024"),
}
