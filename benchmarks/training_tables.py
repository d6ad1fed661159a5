"""The tables of the training benchmark."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]
Results = dict[str, Result]

# The rows of the table side by side, with the sizes that they have on a GPU.
ROWS = {
    "grouped-decoder": "grouped-query decoder, 1024 tokens, batch 8",
    "gpt2": "GPT-2 small (tied head), 512 tokens, batch 16",
    "bert": "BERT base, 128 tokens, batch 64",
    "vit-b16": "ViT-B/16, batch 64",
    "resnet50-gn": "ResNet-50, GroupNorm, batch 64",
    "wrn16-4-bf16": "WRN-16-4, batch 1024",
    "wrn16-4-4096-bf16": "WRN-16-4, batch 4096 (compiled only)",
    "convnext": "ConvNeXt tiny, batch 64",
    "lstm": "LSTM 128 -> 256, 128 tokens, batch 256",
    "recommender": "recommender, 1.2 M rows, batch 8192",
    "mnist-cnn": "MNIST CNN, batch 2048, tf32",
}
COLUMNS = {
    "ordinary": "plain",
    "ordinary compiled": "plain compiled",
    "private": "tightrope",
    "compiled": "tightrope compiled",
    "compiled, one CUDA graph": "tightrope graph",
}


def table(results: Results) -> str:
    """A line for each variant."""
    lines = _heads(
        "model", "variant", "step, ms", "ratio to plain", "to compiled", "allocated MB (ratio)",
        "reserved MB (ratio)", "released / clip norm",
    )  # fmt: skip
    for model, result in results.items():
        rows = dict(result["times"])
        plain = rows.get("plain", {}).get("ms")
        compiled = rows.get("plain compiled", {}).get("ms")
        clip = result.get("clip", {})
        shown = ", ".join(f"{k} {v:.6f}" for k, v in clip.items())
        for name, row in rows.items():
            released = shown if name == "tightrope" else ""
            time = f"{row['ms']:.2f} | {row['ms'] / plain:.2f} | "
            time += "" if compiled is None else f"{row['ms'] / compiled:.2f}"
            mb = memory_cells(name, result.get("memory_mb"))
            lines.append(f"| {model} | {name} | {time} | {mb} | {released} |")
        lines += failure_lines(model, result["failures"])
        lines += peer_lines(model, result.get("peer"))
    return "\n".join(lines)


def memory_cells(name: str, memory: Result | None) -> str:
    """What tensors took and what the allocator reserved, each over the ordinary step's."""
    if not memory or name not in memory or "plain" not in memory:
        return "|"
    used, plain = memory[name], memory["plain"]
    cells = [f"{used[kind]:.0f} ({used[kind] / plain[kind]:.2f})" for kind in used]
    return " | ".join(["" if name in ("tightrope graph", "plain captured") else cells[0], cells[1]])


def peer_lines(model: str, peer: Result | None) -> list[str]:
    if not peer:
        return []
    times, lines = peer.get("times", {}), []
    for name, row in times.items():
        if name != "plain":
            ratio = row["ms"] / times["plain"]["ms"]
            lines.append(f"| {model} | {name} | {row['ms']:.2f} | {ratio:.2f} | | | | |")
    return lines + failure_lines(model, peer["failures"])


def failure_lines(model: str, failures: dict[str, str]) -> list[str]:
    return [f"| {model} | {name} | failed: {why} | | | | | |" for name, why in failures.items()]


# ---- a line for each model ---------------------------------------------------------------------
def wide_tables(results: Results, device: str) -> str:
    """Times of all variants, the best private one over the compiled ordinary one; memory; gaps."""
    labels = {name: ROWS.get(name, name) if device == "cuda" else name for name in results}
    lines = _heads("model", *COLUMNS, "best to ordinary compiled")
    lines += [_row(labels[name], *_time_cells(result)) for name, result in results.items()]
    if any(result.get("memory_mb") for result in results.values()):
        lines += ["", "MB reserved (ratio to the ordinary step; to the compiled one):", ""]
        private = "private eager, allocated (ratio)"
        lines += _heads(
            "model", "ordinary", "ordinary compiled", private, "compiled", "one CUDA graph"
        )
        lines += [_row(labels[name], *_memory_row(result)) for name, result in results.items()]
    released = [norm for result in results.values() for norm in result.get("clip", {}).values()]
    if released:
        lines += ["", f"Largest norm released for one example / clip norm: {max(released):.6f}"]
    gaps = [
        f"{name}, {variant}: {why}"
        for name, result in results.items()
        for variant, why in result["failures"].items()
    ]
    return "\n".join(lines + (["", "Missing:", *gaps] if gaps else []))


def _time_cells(result: Result) -> list[str]:
    times = {name: row["ms"] for name, row in result["times"].items()}
    cells = [_digits(times.get(variant)) for variant in COLUMNS.values()]
    private = [ms for name, ms in times.items() if name.startswith("tightrope")]
    against = times.get("plain compiled")
    return [*cells, f"{min(private) / against:.2f}" if private and against else ""]


def _memory_row(result: Result) -> list[str]:
    memory = result.get("memory_mb") or {}
    reserved = {name: used["reserved"] for name, used in memory.items()}
    plain, compiled = (reserved.get(name) for name in ("plain", "plain compiled"))

    def cell(name: str) -> str:
        if name not in reserved:
            return ""
        ratios = [f"{reserved[name] / other:.2f}" for other in (plain, compiled) if other]
        return f"{reserved[name]:.0f} ({'; '.join(ratios)})" if ratios else f"{reserved[name]:.0f}"

    private = ""
    if "tightrope" in memory and "plain" in memory:
        taken = memory["tightrope"]["allocated"]
        private = f"{taken:.0f} ({taken / memory['plain']['allocated']:.2f})"
    ordinary = [f"{mb:.0f}" if mb else "" for mb in (plain, compiled)]
    return [*ordinary, private, cell("tightrope compiled"), cell("tightrope graph")]


def _digits(ms: float | None) -> str:
    if ms is None:
        return ""
    return f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def _heads(*names: str) -> list[str]:
    return [_row(*names), _row(*["---"] * len(names))]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
