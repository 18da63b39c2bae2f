"""In this beam search finished hypotheses keep their beams, and compete there with those that go on."""

from __future__ import annotations

import torch

from ascend_sample.decoding.beams.backtracking import trace_beams
from ascend_sample.decoding.beams.run import NOTHING, BeamRun, choose, exists, first_beams_alone
from ascend_sample.decoding.output import DecodeOutput
from ascend_sample.decoding.steps import steps_of


def search_in_beam(run: BeamRun, num_return_sequences: int, length_penalty: float) -> DecodeOutput:
    """Searches until all beams of all prompts have ended; see `beam_search`."""
    request, num_beams = run.request, run.num_beams
    batch = request.batch_size
    scores = first_beams_alone(batch, num_beams, request.device)
    ended = torch.zeros(batch, num_beams, dtype=torch.bool, device=request.device)
    lengths = torch.zeros(batch, num_beams, dtype=torch.int64, device=request.device)
    # What has ended has one continuation, which is itself: no token counts, and the score stays.
    itself = first_beams_alone(1, min(num_beams, run.vocab_size), request.device)
    padding = torch.tensor(request.pad_token_id, device=request.device)
    for step in steps_of(run.request):
        log_probs, tokens = run.best_of_each_beam(num_beams)
        log_probs = torch.where(ended[:, :, None], itself, log_probs)
        tokens = torch.where(ended[:, :, None], padding, tokens)
        chosen = choose(scores, log_probs, tokens, num_beams)
        scores = chosen.scores
        # All that belongs to a hypothesis moves with it.
        had_ended = ended.gather(1, chosen.beams)
        lengths = lengths.gather(1, chosen.beams) + ~had_ended
        has_ended = run.has_ended(chosen, step + 1)
        ended = had_ended if has_ended is None else had_ended | has_ended
        run.record(chosen.beams, chosen.tokens)
        done = run.read_if_asked((ended | ~exists(scores)).all(dim=1))[0]
        if run.is_over(step + 1, done):
            break
        run.advance(done)
    penalty = ((5.0 + lengths.to(torch.float32)) / 6.0) ** length_penalty
    final = (scores / penalty).where(exists(scores), NOTHING)
    order = final.sort(dim=1, descending=True, stable=True).indices[:, :num_return_sequences]
    step_tokens, step_beams = run.recorded()
    tokens, beams = trace_beams(step_tokens, step_beams, order, torch.full_like(order, len(step_tokens)))
    return run.finish(final.gather(1, order), lengths.gather(1, order), tokens, beams)
