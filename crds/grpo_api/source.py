"""The URLs of models and datasets in a spec, and the volumes that pods mount for them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field

from grpo_api.rule import Follows, TextRule

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT = rf"{_LABEL}(\.{_LABEL})*"
_HUB = r"hf://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?"
_SETTING = r"[^=&#]+=[^&#]*"
_FILE = r"[^?#]+\.(jsonl|parquet)"

_MODEL_FILES = rf"{_HUB}|pvc://{_OBJECT}(/[^?#]+)?|file:///[^?#]+"

BUILTIN_TASKS = ("copy", "reverse", "add", "numbers")
"""Datasets that the runtime makes itself: `builtin://NAME`."""
NUMBERS = "builtin://numbers"
"""The prompts of a job without a dataset."""
_NO_SCHEME = "[^:]+"
_DATASET = (
    rf"builtin://({'|'.join(BUILTIN_TASKS)})|{_HUB}|pvc://{_OBJECT}/{_FILE}|configmap://{_OBJECT}/[-._a-zA-Z0-9]+"
    rf"\.(jsonl|parquet)|file:///{_FILE}|reasoning-gym://[a-z0-9_]+(\?{_SETTING}(&{_SETTING})*)?"
)

HUB_NEEDS_ITS_SCHEME = TextRule(
    "^[^/:][^:]*$",
    "has no scheme: write hf://{self} for a repository of the Hub, or pvc://CLAIM/PATH or file:///PATH",
    example="ORG/NAME",
    is_refused=True,
)
PATH_NEEDS_ITS_SCHEME = TextRule(
    "^/[^:]*$",
    "has no scheme: write file://{self} for a path in the image, or pvc://CLAIM/PATH for one on a claim",
    example="/PATH",
    is_refused=True,
)
PATH_STAYS_BELOW = TextRule(
    r"^(pvc|file|s3)://([^?#]*/)?(\.|%2[Ee])(\.|%2[Ee])?(/|$)",
    "has . or .. as a part of its path: write the path without them",
    is_refused=True,
)
_EVERYWHERE = (HUB_NEEDS_ITS_SCHEME, PATH_NEEDS_ITS_SCHEME, PATH_STAYS_BELOW)

ModelSource = Annotated[
    str,
    Field(max_length=1024),
    Follows(
        TextRule(
            rf"^(builtin://tiny|{_MODEL_FILES}|{_NO_SCHEME})$",
            "is no source of a model: write hf://ORG/NAME, pvc://CLAIM/PATH, file:///PATH or builtin://tiny",
        ),
        *_EVERYWHERE,
    ),
]
"""The URL of a policy."""
RewardModelSource = Annotated[
    str,
    Field(max_length=1024),
    Follows(
        TextRule(
            rf"^({_MODEL_FILES}|{_NO_SCHEME})$",
            "is no source of a reward model: write hf://ORG/NAME, pvc://CLAIM/PATH or file:///PATH",
        ),
        *_EVERYWHERE,
    ),
]
"""The URL of a reward model."""
DatasetSource = Annotated[
    str,
    Field(max_length=1024),
    Follows(
        TextRule(
            rf"^({_DATASET}|{_NO_SCHEME})$",
            "is no source of prompts: write hf://ORG/NAME, pvc://CLAIM/PATH, configmap://NAME/KEY or "
            "file:///PATH, where files end in .jsonl or .parquet, reasoning-gym://TASK?SETTING=VALUE, or "
            f"builtin:// and one of {', '.join(BUILTIN_TASKS)}",
        ),
        *_EVERYWHERE,
    ),
]
"""The URL of a dataset."""
CheckpointSource = Annotated[
    str,
    Field(max_length=1024),
    Follows(
        TextRule(
            rf"^(pvc://{_OBJECT}(/[^?#]+)?|file:///[^?#]+|{_NO_SCHEME})$",
            "is not a directory of checkpoints: write pvc://CLAIM/PATH or file:///PATH",
        ),
        TextRule(
            "^[^:]+$",
            "has no scheme: write pvc://CLAIM/PATH for a directory on a claim, or file:///PATH for one in "
            "the image",
            is_refused=True,
        ),
        PATH_STAYS_BELOW,
    ),
]
"""The URL of a directory with checkpoints."""


CLAIM_FOLDER = rf"pvc://{_OBJECT}(/[^?#]+)?"
"""The pattern of `pvc://CLAIM/PATH`, a folder of a claim."""


class Scheme(StrEnum):
    """The part before `://`."""

    BUILTIN = "builtin"
    FILE = "file"
    CLAIM = "pvc"
    CONFIG_MAP = "configmap"
    HUB = "hf"
    REASONING_GYM = "reasoning-gym"


@dataclass(frozen=True)
class Source:
    """A parsed URL. `name` is the claim, ConfigMap, task or repository (`ORG/NAME`). `path` is the file or
    directory in it, or the absolute path of a `file://` URL. `settings` are the pairs after `?`."""

    scheme: Scheme
    name: str = ""
    path: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def volume(self) -> "Volume | None":
        """What a pod has to mount to read this; None when that is nothing."""
        kinds = {Scheme.CLAIM: VolumeKind.CLAIM, Scheme.CONFIG_MAP: VolumeKind.CONFIG_MAP}
        return Volume(kinds[self.scheme], self.name) if self.scheme in kinds else None


def parse_source(url: str) -> Source:
    """Parse the source of a model or dataset; raises ValueError for an unknown scheme."""
    scheme = Scheme(url.partition("://")[0])
    if scheme is Scheme.HUB:
        return Source(scheme, name=url.removeprefix("hf://"))
    parts = urlsplit(url)
    settings = tuple(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if scheme is Scheme.FILE:
        return Source(scheme, path=parts.path)
    return Source(scheme, name=parts.netloc, path=parts.path.lstrip("/"), settings=settings)


class VolumeKind(StrEnum):
    """Kinds of volumes. The value is the folder below the volumes directory."""

    CLAIM = "claims"
    CONFIG_MAP = "configmaps"
    SECRET = "secrets"  # noqa: S105
    WEIGHTS = "weights"
    """A claim that weights are written to, for which it is mounted once more."""


@dataclass(frozen=True, order=True)
class Volume:
    """A claim, a ConfigMap or a Secret that pods mount at `folder` below the volumes directory: read-only,
    but for weights in the pod that writes them."""

    kind: VolumeKind
    name: str

    @property
    def folder(self) -> str:
        """`claims/NAME`, `configmaps/NAME`, `secrets/NAME` or `weights/NAME`."""
        return f"{self.kind.value}/{self.name}"
