// Text by printf's rules.
#pragma once

#include <cstdio>
#include <string>

namespace ascend_sample::cpu::testing {

template <typename... Arguments>
void append(std::string& text, const char* format, Arguments... arguments) {
  char line[200];
  std::snprintf(line, sizeof(line), format, arguments...);
  text += line;
}

}  // namespace ascend_sample::cpu::testing
