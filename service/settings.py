"""The settings are every `DOSIRAK_*` variable of the environment, with its default and its effect.

They are read once at start, passed down, and shown at `/info` (the key masked). `docs/settings.md` holds the same
table. A name that is no setting stops the start: a misspelt one would otherwise have no effect and no error.
"""

from __future__ import annotations

import getpass
import ipaddress
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from models.errors import InvalidReference
from models.manifest import DEFAULT_ALIAS, ModelReference
from models.repository.gate import Limits
from models.repository.store.place import StorePlace, require_store_url
from service.addresses import EVERY, checked_network, checked_url, origins_of, standard_traces_url, traces_url
from service.host import CUDA, absent, num_gpus, parse_devices

MIB = 1024 * 1024
PREFIX = "DOSIRAK_"
MAX_REPLICAS = 64
SIMILAR = 0.5
"""The least share of a misspelt name's letters, in order, that a suggested setting has."""
SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?")
"""Variables that Kubernetes adds to every pod's environment beside a Service named `dosirak`."""
DATABASES = ("sqlite+aiosqlite:///", "postgresql+asyncpg://")
CHECKS = {"trusted_network": checked_network, "store_url": require_store_url, "otlp_endpoint": checked_url}


class Settings(BaseSettings):
    """The settings. Raises pydantic's ValidationError, whose text names the variable and what to change."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field(
        default="127.0.0.1", description="Address to listen on. Any but a loopback address needs an admin key."
    )
    port: int = Field(default=3000, ge=1, le=65535, description="Port to listen on.")
    data_dir: Path = Field(
        default=Path("~/.local/share/dosirak"), description="Model repository and database; a BENTOML_HOME of its own."
    )
    default_model: str = Field(
        default="demo",
        description="Model reference used where a request names none. Where it is unset, `dosirak serve` gives an "
        "empty repository `smollm2` of the Python index, or else the demo model.",
    )
    admin_key: SecretStr | None = Field(
        default=None, description="Key with every scope, sent as `Authorization: Bearer …`."
    )
    open_metrics: bool = Field(
        default=False,
        description="Let everyone who reaches the port read `/metrics` without a key: some routers and autoscalers "
        "cannot send one.",
    )
    preload: bool = Field(default=True, description="Load the default model at start instead of at its first request.")

    engine: Literal["dosirak", "vllm"] = Field(
        default="dosirak",
        description="Engine of versions that are loaded without naming one: our own, or vLLM in a process of its own "
        "interpreter.",
    )
    vllm_python: Path | None = Field(
        default=None, description="Python interpreter that has vLLM; `.venv-vllm/bin/python`, by `make vllm`, if unset."
    )
    trusted_network: str | None = Field(
        default=None,
        description="Network of the nodes of one engine, as `10.1.0.0/16`: vLLM's nodes run what anyone on it sends "
        "them. Where unset, an engine stays on one host.",
    )
    node_port: int = Field(
        default=3010, ge=1, le=65535, description="Port of the trusted network where the nodes of an engine join it."
    )
    node_wait_seconds: float = Field(
        default=300.0, gt=0, description="Longest wait for the nodes of an engine to join it."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="Where models run; auto takes CUDA if present."
    )
    devices: str | None = Field(
        default=None,
        description="Devices of our own engine where there are several, with commas between, as `cuda:0,cuda:1`; a "
        "replica each where `DOSIRAK_REPLICAS` is unset.",
    )
    threads: int = Field(
        default=0, ge=0, le=1024, description="CPU threads of each engine; 0 takes the cores it may use."
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=MAX_REPLICAS,
        description="Engine processes of each version of the default model, with one queue; where threads are 0, the "
        "cores are divided among them.",
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        description="Version that makes drafts for each version of the default model: a small one with the same "
        "tokens, loaded into the same engine process.",
    )
    max_model_len: int = Field(
        default=0,
        ge=0,
        description="Most positions of a sequence; a version that has fewer keeps its own. 0 sets no limit. A model of "
        "`longrope` takes its short factors up to `original_max_position_embeddings`.",
    )
    kv_cache_dtype: Literal["auto", "int8"] = Field(
        default="auto",
        description="What keys and values are kept in: the model's own precision, or 8 bits, half of bf16's memory.",
    )
    kv_cache_bytes: int = Field(default=0, ge=0, description="KV cache size in bytes; 0 chooses from the memory left.")
    kv_offload_bytes: int = Field(
        default=1024 * MIB,
        ge=0,
        description="Disk of each engine, in the data directory, for KV blocks that memory has no room for; at most a "
        "tenth of what is free there at its start. 0 keeps none.",
    )
    block_size: int = Field(default=16, ge=8, le=256, description="Token positions in one KV block; a multiple of 8.")
    prefix_caching: bool = Field(default=True, description="Reuse KV blocks of equal prompt prefixes.")
    max_num_seqs: int = Field(default=64, ge=1, le=4096, description="Most sequences in one step.")
    max_num_batched_tokens: int = Field(
        default=2048, ge=16, description="Most tokens in one step, whatever the cost line says."
    )
    inter_token_latency_target_ms: float = Field(
        default=100.0, gt=0, description="Gap between tokens that the token budget keeps running streams under."
    )
    prefer: Literal["streams", "prompts"] = Field(
        default="streams",
        description="Who comes first in a step: `streams` keeps their gaps however many prompts wait, `prompts` lets a "
        "crowd of prompts take longer steps.",
    )
    max_in_progress: int = Field(
        default=512, ge=1, description="Most requests in progress, and as many that wait or are counted; more are 503."
    )
    max_tokens_in_progress: int = Field(
        default=1 << 20,
        ge=1,
        description="Most tokens of the prompts in progress; more are 503. Alone a prompt of any length is served.",
    )
    max_queue_seconds: float = Field(
        default=5.0,
        gt=0,
        description="Longest forecast wait for a place in a full batch; a request that would wait longer and has no "
        "`deadline_ms` is refused with 503 and a Retry-After.",
    )
    max_body_bytes: int = Field(
        default=MIB, ge=1024, description="Largest request body; larger ones are refused with 413."
    )
    max_header_bytes: int = Field(
        default=32768, ge=1024, description="Largest head of a request, with its address; larger ones get 431."
    )
    header_seconds: float = Field(
        default=10.0, gt=0, description="Time for a head to come whole; a socket that sends none is closed then."
    )
    body_seconds: float = Field(
        default=30.0, gt=0, description="Time in which a body must bring 16 KiB, or its end; else the request gets 408."
    )
    keep_alive_seconds: float = Field(
        default=65.0, gt=0, description="How long a connection stays open between two requests."
    )
    max_connections: int = Field(
        default=2048,
        ge=16,
        description="Most open connections; past them one without a request in progress goes, or the new one gets 503.",
    )
    max_peer_connections: int = Field(
        default=1024, ge=1, description="The same for one client's address: a proxy is one client."
    )
    files_max_bytes: int = Field(
        default=200 * MIB, ge=1024, description="Largest uploaded file; larger ones are refused with 413."
    )
    files_total_bytes: int = Field(
        default=10240 * MIB,
        ge=0,
        description="Most bytes of all files together, in the data directory; past them uploads are refused with 507.",
    )
    default_max_new_tokens: int = Field(
        default=128, ge=1, description="`max_new_tokens` on the native routes where unset."
    )
    context_policy: Literal["refuse", "window", "middle", "summarise", "retrieve"] = Field(
        default="refuse",
        description="`context.policy` of chats without a session that name none; sessions' own default is `window`.",
    )
    generation_config: Literal["version", "none"] = Field(
        default="version",
        description="Where sampling parameters come from that a request leaves open: the version's "
        "`generation_config.json`, before the route's own defaults, or these alone.",
    )
    generic_tools: bool = Field(
        default=True,
        description="Whether tools are described in the system part of a version whose chat template places none; "
        "false refuses them there.",
    )
    load_timeout_seconds: float = Field(default=300.0, gt=0, description="Longest wait for a model to load.")
    idle_unload_seconds: float = Field(
        default=1800.0,
        ge=0,
        description="A version that nobody used for so long is unloaded, and loaded again on demand; 0 keeps all. "
        "Never the default model, nor what `POST /v1/deployments` asked for.",
    )
    idle_reports: bool = Field(
        default=True,
        description="Measure a served version that has no report, with a quick one, while no request is there; a "
        "request ends that work at once.",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, le=86400, description="Time that running answers get to finish at shutdown."
    )
    actor: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="Who `dosirak` commands say they are, in histories and lineage; the system's user where unset.",
    )
    protected_aliases: str | None = Field(
        default=None,
        description="Aliases, with commas between, that move only to versions with a report that passes the gate; "
        "others are not gated. Where unset, `production` is gated, and takes versions that were never measured.",
    )
    gate_top1_agreement: float = Field(
        default=0.95,
        ge=0,
        le=1,
        description="Gate: least share of the positions whose likeliest token is its parent's, where that token is "
        "clear: it leads by 0.2 nats. Only of conversions, which hold their parent's weights in another precision.",
    )
    gate_kl: float = Field(
        default=0.02,
        ge=0,
        description="Gate: most KL divergence from its parent, in nats a token. Only of conversions.",
    )
    gate_perplexity_change: float = Field(
        default=0.02,
        ge=0,
        description="Gate: most that perplexity may be higher than that of its parent or of the version it replaces, "
        "as a share.",
    )
    gate_decode_ratio: float = Field(
        default=0.8, ge=0, description="Gate: least decode speed, as a multiple of the other's, at every batch size."
    )
    gate_memory_ratio: float | None = Field(
        default=None,
        gt=0,
        description="Gate: most memory of the weights, as a multiple of the version's that it replaces; unset: any.",
    )
    gate_recall_loss: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Gate: most that recall may be lower than that of the version it replaces, as a share of the "
        "questions.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="Where chat history is kept, and with PostgreSQL what instances share (aliases, rollouts, "
        "deployments): `postgresql+asyncpg://user:password@host/name`, or a file as `sqlite+aiosqlite:////path`; "
        "`sessions.db` in the data directory where unset.",
    )
    store_url: str | None = Field(
        default=None,
        description="Where versions are shared with other instances: `file:///path` or `s3://bucket/prefix`, made by "
        "`dosirak store init`; in the data directory alone where unset.",
    )
    store_cache_bytes: int = Field(
        default=0,
        ge=0,
        description="Most bytes of weights of the store that the data directory keeps; the least recently used go, "
        "never those in use. 0 sets no limit.",
    )
    sessions_ttl_seconds: float = Field(
        default=2592000.0,
        ge=1,
        le=315360000,
        description="How long a session is kept after its last write, where it says nothing else; 30 days.",
    )
    sessions_max_message_bytes: int = Field(
        default=262144, ge=1, description="Largest message and system prompt of a session, in UTF-8."
    )
    sessions_max_messages: int = Field(default=10000, ge=2, description="Most messages in one session.")
    sessions_max_import_bytes: int = Field(
        default=64 * MIB, ge=1024, description="Largest session that is imported, as its export in bytes."
    )
    sessions_max_per_owner: int = Field(default=10000, ge=1, description="Most sessions of one owner.")
    sessions_max_metadata_bytes: int = Field(
        default=16384, ge=2, description="Largest metadata of a session, as JSON in UTF-8."
    )
    unknown_fields: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="What becomes of a request's fields that no schema knows: refused by name, or ignored and named in "
        "the response's header X-Ignored-Fields.",
    )
    cors_origins: str | None = Field(
        default=None,
        description="Web origins whose pages may ask this server, with commas between: exact, as "
        "`https://app.example`, or `*` beside an admin key; none where unset.",
    )
    guard_file: Path | None = Field(
        default=None, description="TOML file that says what answers are guarded against; no guard where unset."
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="Collector of traces: its base URL for OTLP over HTTP, as `http://collector:4318`. Where unset, "
        "OpenTelemetry's own variables decide; without them there are no traces.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto: console on a terminal, else JSON."
    )

    _traces_url: str | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _only_known_names(cls, data: Any) -> Any:
        refused = refused_names(os.environ, cls.model_fields)
        if refused:
            raise ValueError("; ".join(refused))
        return data

    @field_validator("data_dir", "guard_file", "vllm_python", mode="before")
    @classmethod
    def _unset_where_empty(cls, value: object, info: ValidationInfo) -> object:
        """An empty variable is none, and no name of the working directory."""
        if value == "":
            return cls.model_fields[str(info.field_name)].get_default(call_default_factory=True, validated_data={})
        return value

    @field_validator("data_dir", "guard_file", "vllm_python")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        try:
            return None if value is None else value.expanduser().absolute()
        except RuntimeError:
            raise ValueError(f"{value} begins with a user who has no home directory: write the whole path") from None

    @field_validator("protected_aliases")
    @classmethod
    def _aliases_that_can_be(cls, value: str | None) -> str | None:
        """Refuses a word that no alias can have: the gate of the alias that is meant would be off."""
        try:
            for alias in alias_names(value):
                ModelReference("any", alias=alias)
        except InvalidReference as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("admin_key")
    @classmethod
    def _key_that_can_be_sent(cls, value: SecretStr | None) -> SecretStr | None:
        """Refuses an empty key, which would be a key that everyone knows: compose files make an empty variable of an
        unset one. Refuses what no header can hold."""
        key = value.get_secret_value() if value is not None else "unset"
        if not key or key != key.strip():
            raise ValueError("must be at least one character, with no white space around it; or remove the variable")
        if not (key.isascii() and key.isprintable()):
            raise ValueError(
                "must be of ASCII characters alone, as in `openssl rand -hex 32`: a header holds no others"
            )
        return value

    @field_validator("block_size")
    @classmethod
    def _multiple_of_eight(cls, value: int) -> int:
        if value % 8:
            raise ValueError("must be a multiple of 8")
        return value

    @field_validator("devices")
    @classmethod
    def _devices_that_can_be(cls, value: str | None) -> str | None:
        return ",".join(parse_devices(value or "")) or None

    @field_validator("database_url")
    @classmethod
    def _database_that_we_know(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(DATABASES):
            raise ValueError(f"must begin with {' or '.join(DATABASES)}")
        return value if value is None else SecretStr(_absolute_database(value.get_secret_value()))

    @field_validator("trusted_network", "store_url", "otlp_endpoint")
    @classmethod
    def _checked_unless_empty(cls, value: str | None, info: ValidationInfo) -> str | None:
        """An empty variable is none: compose files make one of an unset variable."""
        return CHECKS[str(info.field_name)](value) if value else None

    @property
    def origins(self) -> tuple[str, ...]:
        return origins_of(self.cors_origins or "")

    @field_validator("cors_origins")
    @classmethod
    def _origins_that_browsers_send(cls, value: str | None) -> str | None:
        origins_of(value or "")
        return value

    @model_validator(mode="after")
    def _one_word_on_devices(self) -> Settings:
        if self.devices and self.device != "auto":
            raise ValueError("DOSIRAK_DEVICE and DOSIRAK_DEVICES are both set: remove one of them")
        return self

    @property
    def device_list(self) -> tuple[str, ...]:
        """Returns the devices that are named one by one; none where `device` alone decides."""
        return parse_devices(self.devices or "")

    @property
    def first_device(self) -> str:
        """Returns where work runs that needs one device, such as an evaluation."""
        return self.device_list[0] if self.devices else self.device

    def computes_on_gpu(self, has_gpu: bool) -> bool:
        """Returns whether our own engine computes on a GPU, on a machine that has one or not."""
        return has_gpu if self.first_device == "auto" else self.first_device.startswith(CUDA)

    @property
    def given_replicas(self) -> int | None:
        """Returns the replicas of the default model; None where each of several devices is to have one."""
        return None if self.devices and "replicas" not in self.model_fields_set else self.replicas

    @model_validator(mode="after")
    def _known_collector(self) -> Settings:
        self._traces_url = traces_url(self.otlp_endpoint) if self.otlp_endpoint else standard_traces_url(os.environ)
        return self

    @model_validator(mode="after")
    def _open_only_on_loopback(self) -> Settings:
        if self.admin_key is None and not self.is_loopback:
            raise ValueError(
                f"DOSIRAK_HOST={self.host} is reachable from outside: set DOSIRAK_ADMIN_KEY, or listen on 127.0.0.1"
            )
        if self.admin_key is None and EVERY in self.origins:
            raise ValueError(
                "DOSIRAK_CORS_ORIGINS=* lets every web page ask a server that needs no key: set DOSIRAK_ADMIN_KEY, or "
                "name the origins"
            )
        return self

    def gate(self, alias: str) -> Limits | None:
        """Returns what a version must fulfil for `alias` to point to it; None for an alias without a gate."""
        protected = alias_names(self.protected_aliases)
        if alias not in (protected or [DEFAULT_ALIAS]):
            return None
        return Limits(
            self.gate_top1_agreement,
            self.gate_kl,
            self.gate_perplexity_change,
            self.gate_decode_ratio,
            self.gate_recall_loss,
            self.gate_memory_ratio or math.inf,
            measured=bool(protected),
        )

    @property
    def traces_url(self) -> str | None:
        """Returns where spans are sent; None where there is no collector."""
        return self._traces_url

    @property
    def session_database(self) -> str:
        """Returns the URL of the database with the chat history; it may hold a password."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{quote(str(self.data_dir / 'sessions.db'))}"

    @property
    def shares_records(self) -> bool:
        """Returns whether other instances see this one's aliases, rollouts and wanted deployments."""
        return self.session_database.startswith(DATABASES[1])

    @property
    def store(self) -> StorePlace:
        """Returns where versions are shared, and how much of it is kept here."""
        return StorePlace(self.store_url, self.store_cache_bytes)

    @property
    def is_alone(self) -> bool:
        """Returns whether the data directory is all that the repository needs."""
        return not self.shares_records and self.store_url is None

    @property
    def who(self) -> str:
        """Returns the actor of a command: as set, else the system's user by name, or by number where it has no name."""
        try:
            return self.actor or getpass.getuser()
        except (KeyError, OSError):  # the user has no name, as in a container with a user of its own
            return f"uid {os.getuid()}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def shown(self) -> dict[str, object]:
        """Returns the effective values for logs and `/info`; secrets are masked."""
        return {**self.model_dump(mode="json"), "otlp_endpoint": self.traces_url}


def alias_names(text: str | None) -> list[str]:
    """Returns the words between the commas of the text."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _absolute_database(url: str) -> str:
    """Returns the URL; that of a file with its whole path, as another process would find it."""
    path = url.removeprefix(DATABASES[0])
    if not url.startswith(DATABASES[0]) or not path or path[0] in "/:?":
        return url
    return f"{DATABASES[0]}{quote(str(Path.cwd()))}/{path}"


def refused_names(variables: Iterable[str], fields: Iterable[str]) -> list[str]:
    """Returns a sentence for each name that begins as a setting's and is none, in any case, as settings are read."""
    known = {field.upper() for field in fields}
    names = {name: name.upper().removeprefix(PREFIX) for name in variables if name.upper().startswith(PREFIX)}
    return [_refusal(name, bare, known) for name, bare in sorted(names.items()) if bare not in known]


def _refusal(name: str, bare: str, known: set[str]) -> str:
    if SERVICE_LINK.fullmatch(bare):
        return f"{name} is set by Kubernetes for a Service named dosirak: put enableServiceLinks: false into the pod"
    nearest = get_close_matches(bare, sorted(known), n=1, cutoff=SIMILAR)
    hint = f"did you mean {PREFIX}{nearest[0]}?" if nearest else "remove it; docs/settings.md lists what there is"
    return f"{name} is no setting: {hint}"


def visible_gpus() -> str | None:
    """Returns which GPUs CUDA is told to see; None: all of them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def settings_or_exit() -> Settings:
    """Returns the settings; ends the process with a line for each wrong one. `bentoml serve` would show a traceback."""
    try:
        settings = Settings()
    except ValidationError as error:
        sys.exit("\n".join(f"{name}: {sentence}" for name, sentence in sentences(error)))
    if sentence := absent(settings.device_list, num_gpus(visible_gpus())):
        sys.exit(f"DOSIRAK_DEVICES: {sentence}")
    return settings


def sentences(error: ValidationError) -> Iterator[tuple[str, str]]:
    """Yields the variable's name and what is wrong with its value, for each problem of the settings."""
    for problem in error.errors():
        name = "_".join(["DOSIRAK", *map(str, problem["loc"])]).upper() if problem["loc"] else "settings"
        yield name, f"{problem['msg']}{_way_out(problem)}"


def _way_out(problem: ErrorDetails) -> str:
    """Returns the end of the sentence about a wrong value: its default. The settings' own sentences have their ends."""
    field = Settings.model_fields.get(str(problem["loc"][0])) if problem["loc"] else None
    if field is None or problem["type"] == "value_error":
        return ""
    return f"; remove the variable for its default{'' if field.default is None else f', {field.default}'}"
