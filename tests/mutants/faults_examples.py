"""What one example is: views, users, and a clip norm that follows the gradients."""

VIEWS, USERS = "tests/unit/train/test_views.py", "tests/unit/train/test_users.py"
ADAPTIVE = "tests/unit/train/test_adaptive_clip.py"
OWNERS, CLIP, PEOPLE = "train/gradients/owners.py", "train/adaptive_clip.py", "train/users.py"

FAULTS = [
    # views
    ("train/losses.py", "return losses.mean(1)", "return losses.sum(1)", VIEWS),
    ("train/losses.py", "if losses.shape == (size, views):", "if losses.ndim == 2:", VIEWS),
    (OWNERS, "values.repeat_interleave(self.each)", "values.repeat(self.each)", VIEWS),
    (OWNERS, "(self.examples, self.each)).sum(1)", "(self.examples, self.each))[:, 0]", VIEWS),
    (OWNERS, "- first[owners[order]]", "", VIEWS),
    (OWNERS, "return owners * self.each + number", "return number * self.examples + owners", VIEWS),
    (OWNERS, "int(rows.max()) < examples:", "int(rows.max()) <= examples:", VIEWS),
    (
        "train/augment.py",
        "if not torch.equal(told[~replaced], changed[~replaced]):",
        "if False:",
        VIEWS,
    ),
    ("train/augment.py", "for replaced in (half, ~half):", "for replaced in ():", VIEWS),
    ("train/augment.py", "t.repeat_interleave(views, 0) for t", "t.repeat(views) for t", VIEWS),
    ("train/augment.py", ".repeat_interleave(views)[:, None", ".repeat(views)[:, None", VIEWS),
    ("train/protected.py", "    if views > 1:\n", "    if views > 9:\n", USERS),
    # users
    (PEOPLE, "weights[: len(held)] = 1.0 / len(held)", "weights[: len(held)] = 1.0", USERS),
    (PEOPLE, "weights[: len(held)] = 1.0 / len(held)", "weights[:] = 1.0 / len(held)", USERS),
    (PEOPLE, "if self.most > users.most:", "if self.most > 9 * users.most:", USERS),
    (PEOPLE, "if not users.together:", "if True:", USERS),
    (PEOPLE, "self._check_ranks()\n            self._made", "self._made", USERS),
    (PEOPLE, "- begins < most", "- begins <= most", USERS),
    (PEOPLE, "len(names) != length or", "", USERS),
    (PEOPLE, "if isinstance(data, UserData) != (users is not None):", "if False:", USERS),
    (
        PEOPLE,
        "np.cumsum(self._counts) - self._counts",
        "np.cumsum(self._counts) - self._counts[0]",
        USERS,
    ),
    (
        "train/protected.py",
        "UserLevel(run, self.most, self.together)",
        "UserLevel(run, self.most, True)",
        USERS,
    ),
    ("train/protected.py", "return users.most\n", "return 1\n", USERS),
    (
        "accounting.py",
        "users = one.outcome.group(process.records)",
        "users = one.outcome.group(1)",
        USERS,
    ),
    ("accounting.py", "replace(one.outcome, records=process.records)", "one.outcome", USERS),
    (
        "process/users.py",
        "return self if size == 1 else UserLevel(self, size)",
        "return self",
        USERS,
    ),
    ("train/ledger.py", "or same != self.history:", "and same != self.history:", USERS),
    # a norm that follows the gradients
    (CLIP, "self.clip_norm / math.sqrt(1.0 - self.share)", "self.clip_norm", ADAPTIVE),
    (CLIP, "self.sensitivity * math.sqrt(self.share)", "2.0 * self.sensitivity", ADAPTIVE),
    (CLIP, "2 * within - batch.examples", "2 * within", ADAPTIVE),
    (CLIP, "batch.factors >= 1", "batch.factors > 0", ADAPTIVE),
    (CLIP, "released / (2 * self._weight)", "released / self._weight", ADAPTIVE),
    (CLIP, "math.exp(-self.rate * off)", "math.exp(self.rate * off)", ADAPTIVE),
    (CLIP, 'FlatClip(state["clip_norm"]).clip_norm', "1.0", ADAPTIVE),
    (
        "train/optimizer.py",
        "part = self.clip.counted(batch) if adaptive else batch.sums",
        "part = batch.sums",
        ADAPTIVE,
    ),
    (
        "train/optimizer.py",
        "float(self.clip.sensitivity), ticket.whole",
        'float(getattr(self.clip, "clip_norm", 1.0)), ticket.whole',
        ADAPTIVE,
    ),
]
