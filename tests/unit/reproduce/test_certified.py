"""CIFAR-10 and the pretrained encoder: features, private runs, and what is published of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tightrope.accounting import account
from tightrope.process.codec import from_json
from tightrope_reproduce.item import Setting
from tightrope_reproduce.learning.catalog import recipes_of
from tightrope_reproduce.learning.colour import PUBLIC, colour_features, kinds, with_mirror
from tightrope_reproduce.learning.learn import learn
from tightrope_reproduce.learning.quick import QUICK
from tightrope_reproduce.learning.records import CERTIFIED, cifar
from tightrope_reproduce.learning.result import Store
from tightrope_reproduce.learning.scattering import Scattering
from tightrope_reproduce.learning.tasks import Examples
from tightrope_reproduce.today.certified import STORED
from tightrope_reproduce.today.cifar import run as run_cifar
from tightrope_reproduce.today.finetuned import run as run_finetuned

COMMITTED = Path(__file__).parents[3] / "docs" / "reproduction" / "learning"
RECIPES = [r for r in recipes_of(list(CERTIFIED)) if r.name in STORED]  # those that have run


def direct(image: torch.Tensor, scale: int, angle: float) -> torch.Tensor:
    """|image * psi| on the torus, wavelet and sum written out."""
    size, width = len(image), 0.8 * 2**scale
    offsets = [k if k < size / 2 else k - size for k in range(size)]
    down, right = torch.meshgrid(*[torch.tensor(offsets, dtype=torch.float64)] * 2, indexing="ij")
    along = math.cos(angle) * right + math.sin(angle) * down
    across = math.cos(angle) * down - math.sin(angle) * right
    bump = torch.exp(-(along**2 + across**2 / 4) / (2 * width**2))
    wave = bump * torch.exp(1j * (3 * math.pi / 4 / 2**scale) * along)
    wave = (wave - bump * wave.sum() / bump.sum()) / (4 * math.pi * width**2)
    total = torch.zeros(size, size, dtype=torch.complex128)
    for i in range(size):
        for j in range(size):
            total += wave[i, j] * image.roll((i, j), (0, 1))
    return total.abs()


def test_scattering_is_the_convolution_it_says() -> None:
    image = torch.rand(16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    transform = Scattering(16)
    features = transform(image[None, None].float())[0]
    padded = torch.nn.functional.pad(image[None, None], (4,) * 4, mode="reflect")[0, 0]
    low = transform.low.double()
    first = direct(padded, 0, math.pi * 3 / 8)
    second = direct(first, 1, math.pi * 6 / 8)
    coarse = direct(padded, 1, math.pi * 5 / 8)
    for channel, maps in ((1 + 3, first), (9 + 3 * 8 + 6, second), (73 + 5, coarse)):
        assert torch.allclose(features[channel].double(), low @ maps @ low.T, atol=1e-6)


@pytest.mark.slow
def test_features_are_standardised_by_two_public_photographs() -> None:
    pytest.importorskip("PIL")
    from sklearn.datasets import load_sample_images

    patches = []
    for photograph in load_sample_images().images:
        picture = torch.from_numpy(photograph.copy()).permute(2, 0, 1)[None].float() / 255
        small = torch.nn.functional.avg_pool2d(picture, 4)  # (1, 3, 106, 160)
        cut = small.unfold(2, 32, 16).unfold(3, 32, 16)[0]
        patches.append(cut.flatten(0, 2)[:, None])  # one colour of a patch each
    features = Scattering(32)(torch.cat(patches))
    for kind, (mean, spread) in enumerate(PUBLIC):
        channels = [features[:, c] for c in (kinds() == kind).nonzero()]
        means = torch.tensor([float(c.mean()) for c in channels]).mean()
        spreads = torch.tensor([float(c.std()) for c in channels]).mean()
        assert float(means) == pytest.approx(mean, rel=0.06)
        assert float(spreads) == pytest.approx(spread, rel=0.06)


def test_the_second_view_is_the_mirror_image() -> None:
    chance = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=chance, dtype=torch.uint8)
    views = with_mirror(colour_features(images), 2)
    assert views.shape == (2, 2, 243, 8, 8) and views.dtype == torch.half
    of_mirrored = colour_features(images.flip(-1))
    assert torch.allclose(views[:, 1].float(), of_mirrored.float(), atol=0.05, rtol=2e-3)
    assert not torch.allclose(views[:, 0].float(), of_mirrored.float(), atol=0.05, rtol=2e-3)
    alone = torch.cat([colour_features(image[None]) for image in images])
    assert torch.allclose(alone.float(), views[:, 0].float(), atol=1e-2)


def made_up(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(count)
    labels = torch.randint(0, 10, (count,), generator=chance)
    return torch.randn(count, 243, 8, 8, generator=chance).half(), labels


def test_certified_runs_are_private_and_others_say_they_are_not(tmp_path: Path) -> None:
    small = cifar()[0].but("small", batch_size=8, public_size=40, steps=2)
    results = [learn(small, 0, examples=Examples(made_up(40), made_up(10))) for _ in range(2)]
    certificate = results[0].certificate
    assert certificate is not None and certificate["run"]["private"]
    assert certificate["run"]["settings"]["views"] == 2
    assert certificate["run"]["measured"][0]["value"] == results[0].final
    assert results[0].process == small.process
    store = Store(tmp_path)
    store.add(results[0])
    assert json.loads(store.certificate_of(small, 0).read_text()) == certificate
    assert learn(QUICK.but("short", steps=2), 0).certificate is None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_published_runs_have_certificates_of_what_they_say(recipe) -> None:
    store, allowed = Store(COMMITTED), float(recipe.name.rsplit("-", 1)[1])
    found = store.results(recipe)
    assert found is not None
    assert (round(found.mean, 2), round(found.deviation, 2), len(found.results)) == pytest.approx(
        STORED[recipe.name]
    )
    assert 0.99 * allowed < account(recipe.process).epsilon(recipe.delta).upper <= allowed
    for result in found.results:
        certificate = json.loads(store.certificate_of(recipe, result.seed).read_text())
        run = certificate["run"]
        assert run["private"] and run["steps"] == recipe.steps
        assert from_json(certificate["process"]) == recipe.process == result.process
        assert run["measured"][0]["value"] == pytest.approx(result.final, abs=1e-5)


def test_what_is_not_made_again_is_said_to_be_stored(tmp_path: Path) -> None:
    here = run_cifar(Setting(learned=COMMITTED)).lines[0]
    elsewhere = run_cifar(Setting(learned=tmp_path)).lines[0]
    assert here.ours == elsewhere.ours == "65.26 +- 0.30 (3 runs)"
    assert "stored" not in here.because
    assert "stored (2026-11-16" in elsewhere.because and "--device cuda" in elsewhere.because


def test_without_data_the_stored_result_is_shown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TIGHTROPE_DATA", str(tmp_path))
    line = run_finetuned(Setting(learned=tmp_path, device="cuda")).lines[0]
    assert line.ours == "78.33 +- 0.23 (3 runs)"
    assert "set TIGHTROPE_DATA and TIGHTROPE_ENCODER" in line.because


@pytest.mark.slow
@pytest.mark.parametrize("task", ["imdb-lora", "imdb-all"])
def test_an_encoder_is_fine_tuned(task, tmp_path, monkeypatch) -> None:
    tf = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    config = tf.BertConfig(vocab_size=10, num_hidden_layers=1, **sizes)
    tf.BertModel(config).save_pretrained(tmp_path / "encoder")
    monkeypatch.setenv("TIGHTROPE_ENCODER", str(tmp_path / "encoder"))
    words = torch.randint(5, 10, (40, 12), dtype=torch.int32)
    words[::2, 8:] = 0  # padding
    rows = words, torch.arange(40) % 2
    recipe = next(r for r in RECIPES if r.task == task)
    small = recipe.but("small", batch_size=8, public_size=40, steps=2)
    result = learn(small, 0, examples=Examples(rows, rows))
    certificate = result.certificate
    assert certificate is not None and certificate["run"]["private"]
    trained = certificate["run"]["settings"]["parameters"]
    # queries and values of one layer, rank 8, and a head of 16 x 2 + 2
    everything = sum(w.numel() for w in tf.BertModel(config, add_pooling_layer=False).parameters())
    assert trained == (2 * 2 * 8 * 16 if task == "imdb-lora" else everything) + 34
