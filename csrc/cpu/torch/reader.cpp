#include "reader.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace ascend_sample::cpu {

void check_values(const char* op, const char* name, std::span<const int64_t> values,
                  const Range& range) {
  const auto [least, end, end_name, remedy] = range;
  const auto is_inside = [least, end](int64_t value) {
    return static_cast<uint64_t>(value) - static_cast<uint64_t>(least) <
           static_cast<uint64_t>(end) - static_cast<uint64_t>(least);
  };
  bool are_inside = true;
  for (const int64_t value : values) {
    are_inside &= is_inside(value);
  }
  if (!are_inside) {
    const int64_t value = *std::find_if_not(values.begin(), values.end(), is_inside);
    TORCH_CHECK_VALUE(false, op, ": ", name, " must be between ", least, " and ", end_name, " (",
                      end, ") - 1, got ", value, ". ", remedy);
  }
}

}  // namespace ascend_sample::cpu
