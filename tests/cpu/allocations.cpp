// Counts what the kernel allocates: for each code path and kind of row, the bytes for the first row
// of a large vocabulary and the allocations for the rows after it.
//
//     allocations        prints lines of: capability, kind, bytes, later allocations
//     allocations fail   what a scratch holds after an allocation has failed, and after the next
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "cpu/targets.h"

namespace {
std::atomic<size_t> allocations = 0;
std::atomic<size_t> allocated_bytes = 0;
std::atomic<bool> is_exhausted = false;

void count(size_t bytes) {
  ++allocations;
  allocated_bytes += bytes;
}
}  // namespace

// glibc lets a program replace its allocation functions; operator new and all libraries then come
// here. Its own are still there under these names.
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) {
  count(number * bytes);
  return __libc_calloc(number, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count(bytes);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (is_exhausted) {
    return nullptr;
  }
  count(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  count(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}

namespace ascend_sample::cpu::testing {
namespace {

constexpr size_t kVocabSize = 151'936;
constexpr size_t kRows = 4;

struct RowKind {
  const char* name;
  int32_t k;
  float p;
  bool has_q;
  float (*logit)(uint32_t random);
  int64_t column_stride = 1;
};

float spread(uint32_t random) { return static_cast<float>(random % 100'000) * 1e-4F; }
float flat(uint32_t random) { return 1.0F + static_cast<float>(random % 1000) * 1e-6F; }
float equal(uint32_t /*random*/) { return 1.5F; }
float steep(uint32_t random) { return static_cast<float>(random) * 1e20F; }

constexpr auto kKinds = std::to_array<RowKind>({
    {"top-k 50", 50, 0.9F, true, spread},
    {"top-k 1024", 1024, 0.9F, true, spread},
    {"top-k of equal values", 1024, 0.9F, true, equal},
    {"top-p", 0, 0.9F, true, spread},
    {"top-p of flat values", 0, 0.9F, true, flat},
    {"top-p of equal values", 0, 0.9F, true, equal},
    {"top-p of huge values", 0, 0.9F, true, steep},
    {"top-p without q", 0, 0.99F, false, flat},
    {"no filter", 0, 1.0F, true, spread},
    {"no filter without q", 0, 1.0F, false, spread},
    {"strided", 50, 0.9F, true, spread, 2},
});

class Rows {
 public:
  Rows(const RowKind& kind, LogitsType type) : p_(1), kept_(kRows * kVocabSize), selected_(kRows) {
    const size_t elements = kRows * kVocabSize * static_cast<size_t>(kind.column_stride);
    const bool is_wide = type == LogitsType::kFloat32;
    const auto bits_of = [is_wide](float value) {  // bfloat16 is the upper half of float32
      return std::bit_cast<uint32_t>(value) >> (is_wide ? 0 : 16);
    };
    uint32_t random = 1;
    for (size_t i = 0; i < elements; ++i) {
      random = random * 1'664'525 + 1'013'904'223;
      const uint32_t bits = bits_of(kind.logit(random >> 8));
      if (is_wide) {
        wide_.push_back(bits);
      } else {
        narrow_.push_back(static_cast<uint16_t>(bits));
      }
      q_.push_back(static_cast<float>(random % 1000) * 1e-3F + 1e-3F);
    }
    k_ = kind.k;
    p_[0] = bits_of(kind.p);
    const void* logits = is_wide ? static_cast<const void*>(wide_.data()) : narrow_.data();
    const auto row_stride = static_cast<int64_t>(kVocabSize) * kind.column_stride;
    call_ = {.logits = {.type = type,
                        .vocab_size = kVocabSize,
                        .data = logits,
                        .row_stride = row_stride,
                        .column_stride = kind.column_stride},
             .batch_size = kRows,
             .rules = kFirstOperator,
             .k = {&k_, 0},
             .p = {p_.data(), 0},
             .min_p = std::nullopt,
             .q = std::nullopt,
             .eps = 1e-8F,
             .are_probabilities = false,
             .selected = selected_.data(),
             .kept = kept_,
             .sample_result = std::nullopt};
    if (kind.has_q) {
      call_.q = {q_.data(), row_stride, kind.column_stride};
    }
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const OperatorCall& call() const { return call_; }

 private:
  std::vector<uint32_t> wide_;
  std::vector<uint16_t> narrow_;
  std::vector<float> q_;
  std::vector<uint32_t> p_;
  std::vector<float> kept_;
  std::vector<int64_t> selected_;
  int32_t k_;
  OperatorCall call_;
};

void measure(const Target& target, const RowKind& kind, LogitsType type, const char* type_name) {
  const Rows rows(kind, type);
  Scratch scratch;
  size_t bytes = allocated_bytes;
  target.kernel->sample(rows.call(), 0, 1, scratch);
  bytes = allocated_bytes - bytes;
  size_t later = allocations;
  target.kernel->sample(rows.call(), 1, kRows, scratch);
  later = allocations - later;
  std::printf("%s,%s %s,%zu,%zu\n", std::string(target.name).c_str(), kind.name, type_name, bytes,
              later);
}

void fail_to_grow() {
  Scratch scratch;
  scratch.reserve(Scratch::kRow, 64);
  is_exhausted = true;
  try {
    scratch.reserve(Scratch::kRow, 128);
  } catch (const std::bad_alloc&) {
    std::printf("bad_alloc,");
  }
  is_exhausted = false;
  const auto held = scratch.held(Scratch::kRow);
  std::printf("%s,%zu,", held.data() == nullptr ? "empty" : "kept", held.size());
  std::memset(scratch.reserve(Scratch::kRow, 64), 1, 64);  // faults where nothing is allocated
  std::printf("%zu\n", scratch.held(Scratch::kRow).size());
}

}  // namespace
}  // namespace ascend_sample::cpu::testing

int main(int count, char**) {
  using namespace ascend_sample::cpu;
  using namespace ascend_sample::cpu::testing;
  if (count > 1) {
    fail_to_grow();
    return 0;
  }
  for (const Target& target : targets()) {
    for (const RowKind& kind : kKinds) {
      if (target.is_available()) {
        measure(target, kind, LogitsType::kFloat32, "float32");
        measure(target, kind, LogitsType::kBFloat16, "bfloat16");
      }
    }
  }
}
