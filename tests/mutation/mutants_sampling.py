"""The faults planted in the sampling layer. Those that change how often a token is drawn are in tests/statistics."""

from __future__ import annotations

from tests.mutation.mutants import Mutant

SAMPLING = "ascend_sample/sampling/"
ROUTES = f"{SAMPLING}routes.py"
SERVING = f"{SAMPLING}serving.py"
DEVICE_ROUTES = f"{SAMPLING}device_routes.py"
WEIGHTS = f"{SAMPLING}weights.py"
SEGMENTED = f"{SAMPLING}segmented.py"
PLACED_NOISE = f"{SAMPLING}placed_noise.py"
ROW_PARAMETERS = f"{SAMPLING}row_parameters.py"
TOTAL_ORDER = f"{SAMPLING}total_order.py"
DISTRIBUTION = f"{SAMPLING}distribution.py"
LOGPROBS = f"{SAMPLING}logprobs.py"
SAMPLER = f"{SAMPLING}sampler.py"
NOISE = f"{SAMPLING}noise.py"
BATCH = f"{SAMPLING}batch.py"
PLAN = f"{SAMPLING}plan.py"
PROCESSING = f"{SAMPLING}processing.py"
NORMAL_MODE = f"{SAMPLING}_normal_mode.py"
HOST_VALUES = "ascend_sample/integrations/_host_values.py"
NATIVE_ROWS = "csrc/cpu/kernel.h"
NATIVE_PROBABILITIES = "csrc/cpu/filters/distribution.h"
BEST_TOKENS = "csrc/cpu/filters/best_tokens.h"

IN_FUNCTIONAL = ("tests/sampling/test_functional.py",)
IN_ROUTES = ("tests/sampling/test_functional.py::TestRoutes",)
IN_BAD_ROWS = ("tests/sampling/test_functional.py::TestBadRows",)
IN_TOTAL_ORDER = ("tests/sampling/test_total_order.py",)
IN_FILTERS = ("tests/sampling/test_filters.py",)
IN_SAMPLER = ("tests/sampling/test_sampler.py",)
IN_NOISE = ("tests/sampling/test_noise.py",)
IN_NATIVE_ROWS = ("tests/sampling/test_native_rows.py",)
IN_FILTER_PROBABILITIES = ("tests/sampling/test_filter_probabilities.py",)
IN_BEST_TOKENS = ("tests/sampling/test_best_tokens.py",)
IN_BATCH = ("tests/sampling/test_batch.py", "tests/sampling/test_batch_model.py")
IN_BITMASK = ("tests/sampling/test_bitmask.py",)
IN_PROCESSING = ("tests/sampling/test_processing.py",)
IN_LOGPROBS = ("tests/sampling/test_logprobs.py",)
IN_NORMAL_MODE = ("tests/sampling/test_normal_mode.py",)
IN_HOST_VALUES = ("tests/integrations/test_host_values.py",)

MUTANTS_SAMPLING = (
    # ---- which route ----
    Mutant(
        "sampling: a fused route rounds top_p to the dtype of the logits",
        ROUTES,
        "rows.is_ranked & rows.is_top_p_exact",
        "rows.is_ranked",
        IN_ROUTES,
    ),
    Mutant(
        "sampling: a fused route forgets the temperature",
        ROUTES,
        "rows.is_top_p_exact & ~rows.has_min_p & ~rows.has_temperature",
        "rows.is_top_p_exact & ~rows.has_min_p",
        IN_ROUTES,
    ),
    Mutant(
        "sampling: a fused route forgets min-p",
        ROUTES,
        "& ~rows.has_min_p & rows.is_temperature_folded",
        "& rows.is_temperature_folded",
        IN_ROUTES,
    ),
    Mutant(
        "sampling: k above 1024 goes to the operators, which skip it",
        ROUTES,
        "(top_k > LARGEST_FUSED_K) | keep_ties",
        "(top_k > 2 * LARGEST_FUSED_K) | keep_ties",
        IN_FUNCTIONAL,
    ),
    Mutant(
        "sampling: the number of candidates is that of the largest top_k in the batch",
        ROUTES,
        "least = np.searchsorted(CANDIDATE_COUNTS, every_k[rows])",
        "least = np.searchsorted(CANDIDATE_COUNTS, every_k[rows].max() + 0 * every_k[rows])",
        IN_ROUTES,
    ),
    # ---- serving a route ----
    Mutant(
        "sampling: top-p keeps until the sum reaches p",
        DISTRIBUTION,
        "return (top_p.view(torch.int32) + 1).view(torch.float32)",
        "return (top_p.view(torch.int32) + 0).view(torch.float32)",
        IN_FUNCTIONAL,
    ),
    Mutant(
        "sampling: a single group is taken for the whole batch in order",
        SERVING,
        "if groups[0].batch_rows is None:",
        "if len(groups) == 1:",
        IN_SAMPLER,
    ),
    Mutant(
        "sampling: the temperature is no exponent of the noise",
        DEVICE_ROUTES,
        "noise = noise**self._exponent",
        "pass",
        IN_FUNCTIONAL,
    ),
    Mutant(
        "sampling: rounding to float16 switches a top_p just below 1 off",
        DEVICE_ROUTES,
        "convert_p(rows.parameters.top_p, rows.logits.new_empty(0, dtype=torch.float16))",
        "rows.parameters.top_p.to(torch.float16)",
        ("tests/sampling/test_rounding.py",),
    ),
    Mutant(
        "sampling: NaN is not cleaned",
        WEIGHTS,
        "nan=-torch.inf, posinf=largest",
        "nan=0.0, posinf=largest",
        IN_BAD_ROWS,
    ),
    Mutant(
        "sampling: an empty row has the weights of an even one",
        WEIGHTS,
        "clamp(min=torch.finfo(largest.dtype).min)",
        "clamp(min=-torch.inf)",
        IN_BAD_ROWS,
    ),
    Mutant(
        "sampling: the second race reads the noise of segments",
        SEGMENTED,
        "place = (inside / noise[:, :SEGMENT]).argmax(1)",
        "place = (inside / noise[:, -SEGMENT:]).argmax(1)",
        IN_FUNCTIONAL,
    ),
    Mutant(
        "sampling: what is beyond the vocabulary has weights",
        SEGMENTED,
        "weights[:, vocab_size:] = 0",
        "weights[:, vocab_size:] = 1",
        IN_FUNCTIONAL,
    ),
    Mutant(
        "sampling: every step's noise is made in the same pinned memory",
        PLACED_NOISE,
        "return torch.empty(count, dtype=torch.float32, pin_memory=True)",
        "return vars(_pinned).setdefault(count, torch.empty(count, dtype=torch.float32, pin_memory=True))",
        ("tests/sampling/test_placed_noise.py",),
    ),
    Mutant(
        "sampling: groups read each other's noise",
        PLACED_NOISE,
        "there[end - part.numbers : end].view(len",
        "there[: part.numbers].view(len",
        ("tests/sampling/test_placed_noise.py",),
    ),
    Mutant(
        "sampling: a min_p of 1 keeps one of several equal logits",
        ROW_PARAMETERS,
        "min_p=self.min_p.clamp(max=LARGEST_FRACTION)",
        "min_p=self.min_p",
        IN_FUNCTIONAL,
    ),
    Mutant(
        "sampling: greedy rows draw",
        ROW_PARAMETERS,
        "top_k=top_k.masked_fill(self.temperature == 0, 1)",
        "top_k=top_k",
        IN_FUNCTIONAL,
    ),
    # ---- order, filters, logprobs ----
    Mutant(
        "sampling: equal logits are ordered by the higher id",
        TOTAL_ORDER,
        "return ascending * (1 << ID_BITS) + (ID_MASK - ids)",
        "return ascending * (1 << ID_BITS) + ids",
        IN_TOTAL_ORDER,
    ),
    Mutant(
        "sampling: -0 comes after +0",
        TOTAL_ORDER,
        "bits = (logits + 0.0).view(torch.int32)",
        "bits = logits.contiguous().view(torch.int32)",
        IN_TOTAL_ORDER,
    ),
    Mutant(
        "sampling: filtered logits keep until the sum reaches p",
        DISTRIBUTION,
        "stays = (sums - ranked <= target)",
        "stays = (sums - ranked < target * (1 - 1e-3))",
        IN_FILTERS,
    ),
    Mutant(
        "sampling: the rank counts better tokens alone",
        LOGPROBS,
        "(numbers >= values[:, :1]).sum(1)",
        "(numbers > values[:, :1]).sum(1)",
        IN_SAMPLER,
    ),
    Mutant(
        "sampling: logprobs are of the logits after masks where raw ones are asked for",
        SAMPLER,
        "if self.logprobs_mode.is_processed:",
        "if self.logprobs_mode.is_normalised:",
        IN_SAMPLER,
    ),
    # ---- noise ----
    Mutant("sampling: nine rounds of Philox", NOISE, "_ROUNDS: Final = 10", "_ROUNDS: Final = 9", IN_NOISE),
    Mutant(
        "sampling: the native noise has another purpose",
        "csrc/cpu/torch/sample_rows_kernel.cpp",
        ".purpose = static_cast<uint32_t>(arguments.purpose),",
        ".purpose = 0,",
        IN_NATIVE_ROWS,
    ),
    # ---- filter_probabilities ----
    Mutant(
        "sampling: filter_probabilities weighs divided logits by the maximum of the undivided",
        NATIVE_ROWS,
        "normalize_kept(kept, 0.0F);",
        "normalize_kept(kept, maximum);",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities keeps until the sum reaches p",
        "csrc/cpu/calls.h",
        "kSamplingLayer{.softmaxes_again = false,\n                                      .has_to_exceed_p = true,",
        "kSamplingLayer{.softmaxes_again = false,\n                                      .has_to_exceed_p = false,",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities gives greedy rows their k",
        NATIVE_ROWS,
        "    arguments.k = 1;\n",
        "    arguments.k = call.requests.k[index];\n",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities ignores the temperature",
        NATIVE_ROWS,
        "if (is_greedy || temperature == 1.0F ||",
        "if (is_greedy || temperature > 0.0F ||",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities ignores min-p",
        NATIVE_ROWS,
        ".min_p = requests.min_p[index],",
        ".min_p = 0.0F,",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities of a row without anything are 0",
        NATIVE_PROBABILITIES,
        "fill(kept, std::numeric_limits<float>::quiet_NaN());",
        "fill(kept, 0.0F);",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities drops the last logits, less than a vector",
        NATIVE_PROBABILITIES,
        "last[i] = whole + i < count ? kept[whole + i] : -kInfinity;",
        "last[i] = -kInfinity;",
        IN_FILTER_PROBABILITIES,
    ),
    Mutant(
        "sampling: filter_probabilities gives what is not kept the least weight",
        NATIVE_PROBABILITIES,
        "return select(is_kept, exp_not_positive(differences), Floats{});",
        "return select(is_kept, exp_not_positive(differences), exp_not_positive(splat(-87.0F)));",
        IN_FILTER_PROBABILITIES,
    ),
    # ---- best_tokens ----
    Mutant(
        "decoding: best_tokens ignores the temperature",
        BEST_TOKENS,
        "if (call.temperature != 1.0F) {",
        "if (call.temperature < 0.0F) {",
        IN_BEST_TOKENS,
    ),
    Mutant(
        "decoding: best_tokens gives each entry of +inf the whole mass",
        BEST_TOKENS,
        "is_shared ? static_cast<double>(count_infinities(row)) : row_sum.sum",
        "is_shared ? 1.0 : row_sum.sum",
        IN_BEST_TOKENS,
    ),
    Mutant(
        "decoding: best_tokens repeats ids where few have weight",
        BEST_TOKENS,
        "if (row.value(id) == -kInfinity) {",
        "if (id < row.vocab_size()) {",
        IN_BEST_TOKENS,
    ),
    Mutant(
        "decoding: best_tokens forgets the sum",
        BEST_TOKENS,
        "static_cast<float>(difference - log_sum_)",
        "static_cast<float>(difference)",
        IN_BEST_TOKENS,
    ),
    # ---- batch, processing ----
    Mutant(
        "sampling: a penalised row's token is counted for another row",
        PLAN,
        "token_ids.index_select(0, self._rows_there)",
        "token_ids.index_select(0, self._rows_there.flip(0))",
        IN_BATCH,
    ),
    Mutant(
        "sampling: the slots of penalties are those of the first rows",
        PLAN,
        "self._slots = host.penalty_slot[self.rows]",
        "self._slots = host.penalty_slot[host.penalty_slot != NO_SLOT][::-1].copy()",
        IN_BATCH,
    ),
    Mutant(
        "sampling: each token of a list is written where the first one was",
        PLAN,
        ".view(-1)[behind:].index_copy_(",
        ".view(-1)[0:].index_copy_(",
        IN_BATCH,
    ),
    Mutant(
        "sampling: a token that is no id is penalised as one",
        PLAN,
        "entries[2].masked_fill_(is_none, UNREAD)",
        "entries[2].masked_fill_(is_none, FRONT)",
        IN_BATCH,
    ),
    Mutant(
        "sampling: the first id of a byte is in its highest bit",
        PROCESSING,
        "numpy.left_shift(1, numpy.arange(8))",
        "numpy.left_shift(1, numpy.arange(8)[::-1])",
        IN_BITMASK,
    ),
    Mutant(
        "sampling: a bitmask replaces the request's own mask",
        PLAN,
        "own if bitmask is None else own & bitmask",
        "own if bitmask is None else bitmask",
        IN_BITMASK,
    ),
    Mutant(
        "sampling: the repetition penalty divides negative logits",
        PROCESSING,
        "torch.where(logits > 0, logits / penalty, logits * penalty)",
        "logits / penalty",
        IN_PROCESSING,
    ),
    Mutant(
        "sampling: what lives from call to call is made in the caller's mode",
        NORMAL_MODE,
        "(function if is_normal else guarded)(*arguments, **named)",
        "function(*arguments, **named)",
        IN_NORMAL_MODE,
    ),
    Mutant(
        "sampling: a batch that has changed is served by its old plan",
        BATCH,
        "        self.plans.clear()\n",
        "",
        IN_SAMPLER,
    ),
    # ---- logprobs ----
    Mutant(
        "sampling: the best tokens at ties are those that topk happens to find",
        "ascend_sample/sampling/best_tokens.py",
        "_first(values.gather(1, places), count)",
        "values.gather(1, places).topk(count, dim=1)",
        IN_BEST_TOKENS,
    ),
    # ---- adapters ----
    Mutant(
        "vllm: facts about a tensor outlive what it held",
        HOST_VALUES,
        "if noted is None or noted.version != tensor._version:",
        "if noted is None:",
        IN_HOST_VALUES,
    ),
    Mutant(
        "vllm: what is not handed over keeps the facts that were noted",
        ROW_PARAMETERS,
        "facts = off | {field: facts[field] for field in known}",
        "facts = off | dict(facts)",
        IN_HOST_VALUES,
    ),
)
