"""Sampling as a serving engine calls it: exact distributions, and results that do not depend on the other rows.

`SamplingParams` is one request, `SamplingBatch` holds the requests of a step, `Sampler` draws their next tokens.
`sample_rows` is the same below that, for rows whose parameters are tensors; docs/sampling.md tells all of it.
"""

from ascend_sample.sampling.batch import SamplingBatch
from ascend_sample.sampling.draws.noise import Purpose, exponential_noise
from ascend_sample.sampling.edits.stops import Ended
from ascend_sample.sampling.functional import sample_rows
from ascend_sample.sampling.requests.params import SamplingParams
from ascend_sample.sampling.requests.seeds import derive_seeds
from ascend_sample.sampling.rows.parameters import RowsOutput, RowStatus
from ascend_sample.sampling.sampler import Sampler
from ascend_sample.sampling.scoring import Scores, score
from ascend_sample.sampling.static.step import StaticStep
from ascend_sample.sampling.static.verify import StaticVerification
from ascend_sample.sampling.step.distribution import filter_logits
from ascend_sample.sampling.step.kept import KeptSets
from ascend_sample.sampling.step.logprobs import Logprobs, LogprobsMode
from ascend_sample.sampling.step.output import RowRoute, SamplerOutput
from ascend_sample.sampling.step.routes import SamplingRoute
from ascend_sample.sampling.verify import VerifiedDrafts, verify_drafts

__all__ = [
    "Ended",
    "KeptSets",
    "Logprobs",
    "LogprobsMode",
    "Purpose",
    "RowRoute",
    "RowStatus",
    "RowsOutput",
    "Sampler",
    "SamplerOutput",
    "SamplingBatch",
    "SamplingParams",
    "SamplingRoute",
    "Scores",
    "StaticStep",
    "StaticVerification",
    "VerifiedDrafts",
    "derive_seeds",
    "exponential_noise",
    "filter_logits",
    "sample_rows",
    "score",
    "verify_drafts",
]
