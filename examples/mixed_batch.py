"""Four requests with different settings in one batch: k and p are given row by row, and one call serves all.

python examples/mixed_batch.py
"""

from ascend_sample import top_k_top_p_sample

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN

VOCAB_SIZE = 151936
DRAWS = 100

# What each request asks for. A k outside 1..1024 and a p outside (0, 1) skip the filter for their row.
settings = [("greedy", 1, 1.0), ("top-k 40", 40, 1.0), ("top-k 40, top-p 0.9", 40, 0.9), ("no filter", 0, 1.0)]
k = torch.tensor([k for _, k, _ in settings])
p = torch.tensor([p for _, _, p in settings])

# One row of logits that falls with the logarithm of the rank, as a language model's do; the same for every request.
generator = torch.Generator().manual_seed(0)
logits = (12.0 - 2.0 * torch.arange(1, VOCAB_SIZE + 1).log()).to(torch.bfloat16).expand(len(settings), -1)

drawn = []
for _ in range(DRAWS):
    q = torch.empty(logits.shape).exponential_(generator=generator)
    drawn.append(top_k_top_p_sample(logits, k, p, q).logits_select_idx)
ids = torch.stack(drawn)  # [DRAWS, batch]
kept = top_k_top_p_sample(logits, k, p, is_need_logits=True).logits_top_kp_select

for row, (name, _, _) in enumerate(settings):
    count = int((kept[row] > -torch.inf).sum())
    print(
        f"{name:<20} keeps {count:>6} tokens; of {DRAWS} draws {ids[:, row].unique().numel():>3} are different, "
        f"the highest id is {int(ids[:, row].max())}"
    )
