"""Why was this token drawn? The reference tells, step by step, for one row of each branch.

python examples/trace_row.py
"""

from ascend_sample.reference import RowTrace, top_k_top_p_sample_trace

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN

PROBABILITIES = (0.05, 0.50, 0.10, 0.20, 0.15)  # of the ids 0 to 4
SETTINGS = ((3, 0.9), (None, 0.9), (None, None))  # top-k and top-p; top-p alone; neither
BRANCHES = {"A": "top-k, then top-p among its candidates", "B": "top-p alone", "C": "no filter"}

logits = torch.tensor([PROBABILITIES]).log()
q = torch.tensor([[1.0, 0.6, 0.5, 2.0, 1.0]])  # noise: by rank where top-k or top-p is on, else by id


def explain(row: RowTrace) -> None:
    """Prints what happened to the row."""
    print(f"branch {row.branch}: {BRANCHES[row.branch]}; {row.n_kept} of {len(PROBABILITIES)} ids are kept")
    if row.branch == "B":
        print(f"  {'the guess sufficed' if row.guess_hit else 'the whole row was sorted'};", end=" ")
        print("weights are softmaxed a second time: flatter than the probabilities")
    for rank, token in enumerate(row.kept.tolist()):
        noise = float(q[0, token if row.branch == "C" else rank])
        print(
            f"  id {token}: probability {PROBABILITIES[token]:.2f}, weight {row.weights[rank]:.3f}, noise {noise:.1f}, "
            f"score {row.scores[rank]:.3f}{'  <- drawn' if token == row.selected else ''}"
        )


for top_k, top_p in SETTINGS:
    print(f"\nk={top_k}, p={top_p}")
    (row,) = top_k_top_p_sample_trace(logits, top_k, top_p, q)
    explain(row)
