// What the logits of a fuzzed row look like: families of values, and what is laid over them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace ascend_sample::cpu::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// In double first, so that it is the same on every machine, whose libraries differ in the last
/// bit.
inline float exp_of(float x) { return static_cast<float>(std::exp(double{x})); }
inline float log_of(float x) { return static_cast<float>(std::log(double{x})); }

/// Random numbers of a seed. No two of them are drawn in one expression whose order compilers
/// choose.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t bits() { return random_(); }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound));
  }
  bool one_in(int64_t times) { return below(times) == 0; }
  float uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24F; }
  float normal() {  // by Box and Muller
    const double radius = std::sqrt(-2 * std::log(1 - double{uniform()}));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * double{uniform()}));
  }
  float exponential() { return -log_of(1 - uniform()); }

  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }
  template <typename T>
  void shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), random_);
  }

 private:
  std::mt19937_64 random_;
};

/// Makes a row's values, in float32.
class RowMaker : public Dice {
 public:
  using Dice::Dice;

  size_t vocab_size() {
    const int64_t kind = below(1000);
    if (kind < 350) {  // around whole vectors and chunks
      const int64_t unit = pick<int64_t>({8, 16, 32, 64, 128, 256, 512, 1024});
      const int64_t whole = unit * (1 + below(4));
      return static_cast<size_t>(std::max<int64_t>(1, whole + below(5) - 2));
    }
    if (kind < 650) {
      return static_cast<size_t>(1 + below(70));
    }
    if (kind < 980) {
      return static_cast<size_t>(exp_of(uniform() * log_of(3000.0F)));
    }
    if (kind < 997) {
      const int64_t whole = 8192 * (1 + below(2));
      return static_cast<size_t>(whole + below(5) - 2);
    }
    return static_cast<size_t>(30000 + below(one_in(10) ? 170000 : 10000));
  }

  /// What most of a row looks like.
  std::vector<float> base(size_t size) {
    std::vector<float> values(size);
    const float scale = pick({0.0F, 1e-6F, 0.01F, 0.1F, 1.0F, 3.0F, 10.0F, 100.0F, 1e4F, 1e30F});
    const float shift = one_in(4) ? pick({-500.0F, -90.0F, 60.0F, 500.0F, 3e4F}) : 0.0F;
    const int64_t steps = pick<int64_t>({2, 3, 7, 100});
    const float step = pick({1e-3F, 0.25F, 1.0F, 30.0F});
    const int64_t family = below(9);
    const int64_t equal = int64_t{1} << below(std::bit_width(size));
    for (size_t id = 0; id < size; ++id) {
      float& value = values[id];
      switch (family) {
        case 0:
        case 1:
        case 2:
          value = normal() * scale;
          break;
        case 3:  // a language model: falls with the logarithm of the rank
          value = 15.0F - 2.0F * log_of(static_cast<float>(id + 1)) + 0.3F * normal();
          break;
        case 4:  // few values
          value = static_cast<float>(below(steps)) * step;
          break;
        case 5:  // two values, one of them rare
          value = one_in(50) ? step : 0.0F;
          break;
        case 6:  // clusters of neighbouring floats
          value = static_cast<float>(below(4)) * step + 1.0F;
          value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) +
                                       static_cast<uint32_t>(below(4)));
          break;
        case 7:  // 2^m equal values, the others without weight: cumulative sums are exact
          value = static_cast<int64_t>(id) < equal ? 2.5F : -1000.0F;
          break;
        case 8:  // subnormals and zeros of both signs
          value = std::ldexp(static_cast<float>(below(17) - 8), -149);
          value = value == 0.0F && one_in(2) ? -0.0F : value;
          break;
      }
      value += family == 8 ? 0.0F : shift;
    }
    if (family == 3 || family == 7) {
      shuffle(values);
    }
    return values;
  }

  /// Something laid over a row.
  void overlay(std::vector<float>& values) {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t rarity = pick<int64_t>({2, 10, 1000});
    switch (below(10)) {
      case 0:
        strike(values, -kInfinity, rarity);
        break;
      case 1:
        strike(values, kNan, rarity);
        break;
      case 2:
        strike(values, kInfinity, 100 * rarity);
        break;
      case 3:
        strike(values, -0.0F, rarity);
        break;
      case 4:
        strike(values, values[static_cast<size_t>(below(size))],
               rarity);  // ties with a drawn value
        break;
      case 5:
        std::sort(values.begin(), values.end());
        break;
      case 6:
        std::sort(values.begin(), values.end(), std::greater<>());
        break;
      case 7:  // one peak, often at an end of the row
        values[static_cast<size_t>(pick<int64_t>({0, size - 1, below(size)}))] += 20.0F;
        break;
      case 8: {  // all the best in one stretch
        const int64_t start = below(size);
        const int64_t end = std::min(size, start + pick<int64_t>({8, 64, 512, 2000}));
        for (int64_t id = start; id < end; ++id) {
          values[static_cast<size_t>(id)] += 8.0F;
        }
        break;
      }
      case 9:
        std::fill(values.begin(), values.end(), pick({-kInfinity, kInfinity, kNan, 0.0F, 7.0F}));
        break;
    }
  }

  /// Of several chunks, mostly.
  size_t vocab_size_of_masked() {
    return static_cast<size_t>(992 + below(one_in(30) ? 40000 : 3000));
  }

  /// What a grammar or min-p does: little is left, in stretches or scattered.
  void mask(std::vector<float>& values) {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t chunk = 1024;
    std::vector<bool> stays(values.size());
    const auto let_stay = [&](int64_t start, int64_t count) {
      for (int64_t id = start; id < std::min(size, start + count); ++id) {
        stays[static_cast<size_t>(id)] = true;
      }
    };
    switch (below(6)) {
      case 0:  // one, often at an end of the row
        let_stay(pick<int64_t>({0, size - 1, below(size)}), 1);
        break;
      case 1:  // a chunk
        let_stay(below(size / chunk + 1) * chunk, chunk);
        break;
      case 2:
        for (int64_t stretches = 1 + below(4); stretches > 0; --stretches) {
          const int64_t start = below(size);
          let_stay(start, 1 + below(size / 16));
        }
        break;
      case 3: {  // one in so many, by chance
        const int64_t rarity = pick<int64_t>({2, 7, 8, 9, 30, 200});
        for (int64_t id = 0; id < size; ++id) {
          let_stay(id, one_in(rarity) ? 1 : 0);
        }
        break;
      }
      case 4: {  // one in so many, regularly
        const int64_t period = pick<int64_t>({8, 9, 16, 32, 33, 128, chunk});
        for (int64_t id = below(period); id < size; id += period) {
          let_stay(id, 1);
        }
        break;
      }
      case 5:  // a few
        for (int64_t count = 1 + below(100); count > 0; --count) {
          let_stay(below(size), 1);
        }
        break;
    }
    const float nothing = one_in(8) ? kNan : -kInfinity;
    for (size_t id = 0; id < values.size(); ++id) {
      values[id] = stays[id] ? values[id] : nothing;
    }
    if (one_in(8)) {
      const float special = pick({kNan, -kInfinity});
      strike(values, special, pick<int64_t>({10, 1000}));
    }
  }

  void strike(std::vector<float>& values, float value, int64_t rarity) {
    for (float& old : values) {
      old = one_in(rarity) ? value : old;
    }
  }
};

}  // namespace ascend_sample::cpu::testing
