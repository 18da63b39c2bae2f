// Counts what the kernel allocates: for each code path and kind of row, the bytes for the first row
// of a large vocabulary and the allocations for the rows after it.
//
//     allocations        prints lines of: capability, kind, bytes, later allocations
//     allocations fail   what a block holds after an allocation has failed, and after the next
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "cpu/targets.h"
#include "placed_case.h"

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

struct RowKind {
  const char* name;
  int32_t k;
  float p;
  bool has_q;
  float (*logit)(uint32_t random);
  int64_t stride = 1;
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

FuzzCase case_of(const RowKind& kind, LogitsType type, uint32_t random) {
  FuzzCase made{};
  made.type = type;
  made.k = kind.k;
  made.p = encode(type, kind.p);
  made.eps = 1e-8F;
  made.logits_stride = made.q_stride = kind.stride;
  made.is_need_logits = true;
  std::vector<float> q;
  for (size_t id = 0; id < kVocabSize; ++id) {
    random = random * 1'664'525 + 1'013'904'223;
    made.logits.push_back(encode(type, kind.logit(random >> 8)));
    q.push_back(static_cast<float>(random % 1000) * 1e-3F + 1e-3F);
  }
  if (kind.has_q) {
    made.q = q;
  }
  return made;
}

void measure(const Target& target, const RowKind& kind, LogitsType type, const char* type_name) {
  const PlacedCase rows[] = {PlacedCase(case_of(kind, type, 1)), PlacedCase(case_of(kind, type, 2)),
                             PlacedCase(case_of(kind, type, 3))};
  Workspace work;
  const auto sample = [&](const PlacedCase& row) {
    target.kernel->sample(std::get<OperatorCall>(row.call()), 0, 1, work);
  };
  size_t bytes = allocated_bytes;
  sample(rows[0]);
  bytes = allocated_bytes - bytes;
  size_t later = allocations;
  sample(rows[1]);
  sample(rows[2]);
  later = allocations - later;
  std::printf("%s,%s %s,%zu,%zu\n", std::string(target.name).c_str(), kind.name, type_name, bytes,
              later);
}

void fail_to_grow() {
  cpu::Block block;
  block.reserve<std::byte>(64);
  is_exhausted = true;
  try {
    block.reserve<std::byte>(128);
  } catch (const std::bad_alloc&) {
    std::printf("bad_alloc,");
  }
  is_exhausted = false;
  const bool is_empty = block.as<std::byte>() == nullptr;
  std::printf("%s,%zu,", is_empty ? "empty" : "kept", block.bytes());
  std::memset(block.reserve<std::byte>(64), 1, 64);  // faults where nothing is allocated
  std::printf("%zu\n", block.bytes());
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
