"""One call on the CPU: top-k, then top-p, then a draw.

python examples/quickstart.py
"""

from ascend_sample import top_k_top_p_sample

import torch  # isort: skip  ascend_sample imports it first, in a way that needs no CANN

torch.manual_seed(0)
logits = torch.randn(4, 32000)  # [batch, vocab_size], as a language model returns them
q = torch.empty_like(logits).exponential_()  # argmax(weight / q) is a draw from the weights

result = top_k_top_p_sample(logits, k=50, p=0.9, q=q, is_need_logits=True)
best = top_k_top_p_sample(logits).logits_select_idx  # without k, p and q: the best token of each row

kept = (result.logits_top_kp_select > -torch.inf).sum(dim=1)
print("drawn ids:      ", result.logits_select_idx.tolist())
print("kept of 32000:  ", kept.tolist())
print("best ids:       ", best.tolist())
