#include "sample_rows.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace ascend_sample::cpu {

// One for each file kernel_*.cpp that this machine's architecture has.
namespace plain {
void sample_rows(const Batch& batch, int64_t first_row, int64_t last_row, Scratch& scratch);
void exponential_noise(const NoiseKey& key, uint64_t first_lane, size_t count, float* out);
}  // namespace plain
#if defined(__x86_64__)
namespace avx2 {
void sample_rows(const Batch& batch, int64_t first_row, int64_t last_row, Scratch& scratch);
void exponential_noise(const NoiseKey& key, uint64_t first_lane, size_t count, float* out);
}  // namespace avx2
namespace avx512 {
void sample_rows(const Batch& batch, int64_t first_row, int64_t last_row, Scratch& scratch);
void exponential_noise(const NoiseKey& key, uint64_t first_lane, size_t count, float* out);
}  // namespace avx512
#elif defined(__aarch64__)
namespace neon {
void sample_rows(const Batch& batch, int64_t first_row, int64_t last_row, Scratch& scratch);
void exponential_noise(const NoiseKey& key, uint64_t first_lane, size_t count, float* out);
}  // namespace neon
#endif

namespace {

constexpr std::align_val_t kAlignment{64};

[[noreturn]] void refuse(const char* function, Capability capability) {
  throw std::invalid_argument(std::string(function) +
                              ": capability must be one of this machine's architecture, got " +
                              std::string(name_of(capability)) + ". Use best_capability().");
}

}  // namespace

void Scratch::Free::operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }

std::byte* Scratch::reserve(Slot slot, size_t bytes) {
  Block& block = blocks_[slot];
  if (block.bytes < bytes) {
    block.memory.reset();
    block.memory.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    block.bytes = bytes;
  }
  return block.memory.get();
}

std::byte* Scratch::reserve_zeros(Slot slot, size_t bytes) {
  const bool grows = blocks_[slot].bytes < bytes;
  std::byte* const memory = reserve(slot, bytes);
  if (grows) {
    std::memset(memory, 0, bytes);
  }
  return memory;
}

std::string_view name_of(Capability capability) {
  switch (capability) {
    case Capability::kPlain:
      return "plain";
    case Capability::kNeon:
      return "neon";
    case Capability::kAvx2:
      return "avx2";
    case Capability::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<Capability> capability_named(std::string_view name) {
  for (const Capability capability : kCapabilities) {
    if (name == name_of(capability)) {
      return capability;
    }
  }
  return std::nullopt;
}

bool is_available(Capability capability) {
  switch (capability) {
    case Capability::kPlain:
      return true;
    case Capability::kNeon:
#if defined(__aarch64__)
      return true;  // every aarch64 has it
#else
      return false;
#endif
    case Capability::kAvx2:
#if defined(__x86_64__)
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
#else
      return false;
#endif
    case Capability::kAvx512:
#if defined(__x86_64__)
      return is_available(Capability::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#else
      return false;
#endif
  }
  return false;
}

Capability best_capability() {
  Capability best = Capability::kPlain;
  for (const Capability capability : kCapabilities) {
    best = is_available(capability) ? capability : best;
  }
  return best;
}

void sample_rows(Capability capability, const Batch& batch, int64_t first_row, int64_t last_row,
                 Scratch& scratch) {
  switch (capability) {
    case Capability::kPlain:
      return plain::sample_rows(batch, first_row, last_row, scratch);
#if defined(__x86_64__)
    case Capability::kAvx2:
      return avx2::sample_rows(batch, first_row, last_row, scratch);
    case Capability::kAvx512:
      return avx512::sample_rows(batch, first_row, last_row, scratch);
#elif defined(__aarch64__)
    case Capability::kNeon:
      return neon::sample_rows(batch, first_row, last_row, scratch);
#endif
    default:
      refuse("sample_rows", capability);
  }
}

void exponential_noise(Capability capability, const NoiseKey& key, uint64_t first_lane,
                       size_t count, float* out) {
  switch (capability) {
    case Capability::kPlain:
      return plain::exponential_noise(key, first_lane, count, out);
#if defined(__x86_64__)
    case Capability::kAvx2:
      return avx2::exponential_noise(key, first_lane, count, out);
    case Capability::kAvx512:
      return avx512::exponential_noise(key, first_lane, count, out);
#elif defined(__aarch64__)
    case Capability::kNeon:
      return neon::exponential_noise(key, first_lane, count, out);
#endif
    default:
      refuse("exponential_noise", capability);
  }
}

}  // namespace ascend_sample::cpu
