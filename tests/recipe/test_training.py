"""Training the demo model: one run in pieces is the run in one, whatever makes its rows; files stay small."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import typer
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from recipe import checkpoint, state, train
from recipe.corpus import batches
from recipe.encoding import Row
from recipe.feed import Source, chunks
from recipe.network import Llama, Shape, attend
from recipe.presets import PRESETS, Preset
from recipe.replicas import PADDING, Replicas, tensors
from recipe.train import Run
from recipe.transplant import carried_rows
from tests.waiting import alive, block_until

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "models" / "demo" / "weights" / "tokenizer.json"
TINY = Preset(Shape(4096, 32, 1, 1, 48), 24, 6, 512, 2, 1, 3e-3, 0.4)


def trained_on(text: str) -> Tokenizer:
    """A byte-level tokenizer with merges for the words of `text`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text] * 9, trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet))
    return tokenizer


def run_in(folder: Path) -> Run:
    folder.mkdir()
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    return Run(TINY, folder, 7, "cpu")


def weights(run: Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def test_a_run_in_pieces_is_the_run_in_one(tmp_path: Path) -> None:
    whole = run_in(tmp_path / "whole")
    assert whole.train(0, None)
    pieces = run_in(tmp_path / "pieces")
    complete, rounds = pieces.train(0, 0.0), 0
    while not complete:
        again = Run(TINY, tmp_path / "pieces", 7, "cpu")
        again.resume()
        assert again.place == pieces.place
        complete, pieces, rounds = again.train(0, 0.0), again, rounds + 1
    assert rounds > 2
    mine = weights(whole)
    assert all(torch.equal(mine[name], value) for name, value in weights(pieces).items())


def test_worker_processes_make_the_same_chunks_in_order() -> None:
    source = Source(TOKENIZER, 7, 4, 3, 512)
    assert list(chunks(source, 1, 2)) == list(chunks(source, 1, 0))


def test_the_workers_of_a_run_that_is_killed_end() -> None:
    program = f"""
from pathlib import Path
from recipe.feed import Source, chunks
if __name__ == "__main__":
    for number, _ in chunks(Source(Path({str(TOKENIZER)!r}), 7, 4, 1000, 512), 0, 1):
        print(number, flush=True)
        input()
"""
    run = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert run.stdout is not None and run.stdout.readline() == "0\n"
    workers = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.communicate()
    block_until(lambda: not alive(workers))


def test_without_a_state_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="start without --resume"):
        run_in(tmp_path / "none").resume()


def test_a_kill_while_the_state_is_replaced_leaves_the_old_one(tmp_path: Path) -> None:
    run = run_in(tmp_path / "run")
    run.place.chunk = 2
    run.save()
    (tmp_path / "run" / state.STATE).rename(tmp_path / "run" / f"{state.STATE}.old")
    (tmp_path / "run" / f"{state.STATE}.new").mkdir()
    again = Run(TINY, tmp_path / "run", 7, "cpu")
    again.resume()
    assert again.place.chunk == 2


def test_large_weights_are_shards_that_transformers_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Llama(TINY.shape)
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 200_000)
    checkpoint.save_checkpoint(model, tmp_path)
    parts = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(parts) > 1 and not (tmp_path / "model.safetensors").exists()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    mine = {name: value for part in parts for name, value in load_file(part).items()}
    assert all(torch.equal(theirs[name], value) for name, value in mine.items())
    other = Llama(TINY.shape)
    checkpoint.load_checkpoint(other, tmp_path)
    assert all(torch.equal(value.bfloat16(), mine[name]) for name, value in other.state_dict().items())


def test_batches_stay_within_their_tokens() -> None:
    made = batches(100, 24, 0.5, Tokenizer.from_file(str(TOKENIZER)), 2048)
    assert sum(len(rows) for rows in made) == 24
    assert all(len(rows) == 1 or len(rows) * max(len(row.token_ids) for row in rows) <= 2048 for rows in made)


def test_attention_in_products_is_the_fused_operation() -> None:
    """Also its gradients, which are all that training sees of it."""
    torch.manual_seed(1)
    exact = [torch.randn(3, 2, 17, 8, requires_grad=True) for _ in range(3)]
    rounded = [value.detach().bfloat16().requires_grad_() for value in exact]
    upstream = torch.randn(3, 2, 17, 8)
    fused, products = attend(*exact), attend(*rounded)
    torch.testing.assert_close(products.float(), fused, atol=0.03, rtol=0.03)
    for mine, theirs in zip(
        torch.autograd.grad(products, rounded, upstream.bfloat16()),
        torch.autograd.grad(fused, exact, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine.float(), theirs, atol=0.05, rtol=0.05)


def test_padding_changes_no_loss() -> None:
    torch.manual_seed(1)
    model = Llama(Shape(64, 32, 1, 1, 48))
    row = Row(list(range(1, 42)), [0.0, *[1.0] * 40])
    token_ids, targets, weights = tensors([row], "cpu")
    assert token_ids.shape == targets.shape == weights.shape == (1, 2 * PADDING)
    whole, bare = model(token_ids, targets, weights), model(token_ids[:, :40], targets[:, :40], weights[:, :40])
    torch.testing.assert_close(whole, bare)


def test_a_new_tokenizer_keeps_the_rows_of_its_tokens() -> None:
    earlier, later = trained_on("ab ab cd"), trained_on("ab cd cd abcd")
    rows, spare = torch.randn(earlier.get_vocab_size(), 4), torch.randn(later.get_vocab_size() + 3, 4)
    made, known = carried_rows(rows, earlier, spare, later), earlier.get_vocab()
    assert torch.equal(made[-3:], spare[-3:])
    new = set(later.get_vocab()) - set(known)
    assert new
    for token, token_id in later.get_vocab().items():
        pieces = earlier.encode(token.replace("Ġ", " ")).ids if token in new else [known[token]]
        torch.testing.assert_close(made[token_id], rows[pieces].mean(0))


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_keeps_the_tokenizer_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setitem(PRESETS, "cpu", TINY)
    monkeypatch.setattr(train, "TOKENIZER_ROWS", 20)
    run_in(tmp_path / "first").save()
    options = ["--init", str(tmp_path / "first"), *["--keep-tokenizer"] * keep, "--minutes", "0", "--workers", "0"]
    app = typer.Typer()
    app.command()(train.main)
    done = CliRunner().invoke(app, ["--out", str(tmp_path / "second"), *options])
    assert done.exit_code == 0, done.output
    assert (Tokenizer.from_file(str(tmp_path / "second" / "tokenizer.json")).to_str() == known()) is keep
    refused = CliRunner().invoke(app, ["--out", str(tmp_path / "third"), "--keep-tokenizer"])
    assert "--init DIR" in str(refused.exception)


def known() -> str:
    return Tokenizer.from_file(str(TOKENIZER)).to_str()


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
def test_compiled_layers_have_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16, where products and sums of one order differ from those of another by rounding."""
    monkeypatch.setenv("SETUPTOOLS_USE_DISTUTILS", "stdlib")  # what another test has imported; setuptools refuses two
    torch.manual_seed(1)
    model, rows = Llama(Shape(64, 32, 2, 2, 48)), [Row(list(range(1, 42)), [0.0, *[1.0] * 40])] * 2
    with ThreadPoolExecutor(2) as threads:
        grads = []
        for compiled in (False, True):
            loss, _ = Replicas(model, 2, threads, "cpu", compiled).gradient([rows, rows[:1]])
            grads.append((loss, [parameter.grad for parameter in model.parameters()]))
    (plain, theirs), (loss, mine) = grads
    assert loss == pytest.approx(plain, rel=0.01)
    torch.testing.assert_close(mine, theirs, atol=0.02, rtol=0.05)
