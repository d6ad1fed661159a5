"""Faults of recorded steps, which the tests notice on a CPU that plays CUDA graphs."""

GRAPHS = "tests/unit/train/test_graphs.py"
UNSEEN = "tests/attacks/test_unseen_models.py -k changes_before"


def of(name):
    return f"{GRAPHS} -k {name}"


FAULTS = [
    ("train/captured.py", " or here != self._surroundings", "", of("follows_new")),
    (
        "train/captured.py",
        "with capture_unseen():",
        "with torch.enable_grad():",
        of("asks_whether"),
    ),
    (
        "train/captured.py",
        "with said_to_compile():",
        "with torch.enable_grad():",
        of("unless_it_is"),
    ),
    ("train/captured.py", "self._check_told(program, why)", "pass", of("something_else")),
    (
        "train/captured.py",
        "torch.clear_autocast_cache()  # weights are",
        "# weights are",
        of("cast_outside"),
    ),
    (
        "train/cuda_graph.py",
        "    finally:\n        torch.clear_autocast_cache()",
        "    finally:\n        pass",
        of("cast_outside"),
    ),
    (
        "train/cuda_graph.py",
        "_end_capture(device, pool)\n        raise",
        "raise",
        of("before_alone"),
    ),
    ("train/padded.py", "return before == state()", "return True", of("counts_in_python")),
    ("train/padded.py", "mine[:rows].copy_(new)", "mine[:rows].copy_(new[:1])", of("trains_as")),
    (
        "train/padded.py",
        "out=self.present)",
        "out=torch.empty_like(self.present))",
        of("trains_as"),
    ),
    (
        "train/padded.py",
        "tuple(sums) if alone and len(together) > 1 else",
        "tuple(sums) if True else",
        of("views_parts"),
    ),
    ("train/padded.py", "            self._graph.replay()", "            pass", of("trains_as")),
    (
        "train/padded.py",
        "        return None\n    usual",
        "        return True\n    usual",
        of("order"),
    ),
    ("train/captured.py", "return None if in_place else _MOVED", "return None", of("order")),
    ("train/padded.py", "mine.copy_(before)", "pass", of("count_does")),
    # modules that are run again
    ("train/gradients/again.py", "if not all(map(_same, self._some, now)):", "if False:", UNSEEN),
    ("train/gradients/custom.py", "        kept.check(call)", "        pass", UNSEEN),
    (
        "train/gradients/state.py",
        "(m.training, plain_settings(m), _held(m))",
        "(m.training, _held(m))",
        UNSEEN,
    ),
    (
        "train/answers.py",
        "torch.equal(a, b)",
        "torch.equal(a.nan_to_num(), b.nan_to_num())",
        "tests/unit/train/test_watch.py",
    ),
    (
        "train/look.py",
        "half or (alike(told, wide[0]) and alike(longer, wide[1]))",
        "True",
        "tests/attacks/test_resized.py",
    ),
]
