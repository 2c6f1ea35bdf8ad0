"""An import takes what the directory holds; a file that could run code or exhaust a loader is refused by name."""

import json
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from models.checkpoint import generation_defaults
from models.checkpoint.decoder_start import decoder_start
from models.checkpoint.pooling import VersionPooling, of_version
from models.checkpoint.safetensors_file import (
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    Tensor,
    read_header,
    read_headers,
    write_file,
)
from models.checkpoint.tokenizer_files import check_ids
from models.errors import Conflict, InvalidSource
from models.imports.catalogue import first
from models.imports.hub.downloads import Refs
from models.imports.hub.source import HubSource
from models.imports.importing import import_source
from models.imports.starter import publish_demo
from models.imports.upkeep import sweep
from models.repository.repository import Repository
from models.weights import fit, skeleton
from models.weights.loading import load_model
from service.engine.runner.block_linear import coded_linear
from service.errors import InvalidRequest
from service.text.tokenizer import Tokenizer as Served
from tests.checkpoints import save_bart, save_gpt2, save_llama, save_t5
from tests.fake_hub import FakeHub, reached
from tests.versions import publish


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "data")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_llama(tmp_path / "llama")


def edit_json(path: Path, **changes: object) -> None:
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(document | changes))


def refused(repository: Repository, source: Path | str, named: str) -> None:
    """The import fails with a message holding `named`, publishes nothing and leaves nothing behind."""
    with pytest.raises(InvalidSource, match=named) as caught:
        import_source(repository, str(source), "demo")
    assert str(source) not in str(caught.value) or isinstance(source, str)
    assert repository.models() == []
    assert sweep(repository, older_than=0) == []


def test_bf16_is_copied_byte_for_byte(repository: Repository, llama: Path) -> None:
    (llama / "README.md").write_text("---\nlanguage: ko\nlicense: apache-2.0\n---\n# A card\n")
    (llama / "notes.txt").write_text("not part of a model")
    manifest = import_source(repository, str(llama), "demo", author="kim")
    assert (llama / "model.safetensors").read_bytes() == (repository.path(manifest) / "model.safetensors").read_bytes()
    assert {file.path for file in manifest.files} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (manifest.architecture, manifest.model_type) == ("LlamaForCausalLM", "llama")
    assert (manifest.precision, manifest.dtype, manifest.license) == ("bf16", "BF16", "apache-2.0")
    assert (manifest.context_window, manifest.vocab_size) == (128, 260)
    assert manifest.parameters == 260 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48 + 3 * 32
    assert manifest.lineage.author == "kim"
    repository.verify(manifest)


@pytest.mark.parametrize(
    ("stored", "precision", "result"),
    [
        (torch.float32, "bf16", torch.bfloat16),
        (torch.float16, "bf16", torch.bfloat16),
        (torch.float32, "fp32", torch.float32),
        (torch.bfloat16, "fp32", torch.float32),
    ],
)
def test_precision(
    repository: Repository, tmp_path: Path, stored: torch.dtype, precision: str, result: torch.dtype
) -> None:
    source = save_llama(tmp_path / "source", stored, shards="20KB")
    manifest = import_source(repository, str(source), "demo", precision=precision)
    repository.verify(manifest)
    directory = repository.path(manifest)
    shards = sorted(path.name for path in directory.glob("*.safetensors"))
    assert len(shards) > 1
    for shard in shards:
        before, after = load_file(source / shard), load_file(directory / shard)
        assert before.keys() == after.keys()
        for name, tensor in after.items():
            assert tensor.dtype == result
            assert torch.equal(tensor, before[name].to(result))
    assert json.loads((directory / "config.json").read_text())["dtype"] == str(result).removeprefix("torch.")


def test_a_head_that_is_not_the_embedding_is_a_head_of_its_own(repository: Repository, tmp_path: Path) -> None:
    """The head alone was trained, and `config.json` still ties it: 8 bits and merged adapters took the embedding."""
    source = save_llama(tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    same = import_source(repository, str(source), "same", precision="bf16")
    assert json.loads((repository.path(same) / "config.json").read_text())["tie_word_embeddings"] is True
    torch.manual_seed(1)
    tensors["lm_head.weight"] = (torch.randn(embedding.shape) * 0.05).to(embedding.dtype)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    eight = import_source(repository, str(source), "own", precision="int8")
    parent = repository.get("own", "1")
    assert "lm_head.weight of its own" in parent.lineage.recipe
    assert json.loads((repository.path(eight) / "config.json").read_text())["tie_word_embeddings"] is False
    assert parent.parameters == same.parameters + embedding.numel()
    ids = torch.tensor([[1, 5, 9, 33, 77]])
    logits = []
    for version in (parent, eight):
        model = load_model(
            repository.path(version), version.precision, torch.float32, torch.device("cpu"), coded_linear
        )
        with torch.inference_mode():
            logits.append(model(ids).logits.flatten())
    assert torch.corrcoef(torch.stack(logits))[0, 1] > 0.95
    config = source / "config.json"
    with pytest.raises(InvalidSource, match=r"lm_head\.weight differs from the embedding"):
        fit.require_tied(source, skeleton.build(source))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": False}))
    fit.require_tied(source, skeleton.build(source))


def test_int8_publishes_both(repository: Repository, llama: Path) -> None:
    seen: list[float] = []
    manifest = import_source(
        repository, str(llama), "demo", precision="int8", progress=lambda fraction, what: seen.append(fraction)
    )
    parent = repository.get("demo", "1")
    assert (manifest.reference, manifest.precision, parent.precision) == ("demo:2", "int8", "bf16")
    assert (manifest.lineage.parent, manifest.lineage.parent_digest) == ("demo:1", parent.digest)
    assert seen == sorted(seen)
    assert seen[0] >= 0 and seen[-1] <= 1
    with pytest.raises(Conflict):
        import_source(repository, str(llama), "demo", version="2")
    assert len(repository.versions("demo")) == 2


@pytest.mark.parametrize(
    ("there", "wanted", "parent"), [(0, "1", "2"), (1, "2", "3"), (0, "7", "1"), (0, "final", "1")]
)
def test_the_bf16_version_leaves_the_wanted_number_to_the_one_made_of_it(
    repository: Repository, llama: Path, there: int, wanted: str, parent: str
) -> None:
    for content in range(there):
        publish(repository, str(content))
    manifest = import_source(repository, str(llama), "demo", wanted, "int8-weight")
    assert (manifest.version, manifest.precision, manifest.lineage.parent) == (wanted, "int8-weight", f"demo:{parent}")
    assert repository.get("demo", parent).precision == "bf16"


@pytest.mark.parametrize(
    ("wanted", "named"),
    [("latest", "'latest' cannot be a version"), ("1", "demo:1 exists"), ("2", "demo:2 exists or once existed")],
)
def test_a_version_that_cannot_be_had_is_refused_before_any_work(
    repository: Repository, llama: Path, wanted: str, named: str
) -> None:
    for content in "ab":
        publish(repository, content)
    repository.delete("demo", "2")
    worked: list[str] = []
    with pytest.raises(Conflict, match=named):
        import_source(repository, str(llama), "demo", wanted, progress=lambda share, what: worked.append(what))
    assert worked == []


@pytest.mark.parametrize(
    ("save", "window", "start"), [(save_gpt2, 128, ()), (save_t5, 512, (256,)), (save_bart, 128, (256, 65))]
)
def test_other_architectures(
    repository: Repository, tmp_path: Path, save: Callable[[Path], Path], window: int, start: tuple[int, ...]
) -> None:
    manifest = import_source(repository, str(save(tmp_path / "source")), "demo")
    repository.verify(manifest)
    assert (manifest.context_window, decoder_start(repository.path(manifest))) == (window, start)


def test_a_decoder_must_start_with_something(repository: Repository, tmp_path: Path) -> None:
    """Older checkpoints say it in config.json, newer ones in generation_config.json."""
    source = save_t5(tmp_path / "source")
    (source / "generation_config.json").unlink()
    edit_json(source / "config.json", decoder_start_token_id=None)
    refused(repository, source, "decoder_start_token_id")
    edit_json(source / "config.json", decoder_start_token_id=7)
    assert decoder_start(repository.path(import_source(repository, str(source), "demo"))) == (7,)


def test_one_file_of_another_name_becomes_the_weights(repository: Repository, llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "weights.safetensors")
    manifest = import_source(repository, str(llama), "demo")
    assert "model.safetensors" in {file.path for file in manifest.files}
    repository.verify(manifest)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "x.PKL", "x.ckpt", "x.npy", "x.h5", "x.keras", "x.py"])
def test_pickles_and_code_are_refused(repository: Repository, llama: Path, name: str) -> None:
    (llama / name).write_bytes(b"cos\nsystem\n(S'touch canary'\ntR.")
    refused(repository, llama, name)


@pytest.mark.parametrize(
    ("file", "changes", "named"),
    [
        ("config.json", {"auto_map": {"AutoModel": "x.Y"}, "architectures": ["InternLM2ForCausalLM"]}, "auto_map"),
        ("config.json", {"custom_pipelines": {}}, "custom_pipelines"),
        ("config.json", {"_attn_implementation_internal": "evil/kernel"}, "_attn_implementation_internal"),
        ("config.json", {"attn_implementation": "evil/kernel"}, "attn_implementation"),
        ("config.json", {"rope_parameters": {"deep": [{"auto_map": 1}]}}, "auto_map"),
        ("config.json", {"quantization_config": {"quant_method": "odd"}}, "quantization_config"),
        ("config.json", {"architectures": ["EvilForCausalLM"]}, "EvilForCausalLM"),
        ("config.json", {"architectures": ["GPT2LMHeadModel"]}, "LlamaForCausalLM"),
        ("config.json", {"architectures": None}, "architectures"),
        ("config.json", {"model_type": "evil"}, "evil"),
        ("config.json", {"model_type": ["llama"]}, "model_type"),
        ("config.json", {"hidden_size": "big"}, "'hidden_size', of which no model can be built: .*int"),
        ("tokenizer_config.json", {"deep": {"auto_map": {"AutoTokenizer": ["x.Y", None]}}}, "tokenizer_config.json"),
        ("generation_config.json", {"custom_generate": "evil/repo"}, "custom_generate"),
        ("adapter_config.json", {}, "adapter"),
    ],
)
def test_configurations_that_are_refused(
    repository: Repository, llama: Path, file: str, changes: dict[str, object], named: str
) -> None:
    edit_json(llama / file, **changes)
    refused(repository, llama, named)


def test_unknown_keys_are_dropped_and_reported(repository: Repository, llama: Path) -> None:
    edit_json(
        llama / "config.json", _name_or_path="evil/repo", surprise=1, rope_theta=5.0, _attn_implementation_autoset=True
    )
    manifest = import_source(repository, str(llama), "demo")
    config = json.loads((repository.path(manifest) / "config.json").read_text())
    assert config["rope_theta"] == 5.0
    for dropped in ("_name_or_path", "surprise", "_attn_implementation_autoset"):
        assert dropped not in config
        assert dropped in manifest.lineage.recipe


def test_how_the_author_samples_is_kept_and_what_nothing_acts_on_is_noted(repository: Repository, llama: Path) -> None:
    acts = {"do_sample": True, "temperature": 0.6, "top_k": -1, "suppress_tokens": [3]}
    neutral = {"num_beams": 1, "no_repeat_ngram_size": 0, "begin_suppress_tokens": [], "max_length": 20}
    unused = {"no_repeat_ngram_size": 3, "begin_suppress_tokens": [7], "forced_eos_token_id": 2, "min_p": "some"}
    noted = "generation_config.json without min_p 'some', begin_suppress_tokens, forced_eos_token_id, no_repeat"
    edit_json(llama / "generation_config.json", **acts, **neutral)
    plain = import_source(repository, str(llama), "demo")
    assert "generation_config.json" not in plain.lineage.recipe
    edit_json(llama / "generation_config.json", **unused)
    manifest = import_source(repository, str(llama), "demo")
    assert noted in manifest.lineage.recipe
    found = generation_defaults.of_version(repository.path(manifest))
    assert (found.sampling, found.is_greedy, found.suppressed) == ({"temperature": 0.6, "top_k": 0}, False, (3,))


def test_the_forced_first_token_of_a_decoder_is_not_noted(repository: Repository, tmp_path: Path) -> None:
    recipe = import_source(repository, str(save_bart(tmp_path / "source")), "demo").lineage.recipe
    assert "forced_bos_token_id" not in recipe


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}', b'{"a":' * 100_000])
def test_bad_json(repository: Repository, llama: Path, content: bytes) -> None:
    (llama / "config.json").write_bytes(content)
    refused(repository, llama, "config.json")


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files(repository: Repository, llama: Path, missing: str) -> None:
    (llama / missing).unlink()
    refused(repository, llama, missing.removeprefix("model."))


def test_a_tokenizer_that_does_not_load(repository: Repository, llama: Path) -> None:
    (llama / "tokenizer.json").write_text('{"model": {"type": "Odd"}}')
    refused(repository, llama, "tokenizer.json")


def slow_tokenizer(source: Path, **added: int) -> None:
    """The files of a byte-level tokenizer before there was a tokenizer.json."""
    (source / "tokenizer.json").unlink()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    (source / "vocab.json").write_text(json.dumps({symbol: id for id, symbol in enumerate(alphabet)}))
    (source / "merges.txt").write_text("#version: 0.2\n")
    (source / "added_tokens.json").write_text(json.dumps(added))
    edit_json(source / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")


def test_a_slow_tokenizer_keeps_its_ids(repository: Repository, llama: Path) -> None:
    slow_tokenizer(llama, **{"<|im_start|>": 258, "<|im_end|>": 257, "<|endoftext|>": 256})
    directory = repository.path(import_source(repository, str(llama), "demo"))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.encode("a<|im_start|>b").ids == [64, 258, 65]
    assert not (directory / "added_tokens.json").exists() and not (directory / "vocab.json").exists()


def test_a_sentencepiece_model_of_unigrams(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], unk_id=0))
    tokenizer.add_special_tokens(["<extra_id_0>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "added_tokens.json").write_text('{"<extra_id_0>": 3, "b": 2}')
    check_ids(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"b": 1}')
    with pytest.raises(InvalidSource, match="'b' the id 1, and transformers 2"):
        check_ids(tmp_path)


def test_a_slow_tokenizer_whose_ids_would_change_is_refused(repository: Repository, llama: Path) -> None:
    slow_tokenizer(llama, **{"<|im_start|>": 300, "<|endoftext|>": 256})
    refused(repository, llama, r"added_tokens.json gives the token '<|im_start|>' the id 300")


MISTAKES = {
    "{% for a in b %}": "in line 1: Unexpected end of template",
    "a\n{{ b | frommarkdown }}": "in line 2: No filter named 'frommarkdown'",
    "{{ a | urlize }}": "No filter named 'urlize'",
    "{% generation %}{% endfor %}": "endfor",
    "{{ a b }}": "expected token",
    "{% break %}": "SyntaxError",
}


@pytest.mark.parametrize("template", MISTAKES)
@pytest.mark.parametrize("file", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_a_chat_template_that_does_not_compile(repository: Repository, llama: Path, file: str, template: str) -> None:
    told: object = template
    if file == "tokenizer_config.json":
        told = [{"name": "tool_use", "template": "{{ never used }}"}, {"name": "default", "template": template}]
    content = template if file.endswith(".jinja") else json.dumps({"chat_template": told})
    (llama / file).write_text(content)
    refused(repository, llama, f"of {file} does not compile.*{re.escape(MISTAKES[template])}")
    with pytest.raises(InvalidRequest, match="does not compile"):  # as the load of a version that was published before
        Served.load(llama)


def test_a_chat_template_of_transformers_dialect_compiles(repository: Repository, llama: Path) -> None:
    (llama / "chat_template.jinja").write_text(
        "{%- for m in messages %}{% if loop.last %}{% break %}{% endif %}{%- generation -%}{{ m.content | trim }}"
        "{% endgeneration %}{% endfor %}{{ strftime_now('%d') }}{{ tools | tojson(indent=4) }}"
    )
    import_source(repository, str(llama), "demo")
    Served.load(llama)


def test_links_are_not_followed(repository: Repository, llama: Path, tmp_path: Path) -> None:
    (llama / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (llama / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    refused(repository, llama, "symbolic link")


@pytest.mark.parametrize(
    "source", ["nothing", "../..x", "/no/such/directory", "http://x/y", "a/b/c", "demo:1", "", "\0"]
)
def test_no_source(repository: Repository, source: str) -> None:
    refused(repository, source, "hub id")


def test_a_revision_of_a_source_that_has_none(repository: Repository, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    tarfile.open(tmp_path / "model.tar", "w").close()
    stored = repository.layout.models / "stored" / "1"
    stored.mkdir(parents=True)
    (stored / "model.yaml").touch()
    for source, kind in {
        llama: "a directory",
        tmp_path / "model.gguf": "a GGUF file",
        tmp_path / "model.tar": "an archive",
        first().place: "a wheel",
        first().name: "a wheel",
        "stored:1": "a model of the BentoML store",
        "org/name@dev": "revision already: leave revision out",
    }.items():
        with pytest.raises(InvalidSource, match=kind):
            import_source(repository, str(source), "demo", revision="main")
    assert repository.models() == []


def test_what_a_hub_gave_is_published_and_not_kept_twice(
    repository: Repository, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeHub() as hub:
        reached(hub, tmp_path / "cache", monkeypatch)
        commit = hub.push("org/name", llama, branch="dev")
        told: list[str] = []
        manifest = import_source(
            repository, "org/name", "demo", revision="dev", progress=lambda fraction, what: told.append(what)
        )
    assert told[0].startswith("downloading model.safetensors")
    assert manifest.lineage.source == f"org/name@{commit}"
    assert not list(repository.layout.data_dir.glob("downloads/*"))
    assert Refs(repository.layout.data_dir).commit(HubSource("org/name", "dev")) == commit


def test_a_hub_snapshot_with_its_links(
    repository: Repository, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As huggingface_hub lays it out: links into blobs/; pickles that another tool fetched are not looked at."""
    with FakeHub() as hub:
        reached(hub, tmp_path / "hub", monkeypatch)  # and out of reach from here on
    stored = tmp_path / "hub" / "models--org--name"
    snapshot, blobs = stored / "snapshots" / ("c" * 40), stored / "blobs"
    for directory in (snapshot, blobs, stored / "refs"):
        directory.mkdir(parents=True)
    (stored / "refs" / "main").write_text("c" * 40)
    for path in llama.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (snapshot / "pytorch_model.bin").write_bytes(b"pickle")
    manifest = import_source(repository, "org/name", "demo")
    assert manifest.lineage.source == f"org/name@{'c' * 40}"
    assert all(not path.is_symlink() for path in repository.path(manifest).iterdir())
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to("/etc/hostname")
    with pytest.raises(InvalidSource, match="symbolic link"):
        import_source(repository, "org/name", "other")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "config.json", "none.safetensors", 7, None]
)
def test_shard_names(repository: Repository, llama: Path, name: object) -> None:
    tensors = [tensor.name for tensor in read_header(llama / "model.safetensors")]
    edit_json(llama / "model.safetensors.index.json", weight_map=dict.fromkeys(tensors, name))
    refused(repository, llama, "shard")


def test_index_must_agree_with_the_shards(repository: Repository, llama: Path) -> None:
    edit_json(llama / "model.safetensors.index.json", weight_map={"lm_head.weight": "model.safetensors"})
    refused(repository, llama, "does not list")


def test_shards_list_no_more_tensors_than_a_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand shards of 20,000 tensors without bytes, all in one small archive, would take 8 GB of memory."""
    monkeypatch.setattr("models.checkpoint.safetensors_file.MAX_OF_SHARDS", 3)
    shards = [
        header_file(tmp_path / f"{n}.safetensors", {f"{n}{k}": entry("U8", [0], 0, 0) for k in "ab"}) for n in "12"
    ]
    assert len(read_headers(shards[:1])) == 1
    with pytest.raises(InvalidSource, match="more than 3 tensors"):
        read_headers(shards)


def test_of_a_tensor_in_two_shards_the_index_decides(repository: Repository, tmp_path: Path) -> None:
    source = save_llama(tmp_path / "sharded", shards="20KB")
    index = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    name, other = "model.norm.weight", next(each for each in set(index.values()) if each != index["model.norm.weight"])
    meant = load_file(source / index[name])[name]
    save_file(load_file(source / other) | {name: meant + 1}, source / other, {"format": "pt"})
    manifest = import_source(repository, str(source), "demo")
    shards = (load_file(path) for path in repository.path(manifest).glob("*.safetensors"))
    found = [tensors[name] for tensors in shards if name in tensors]
    assert len(found) == 1 and torch.equal(found[0], meant)
    assert f"{other} without tensors" in manifest.lineage.recipe


def header_file(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ONE = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
BAD_HEADERS: dict[str, tuple[object, bytes]] = {
    "not json": (b"{", b""),
    "not utf-8": (b"\xff{}", b""),
    "not an object": ([], b""),
    "metadata of a number": ({"__metadata__": {"a": 1}}, b""),
    "metadata of a list": ({"__metadata__": []}, b""),
    "deep": (b'{"a":' * 200_000, b""),
    "duplicate": (b'{"a":' + ONE + b',"a":' + ONE + b"}", b"x"),
    "too many": ({f"t{n}": entry("U8", [0], 0, 0) for n in range(MAX_TENSORS + 1)}, b""),
    "gap": ({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, b"xxx"),
    "overlap": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"xxx"),
    "tail": ({"a": entry("U8", [1], 0, 1)}, b"xx"),
    "short": ({"a": entry("U8", [4], 0, 4)}, b"xx"),
    "size": ({"a": entry("F32", [1], 0, 1)}, b"x"),
    "negative": ({"a": entry("U8", [-1], 0, -1)}, b""),
    "overflow": ({"a": entry("U8", [2**62, 4], 0, 0)}, b""),
    "huge": ({"a": entry("U8", [2**64], 0, 2**64)}, b""),
    "boolean": ({"a": entry("U8", [True], 0, 1)}, b"x"),
    "float": ({"a": entry("U8", [1.0], 0, 1)}, b"x"),
    "dtype": ({"a": entry("F8_E4M3", [1], 0, 1)}, b"x"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"x"),
    "extra key": ({"a": {**entry("U8", [1], 0, 1), "x": 1}}, b"x"),
    "offsets": ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"x"),
    "dimensions": ({"a": entry("U8", [1] * 100, 0, 1)}, b"x"),
    "nan": (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', b"x"),
    "long number": (b'{"a":{"dtype":"U8","shape":[' + b"9" * 10_000 + b'],"data_offsets":[0,1]}}', b"x"),
}  # fmt: skip


def test_header_bombs(tmp_path: Path) -> None:
    for case, (header, data) in BAD_HEADERS.items():
        with pytest.raises(InvalidSource, match=r"x\.safetensors"):
            read_header(header_file(tmp_path / "x.safetensors", header, data))
            print(case, "is read")
    for length in (2**63, 2**64 - 1, MAX_HEADER_BYTES + 1, 100):
        with pytest.raises(InvalidSource):
            read_header(header_file(tmp_path / "x.safetensors", {}, b"", length))
            print(length, "is read")


def test_no_header(tmp_path: Path) -> None:
    too_long = struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}".ljust(MAX_HEADER_BYTES + 1)
    for content in (b"", b"1234567", too_long):
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(InvalidSource):
            read_header(tmp_path / "x.safetensors")


def test_bad_header_is_refused_on_import(repository: Repository, llama: Path) -> None:
    header_file(llama / "model.safetensors", *BAD_HEADERS["gap"])
    refused(repository, llama, "gap")


def test_what_we_write_the_library_reads(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6, dtype=torch.int8).reshape(2, 3), "a": torch.tensor(1.5), "c": torch.zeros(0, 4)}
    plan = [Tensor("b", "I8", (2, 3)), Tensor("a", "F32", ()), Tensor("c", "F32", (0, 4))]
    path = tmp_path / "x.safetensors"
    write_file(path, plan, lambda name: memoryview(tensors[name].numpy().tobytes()), {"format": "pt"})
    assert read_header(path) == [plan[0], plan[1], plan[2]]
    for name, tensor in load_file(path).items():
        assert torch.equal(tensor, tensors[name])


def test_demo_is_published_once(repository: Repository, llama: Path) -> None:
    first = publish_demo(repository, llama)
    assert [manifest.reference for manifest in first] == ["demo:1", "demo:2"]
    assert repository.resolve("demo") == first[1]
    repository.promote("demo", "production", "1", "by hand")
    assert publish_demo(repository, llama) == first
    assert repository.resolve("demo") == first[0]


NAMES = ("Transformer", "Pooling", "Normalize")
MODULES = [{"idx": n, "path": "", "type": f"sentence_transformers.models.{name}"} for n, name in enumerate(NAMES)]


@pytest.mark.parametrize(
    ("modules", "config", "pooling"),
    [
        (MODULES, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, VersionPooling("last", True)),
        (MODULES[:2], {"pooling_mode_mean_tokens": True}, VersionPooling("mean", False)),
        (MODULES[:2], {"pooling_mode": "cls"}, VersionPooling("cls", False)),
    ],
)
def test_the_authors_pooling_is_kept(
    repository: Repository, llama: Path, modules: list[Any], config: dict[str, Any], pooling: VersionPooling
) -> None:
    (llama / "modules.json").write_text(json.dumps(modules))
    (llama / "1_Pooling").mkdir()
    (llama / "1_Pooling" / "config.json").write_text(json.dumps(config))
    int8 = import_source(repository, str(llama), "demo", precision="int8")
    assert of_version(repository.path(int8)) == pooling, "also in what was made of it"


@pytest.mark.parametrize(
    ("modules", "config", "named"),
    [
        ([*MODULES, {"type": "sentence_transformers.models.Dense"}], {"pooling_mode_mean_tokens": True}, "Dense"),
        (MODULES, {"pooling_mode_max_tokens": True}, "1_Pooling"),
        (MODULES, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "several"),
        (MODULES, {"pooling_mode": "weightedmean"}, "1_Pooling"),
        (MODULES, None, "1_Pooling"),
        ("[", {}, "modules.json"),
    ],
)
def test_a_pooling_that_nothing_computes_is_kept_as_a_refusal(
    repository: Repository, llama: Path, modules: Any, config: Any, named: str
) -> None:
    (llama / "modules.json").write_text(modules if isinstance(modules, str) else json.dumps(modules))
    if config is not None:
        (llama / "1_Pooling").mkdir()
        (llama / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert named in of_version(repository.path(import_source(repository, str(llama), "demo"))).refusal


def test_without_these_files_the_last_token_stands_for_all(repository: Repository, llama: Path) -> None:
    assert of_version(repository.path(import_source(repository, str(llama), "demo"))) == VersionPooling("last", True)


def test_a_hub_gives_the_authors_pooling(
    repository: Repository, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (llama / "modules.json").write_text(json.dumps(MODULES))
    (llama / "1_Pooling").mkdir()
    (llama / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    with FakeHub() as hub:
        reached(hub, tmp_path / "cache", monkeypatch)
        hub.push("org/name", llama)
        manifest = import_source(repository, "org/name", "demo")
    assert of_version(repository.path(manifest)) == VersionPooling("mean", True)
