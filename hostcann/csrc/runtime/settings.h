// What the HOSTCANN_* variables say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hostcann/hostcann.h"

namespace hostcann::runtime {

enum class StreamMode { kNormal, kDelayed, kLazy };

struct Settings {
  std::string soc_name;
  std::string cann_version;
  std::string report_path;
  std::string startup;  // a line of Python
  int devices = 1;      // how many a program is told of; a process has one of them
  int log_level = 4;    // of the least important of torch_npu's messages that are printed
  bool strict = false;
  std::string error;  // what is wrong with the environment; empty when nothing is
};
const Settings& settings();
std::optional<StreamMode> parse_stream_mode(const std::string& text);
std::optional<uint64_t> parse_bytes(const std::string& text);

}  // namespace hostcann::runtime
