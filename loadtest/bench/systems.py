"""A system is one side of the comparison: Dosirak, or a peer in its best documented form, all on the same threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from loadtest.bench.cache import Cache
from loadtest.bench.running import Dialect, Driven, Launch, Running, Served, free_port
from loadtest.bench.wave import Asked
from loadtest.checkpoints import DEMO, LARGE, MIDDLE, MIXTURE, SMALL, TINYLLAMA, WIDE, Shape
from loadtest.peers.driver import TEMPERATURE, TOP_P

Precision = Literal["int8", "bf16", "fp32", "int4", "int8-weight", "llm-int8", "file"]
OURS: Final = "dosirak"
CORES: Final = len(os.sched_getaffinity(0))
SLOTS: Final = 32
SLOT_TOKENS: Final = 2048
"""Context of one of llama.cpp's slots: the longest prompt of the comparison and its answer."""
KV_BYTES: Final = 2 << 30
HELD_BACK: Final = -1
"""Stands for a token whose id was not told."""


@dataclass(frozen=True, slots=True)
class System:
    """One row of the tables. `form` says which settings; `options` go to its driver or server; `weights` is the peer's
    own name of the precision, where it has several."""

    name: str
    peer: str
    shape: Shape
    precision: Precision
    form: str = ""
    options: tuple[str, ...] = ()
    http: bool = False
    weights: str = ""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return self.peer == OURS

    async def start(self, cache: Cache) -> Running:
        """Raises Failed when it does not come up."""
        cache.logs.mkdir(parents=True, exist_ok=True)
        log = cache.logs / f"{self.name.replace(' ', '-')}.log"
        if not self.http:
            module = f"loadtest.peers.on_{self.peer}"
            command = [str(cache.python(self.peer)), "-m", module, self._model(cache), *self.options]
            return await Driven.start(Launch(command, log, self._environment(cache)))
        port = free_port()
        launch = Launch(self._server(cache, port), log, self._environment(cache) | {"DOSIRAK_PORT": str(port)})
        return await Served.start(launch, DIALECTS[self.peer], port)

    def _model(self, cache: Cache) -> str:
        if self.ours:
            return cache.version_of(self.shape, self.precision)
        if self.peer in ("transformers", "vllm", "bentoml"):
            return str(cache.checkpoint(self.shape))
        return str(cache.converted(self.peer, self.shape, self.weights or self.precision))

    def _environment(self, cache: Cache) -> dict[str, str]:
        if not self.ours:
            return {
                "OMP_NUM_THREADS": str(CORES),
                "TOKENIZERS_PARALLELISM": "false",
                "BENTOML_HOME": str(cache.root / "bentoml"),
                "BENTOML_DO_NOT_TRACK": "true",
                "DISPATCHED_MODEL": self._model(cache),
                "DISPATCHED_DTYPE": self.precision,
                **self.variables,
            }
        return {
            "DOSIRAK_DATA_DIR": str(cache.repository),
            "DOSIRAK_DEFAULT_MODEL": self._model(cache),
            "DOSIRAK_KV_CACHE_BYTES": str(KV_BYTES),
            "DOSIRAK_LOG_FORMAT": "json",
            "DOSIRAK_IDLE_REPORTS": "false",
            "GOMP_SPINCOUNT": "10000",
            **self.variables,
        }

    def _server(self, cache: Cache, port: int) -> list[str]:
        if self.ours:
            return [sys.executable, "-m", "service.cli", "serve"]
        if self.peer == "bentoml":
            service = "loadtest.peers.bento_dispatcher:Dispatcher"
            return [sys.executable, "-m", "bentoml", "serve", service, "--port", str(port)]
        threads = ["--threads", str(CORES), "--threads-batch", str(CORES)]
        slots = ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * SLOT_TOKENS), "--no-webui"]
        server = str(cache.llama_cpp_bin / "llama-server")
        return [server, "--model", self._model(cache), "--port", str(port), *threads, *slots, *self.options]


def _ask_dosirak(asked: Asked) -> dict[str, object]:
    wanted: dict[str, object] = {"max_new_tokens": asked.new_tokens, "ignore_eos": True}
    if asked.sampled:
        wanted |= {"do_sample": True, "temperature": TEMPERATURE, "top_p": TOP_P}
    return {"input_ids": asked.token_ids, "parameters": wanted}


def _told_by_dosirak(event: dict[str, object], before: int) -> list[int]:
    token = event.get("token")
    return [int(token["id"])] if isinstance(token, dict) else []


def _ask_llama_cpp(asked: Asked) -> dict[str, object]:
    chosen: dict[str, object] = {"temperature": 0.0, "samplers": ["temperature"]}
    if asked.sampled:  # its own default is top_p 0.95 after top_k 40, which spares it the whole vocabulary
        chosen = {"temperature": TEMPERATURE, "top_p": TOP_P, "samplers": ["top_p", "temperature"]}
    greedy = chosen | {"ignore_eos": True, "cache_prompt": True}
    wanted = {"n_predict": asked.new_tokens, "stream": True, "return_tokens": True}
    return {"prompt": asked.token_ids, **wanted, **greedy}


def _told_by_llama_cpp(event: dict[str, Any], before: int) -> list[int]:
    """A token that ends inside a character is held back; where none follows, only the last event's count tells it."""
    if event.get("stop"):
        return [HELD_BACK] * (int(event["tokens_predicted"]) - before)
    return [int(token) for token in event.get("tokens", ())]


def _ask_bentoml(asked: Asked) -> dict[str, object]:
    return {"asked": [{"token_ids": asked.token_ids, "new_tokens": asked.new_tokens}]}


def _told_by_bentoml(rows: list[list[int]], before: int) -> list[int]:
    return rows[0]


DIALECTS: Final = {
    OURS: Dialect("/readyz", "/generate_stream", _ask_dosirak, _told_by_dosirak),
    "llama.cpp": Dialect("/health", "/completion", _ask_llama_cpp, _told_by_llama_cpp),
    "bentoml": Dialect("/readyz", "/generate", _ask_bentoml, _told_by_bentoml, b"["),
}


def catalogue() -> tuple[System, ...]:
    """Every system, ours first; ratios take the best of the peers' forms for each row."""
    q8 = ("--flash-attn", "on")
    return (
        System("dosirak int8 http", OURS, TINYLLAMA, "int8", "the server, streaming", http=True),
        System("dosirak int8 offline", OURS, TINYLLAMA, "int8", "the engine alone"),
        System("dosirak int8 offline no lookup", OURS, TINYLLAMA, "int8", "the engine alone", ("no-lookup",)),
        System("dosirak int8 paired", OURS, TINYLLAMA, "int8", "with and without lookup, a step of each", ("paired",)),
        System("dosirak int4 http", OURS, TINYLLAMA, "int4", "the server, streaming", http=True),
        System("dosirak int4 offline no lookup", OURS, TINYLLAMA, "int4", "the engine alone", ("no-lookup",)),
        System("openvino int8 g128", "openvino", TINYLLAMA, "int8", "group 128, KV u8", ("128", "u8", "f32")),
        System("openvino int8 bf16", "openvino", TINYLLAMA, "int8", "own precision, KV u8", ("128", "u8", "default")),
        System("openvino int8 g2048", "openvino", TINYLLAMA, "int8", "group 2048, KV u8", ("2048", "u8", "f32")),
        System("llama.cpp q8_0", "llama.cpp", TINYLLAMA, "int8", "server over HTTP, 32 slots", q8, http=True),
        System("llama.cpp q4_0", "llama.cpp", TINYLLAMA, "int4", "server over HTTP, 32 slots", q8, True, "q4_0"),
        System("llama.cpp q4_k_m", "llama.cpp", TINYLLAMA, "int4", "server over HTTP, 32 slots", q8, True, "q4_k_m"),
        System("ctranslate2 int8", "ctranslate2", TINYLLAMA, "int8", "static batch", ("int8",)),
        System("dosirak bf16 http", OURS, TINYLLAMA, "bf16", "the server, streaming", http=True),
        System("dosirak bf16 offline", OURS, TINYLLAMA, "bf16", "the engine alone", ("no-lookup",)),
        System("llama.cpp bf16", "llama.cpp", TINYLLAMA, "bf16", "server over HTTP, 32 slots", q8, http=True),
        System("transformers bf16", "transformers", TINYLLAMA, "bf16", "static batch", ("bfloat16", "static")),
        System(
            "transformers bf16 continuous",
            "transformers",
            TINYLLAMA,
            "bf16",
            "continuous batching",
            ("bfloat16", "continuous"),
        ),
        System("vllm bf16", "vllm", TINYLLAMA, "bf16", "engine in process, all cores", ("bfloat16",)),
        System("dosirak 135M http", OURS, SMALL, "int8", "the server, streaming", http=True),
        System("dosirak 135M offline", OURS, SMALL, "int8", "the engine alone"),
        System("dosirak demo http", OURS, DEMO, "int8", "the server, streaming", http=True),
        System("dosirak demo offline", OURS, DEMO, "int8", "the engine alone", ("no-lookup",)),
        System("llama.cpp 135M q8_0", "llama.cpp", SMALL, "int8", "server over HTTP, 32 slots", q8, http=True),
        System("openvino 135M int8 g128", "openvino", SMALL, "int8", "group 128, KV u8", ("128", "u8", "f32")),
        System("ctranslate2 135M int8", "ctranslate2", SMALL, "int8", "static batch", ("int8",)),
        System("dosirak 0.5B http", OURS, WIDE, "int8", "the server, streaming", http=True),
        System("llama.cpp 0.5B q8_0", "llama.cpp", WIDE, "int8", "server over HTTP, 32 slots", q8, http=True),
        System("openvino 0.5B int8 g128", "openvino", WIDE, "int8", "group 128, KV u8", ("128", "u8", "f32")),
        System("dosirak 3B http", OURS, MIDDLE, "int8", "the server, streaming", http=True),
        System("dosirak 3B int4 http", OURS, MIDDLE, "int4", "the server, streaming", http=True),
        System("llama.cpp 3B q8_0", "llama.cpp", MIDDLE, "int8", "server over HTTP, 32 slots", q8, http=True),
        System("llama.cpp 3B q4_0", "llama.cpp", MIDDLE, "int4", "server, 32 slots", q8, True, "q4_0"),
        System("openvino 3B int8 g128", "openvino", MIDDLE, "int8", "group 128, KV u8", ("128", "u8", "f32")),
        System("dosirak 7B int4 http", OURS, LARGE, "int4", "the server, streaming", http=True),
        System("dosirak mixture http", OURS, MIXTURE, "int8", "the server, streaming", http=True),
        System("dosirak mixture int4 http", OURS, MIXTURE, "int4", "the server, streaming", http=True),
        System("llama.cpp mixture q8_0", "llama.cpp", MIXTURE, "int8", "server over HTTP, 32 slots", q8, http=True),
        System("llama.cpp mixture q4_0", "llama.cpp", MIXTURE, "int4", "server, 32 slots", q8, True, "q4_0"),
        System("openvino mixture int8 g128", "openvino", MIXTURE, "int8", "group 128, KV u8", ("128", "u8", "f32")),
    )


def peers(systems: Sequence[System]) -> list[str]:
    """Names of the peers among `systems`, each once."""
    return list(dict.fromkeys(system.peer for system in systems if not system.ours))


def named(systems: Sequence[System], prefixes: Sequence[str]) -> list[System]:
    """Those whose name begins with one of `prefixes`. SystemExit where a prefix fits none."""
    for prefix in prefixes:
        if not any(system.name.startswith(prefix) for system in systems):
            raise SystemExit(f"no system begins with {prefix!r}; there are: {', '.join(s.name for s in systems)}")
    return [system for system in systems if not prefixes or any(system.name.startswith(p) for p in prefixes)]
