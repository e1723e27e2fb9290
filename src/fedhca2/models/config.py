"""Settings of a model."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from fedhca2.config import Config
from fedhca2.imports import FORMS, folders, is_import_path, resolve_path

SWIN_T = "swin_tiny_patch4_window7_224"
PARTS = ("encoder", "decoder", "head", "interaction")
WIDEST = 8192  # of any layer: a server cannot make a site build a model of any size


class Part(Config):
    """A part of a model: a built-in kind, or a user's own class by import path with its settings."""

    built_in: ClassVar[tuple[str, ...]] = ()

    kind: str = Field(description=f"a built-in kind, or a class of your own: {FORMS}")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of a class of your own")

    @model_validator(mode="before")
    @classmethod
    def _collect_settings(cls, values: Any, info: ValidationInfo) -> Any:
        values = {"kind": values} if isinstance(values, str) else values
        kind = values.get("kind", *cls.built_in[:1]) if isinstance(values, dict) else None
        if not isinstance(values, dict) or kind in cls.built_in:
            return values
        if not isinstance(kind, str) or not is_import_path(kind):
            raise ValueError(f"kind: expected {' or '.join([*cls.built_in, FORMS])}, got {kind!r:.200}")
        fields = {key: value for key, value in values.items() if key in cls.model_fields}
        own = {key: value for key, value in values.items() if key not in cls.model_fields}
        return {**fields, "kind": resolve_path(kind, folders(info)), "settings": {**fields.get("settings", {}), **own}}

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own class."""
        return is_import_path(self.kind)


class DecoderConfig(Part):
    """FedHCA²'s decoder, MaT-FL's, a hidden layer for the encoder mlp, or a user's own."""

    built_in: ClassVar[tuple[str, ...]] = ("fcn", "deeplab", "mlp")

    kind: str = Field("fcn", description=f"fcn, deeplab, mlp, or a class of your own: {FORMS}")


class HeadConfig(Part):
    """FedHCA²'s head for maps, a single convolution, or a user's own."""

    built_in: ClassVar[tuple[str, ...]] = ("transposed", "linear")

    kind: str = Field("transposed", description=f"transposed, linear, or a class of your own: {FORMS}")


class InteractionConfig(Part):
    """How the decoders of a client exchange features: attention, or a user's own way."""

    built_in: ClassVar[tuple[str, ...]] = ("cross_attention",)

    kind: str = Field("cross_attention", description=f"cross_attention, or a class of your own: {FORMS}")


class Lora(Config):
    """Low-rank adapters added to the linear layers of a frozen backbone: W·x + (α/r)·B·A·x."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(8, ge=1, le=WIDEST, description="r, the width of the adapters")
    alpha: float = Field(8.0, gt=0, description="α; adapters are scaled by α/r")
    share: Literal["both", "down"] = Field(
        "both", description="A and B are aggregated with the encoder, or A alone and B stays local (FedSA-LoRA)"
    )
    train: Literal["both", "up"] = Field(
        "both", description="A and B, or B alone and A keeps its random values (FFA-LoRA)"
    )

    @model_validator(mode="after")
    def _what_is_shared_is_trained(self) -> Self:
        if self.share == "down" and self.train == "up":
            raise ValueError("train: expected 'both', since A is shared, got 'up'")
        return self


class EncoderConfig(Part):
    """The backbone and its initial weights."""

    built_in: ClassVar[tuple[str, ...]] = ("timm", "mlp")

    kind: str = Field("timm", description=f"timm, mlp for arrays, or a class of your own: {FORMS}")
    widths: tuple[Annotated[int, Field(ge=1, le=WIDEST)], ...] | None = Field(
        None, min_length=1, max_length=16, description="widths of mlp's layers, by default 256 and 128"
    )
    name: str = Field(SWIN_T, description="a timm model, or swin_micro or swin_mini for runs on a CPU")
    weights: str = Field(
        "none", description="`none`: random; `scenes`: built-in weights of swin_micro; `timm`: timm's own; or a file"
    )
    sha256: str | None = Field(None, description="checksum of the file; a run records it and accepts no other")
    drop_path: float = Field(
        0.0, ge=0, lt=1, description="stochastic depth: rates rise from 0 to this rate in the last block"
    )
    output_stride: Literal[8, 16, 32] = Field(
        32, description="stride of the coarsest map; below 32 only if the encoder can be dilated"
    )
    frozen: bool = Field(
        False, description="keep the backbone's initial weights; the layers between it and the decoders still train"
    )
    adapters: Lora | None = Field(None, description="trained and exchanged instead of the backbone, which is frozen")

    @property
    def title(self) -> str:
        """Its name, or the path of its class."""
        return self.name if self.kind == "timm" else self.kind

    @property
    def fixed(self) -> bool:
        """Whether the backbone keeps its initial weights."""
        return self.frozen or self.adapters is not None

    @model_validator(mode="after")
    def _settings_fit_the_kind(self) -> Self:
        if self.widths and self.kind != "mlp":
            raise ValueError(f"widths: expected kind mlp, which has them, got {self.kind}")
        if self.drop_path and (self.fixed or self.kind != "timm"):
            why = "the backbone is frozen" if self.fixed else f"the encoder is {self.kind}, not timm's"
            raise ValueError(f"drop_path: expected 0, since {why}, got {self.drop_path:g}")
        return self


class ModelConfig(Config):
    """The encoder, and the decoders for it."""

    encoder: EncoderConfig = EncoderConfig()
    feature_width: int | None = Field(
        None,
        ge=1,
        le=WIDEST,
        description="width that every encoder projects its maps to, so that clients with different encoders "
        "exchange decoders; by default maps keep their widths",
    )
    decoder: DecoderConfig = Field(
        DecoderConfig(),
        description="fcn, FedHCA²'s decoder; deeplab, MaT-FL's; mlp, a hidden layer, the default for the encoder "
        f"mlp; or a class of your own: {FORMS}",
    )
    decoder_width: int | None = Field(
        None,
        ge=4,
        le=WIDEST,
        multiple_of=4,
        description="by default the width of the encoder's first map, or 256 for deeplab",
    )
    head: HeadConfig | None = Field(
        None,
        description="transposed, FedHCA²'s two upsampling layers; linear, one convolution and interpolation, which "
        f"learns faster; or a class of your own: {FORMS}; by default that of the decoder's paper",
    )
    interaction: InteractionConfig | None = Field(
        None,
        description="lets the decoders of a client with several tasks exchange features, and is never sent: "
        f"cross_attention, or a class of your own: {FORMS}; by default there is none",
    )
    common_start: tuple[Literal["decoder", "head"], ...] = Field(
        (), description="parts that start from the same values for all clients of a task"
    )

    @model_validator(mode="before")
    @classmethod
    def _mlp_needs_its_decoder(cls, values: Any) -> Any:
        encoder = values.get("encoder") if isinstance(values, dict) else None
        is_mlp = encoder == "mlp" or (isinstance(encoder, dict) and encoder.get("kind") == "mlp")
        return {"decoder": "mlp", **values} if is_mlp else values

    @property
    def own_parts(self) -> dict[str, Part]:
        """The parts that are a user's own classes."""
        parts: dict[str, Part | None] = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in parts.items() if part and part.is_own}

    @property
    def blank(self) -> "ModelConfig":
        """The same model without initial weights, so that no file is needed."""
        return self.model_copy(update={"encoder": self.encoder.model_copy(update={"weights": "none", "sha256": None})})


def with_classes(model: Mapping[str, Any], replacement: Callable[[str], str]) -> dict[str, Any]:
    """Settings of a model, or some of them, in which `replacement` has replaced the import paths of classes."""

    def replaced(part: Any) -> Any:
        if isinstance(part, str) and is_import_path(part):
            return replacement(part)
        return {**part, "kind": replaced(part["kind"])} if isinstance(part, Mapping) and "kind" in part else part

    return {key: replaced(value) if key in PARTS else value for key, value in model.items()}
