"""diffprivlib's logistic regression; run by convex.py with a Python that has diffprivlib."""

import json
import sys
import warnings

import numpy as np
from diffprivlib.models import LogisticRegression

warnings.filterwarnings("ignore")
PENALTIES = (0.01, 1.0)


def accuracy(rows, epsilon, inverse_penalty, seed):
    x, y, x_test, y_test = rows
    model = LogisticRegression(
        epsilon=epsilon, data_norm=1.0, C=inverse_penalty, max_iter=300, random_state=seed
    )
    return float(model.fit(x, y).score(x_test, y_test))


def main():
    stored = np.load(sys.argv[1])
    rows = [stored[name].astype(float) for name in stored.files]
    epsilons, seeds = json.loads(sys.argv[2])
    answer = {}
    for epsilon in epsilons:
        tried = [[accuracy(rows, epsilon, c, s) for s in range(seeds)] for c in PENALTIES]
        answer[str(epsilon)] = max(tried, key=np.mean)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
