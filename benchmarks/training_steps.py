"""The private steps of the training benchmark, each ready to be called again and again."""

from __future__ import annotations

import warnings

import torch
from training_models import Case, optimizer_of
from training_timing import Step, fresh, precision

from tightrope.errors import InvalidInput
from tightrope.train import FlatClip, FullBatchSampler, GaussianNoise, Gradients, PrivateOptimizer
from tightrope.train.feed import Ticket

CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0


def private_step(
    case: Case,
    device: str,
    *,
    method: str = "auto",
    compiled: bool = False,
    captured: bool = False,
) -> Step:
    """The whole step of a private run, as a user takes it: checks and accounting included."""
    model, x, y = fresh(case, device)
    eager_half = case.half and device == "cuda" and not (captured or compiled)
    run = PrivateOptimizer(
        model,
        optimizer_of(case, model),
        sampler=FullBatchSampler(),
        clip=FlatClip(CLIP_NORM),
        noise=GaussianNoise(NOISE_MULTIPLIER),
        expected_batch_size=len(x),
        gradients=Gradients(model, method),
        arithmetic="uncovered" if eager_half else "bounded",  # the same sums either way
    )
    ticket = Ticket(len(x), True, len(x), run.sampler.state())

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with precision(case, device):
            return case.losses(model, x, y)

    record = run.compile if compiled else run.capture
    graph = record(losses, size=len(x)) if captured or compiled else None
    wanted = "compiled CUDA graph" if compiled else "CUDA graph"

    def step() -> None:
        run.expect(ticket)
        if graph is None:
            run.step(losses(x, y))
        else:
            graph(x, y)
            assert device == "cpu" or graph.mode == wanted, graph.mode

    if graph is not None and device == "cuda":
        with warnings.catch_warnings(record=True) as told:  # why not, where it is not recorded so
            warnings.simplefilter("always")
            run.expect(ticket)
            try:
                graph(x, y)
            except InvalidInput as error:  # of the eager step that took its place
                raise RuntimeError(_words(told)) from error
        assert graph.mode == wanted, f"{graph.mode}; {_words(told)}"
    return step


def _words(told: list[warnings.WarningMessage]) -> str:
    return "; ".join(str(warning.message) for warning in told)


def vmap_step(case: Case, device: str) -> Step:
    """torch.func's per-example gradients, clipped: what one writes without a library."""
    model, x, y = fresh(case, device)
    optimizer, names = optimizer_of(case, model), [n for n, _ in model.named_parameters()]
    chunk = 128 if device == "cuda" else None

    def loss(
        values: tuple[torch.Tensor, ...], one: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        def call(ids: torch.Tensor) -> torch.Tensor:
            named = dict(zip(names, values, strict=True))
            return torch.func.functional_call(model, named, (ids,))

        return case.losses(call, one[None], label[None])[0]  # type: ignore[arg-type]

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)

    def step() -> None:
        values = tuple(p.detach() for p in model.parameters())
        with precision(case, device):
            grads = gradients(values, x, y)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
        factors = (CLIP_NORM / norms).clamp(max=1)
        for parameter, g in zip(model.parameters(), grads, strict=True):
            total = torch.mv(g.flatten(1).t(), factors).view(parameter.shape)
            parameter.grad = (total + torch.randn_like(total)) / len(x)
        optimizer.step()

    return step
