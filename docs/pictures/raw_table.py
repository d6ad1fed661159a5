"""The picture of docs/raw_tables.md: what a budget buys of one column. `python FILE`"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from tightrope.tables import Number, PrivatePipeline, TableSchema

rng = np.random.default_rng(0)
income = rng.lognormal(10, 0.8, 20_000)
table = {"income": income, "late": rng.random(20_000) < 1 / (1 + np.exp((income - 3e4) / 1e4))}
figure, axis = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
order = np.sort(income)
axis.plot(order, np.linspace(0, 1, len(order)), color="0.6", lw=5, label="the table (private)")
for epsilon, colour in ((0.1, "#d95f02"), (1.0, "#1b7a78")):
    schema = TableSchema({"income": Number(), "late": "flag"}, target="late")
    model = PrivatePipeline(schema, epsilon=epsilon, delta=1e-6, random_state=1).fit(table)
    code = model.design_.codes["income"]
    shares = 0.5 * (1.0 + np.array(code.ranks))
    axis.plot(code.edges, shares, color=colour, lw=1.6, label=f"released at epsilon {epsilon:g}")
axis.set(xlim=(0, 1.2e5), xlabel="income", ylabel="share of rows below")
axis.set_xticks([0, 4e4, 8e4, 1.2e5], ["0", "40,000", "80,000", "120,000"])
axis.legend(frameon=False)
axis.spines[["top", "right"]].set_visible(False)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=160)
