// HOSTCANN_* variables, read once, when the library is loaded. A wrong one is reported by aclInit
// and every later call.
#include "runtime/settings.h"

#include <cctype>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "runtime/faults.h"
#include "runtime/memory.h"
#include "runtime/streams.h"

namespace hostcann {
namespace runtime {
namespace {

constexpr char kDefaultSocName[] = "Ascend910B3";
constexpr char kDefaultCannVersion[] = "9.0.0";  // the first that has all operators exported here
constexpr int kDefaultDelayMilliseconds = 2;
constexpr uint64_t kMostDevices = 64;
constexpr uint64_t kMostBytes = std::numeric_limits<int64_t>::max();

std::string variable(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::string wrong(const char* name, const std::string& rule) {
  return std::string(name) + " must " + rule + ", got '" + variable(name) + "'";
}

/// "normal", "lazy", "delayed" or "delayed:MILLISECONDS".
std::string apply_stream_mode(const std::string& text) {
  const char* rule = "be normal, lazy, delayed or delayed:MILLISECONDS";
  size_t colon = text.find(':');
  std::optional<StreamMode> mode = parse_stream_mode(text.substr(0, colon));
  if (!mode) return wrong("HOSTCANN_STREAM_MODE", rule);
  int delay_ms = kDefaultDelayMilliseconds;
  if (colon != std::string::npos) {
    std::optional<uint64_t> delay = parse_bytes(text.substr(colon + 1));
    if (*mode != StreamMode::kDelayed || !delay || *delay > 60000)
      return wrong("HOSTCANN_STREAM_MODE", rule);
    delay_ms = static_cast<int>(*delay);
  }
  set_stream_mode(*mode, delay_ms);
  return "";
}

Settings* read_settings() {
  auto* settings = new Settings;
  auto complain = [settings](const std::string& error) {
    if (settings->error.empty()) settings->error = error;
  };
  settings->soc_name = variable("HOSTCANN_SOC", kDefaultSocName);
  settings->cann_version = variable("HOSTCANN_CANN_VERSION", kDefaultCannVersion);
  settings->report_path = variable("HOSTCANN_REPORT");
  settings->startup = variable("HOSTCANN_STARTUP");

  // torchrun says how many processes it starts on this host: each is to have a device.
  const char* devices_from =
      variable("HOSTCANN_DEVICES").empty() ? "LOCAL_WORLD_SIZE" : "HOSTCANN_DEVICES";
  std::optional<uint64_t> devices = parse_bytes(variable(devices_from, "1"));
  if (!devices || *devices < 1 || *devices > kMostDevices)
    complain(wrong(devices_from, "be a number of devices, 1 to " + std::to_string(kMostDevices)));
  settings->devices = static_cast<int>(devices.value_or(1));

  auto flag = [&complain](const char* name) {
    const std::string text = variable(name, "0");
    if (text != "0" && text != "1") complain(wrong(name, "be 0 or 1"));
    return text == "1";
  };
  const std::string level = variable("HOSTCANN_LOG", "4");
  if (level.size() != 1 || level[0] < '0' || level[0] > '4') {
    complain(wrong("HOSTCANN_LOG", "be a level, 0 to 3, or 4 for silence"));
  } else {
    settings->log_level = level[0] - '0';
  }
  settings->strict = flag("HOSTCANN_STRICT");
  set_null_kernels(flag("HOSTCANN_NULL_KERNELS"));

  std::string memory = variable("HOSTCANN_MEMORY");
  if (!memory.empty()) {
    std::optional<uint64_t> bytes = parse_bytes(memory);
    if (!bytes || *bytes == 0)
      complain(wrong("HOSTCANN_MEMORY", "be a number of bytes (K, M or G may follow)"));
    if (bytes && *bytes != 0) set_memory_capacity(*bytes);
  }
  std::string mode = variable("HOSTCANN_STREAM_MODE");
  if (!mode.empty()) complain(apply_stream_mode(mode));
  std::string faults = variable("HOSTCANN_FAULTS");
  if (!faults.empty()) {
    std::string error = inject_from_text(faults);
    if (!error.empty()) complain("HOSTCANN_FAULTS: " + error);
  }
  return settings;
}

}  // namespace

std::optional<StreamMode> parse_stream_mode(const std::string& text) {
  if (text == "normal") return StreamMode::kNormal;
  if (text == "delayed") return StreamMode::kDelayed;
  if (text == "lazy") return StreamMode::kLazy;
  return std::nullopt;
}

std::optional<uint64_t> parse_bytes(const std::string& text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0])) == 0) return std::nullopt;
  char* end = nullptr;
  uint64_t value = std::strtoull(text.c_str(), &end, 10);  // ULLONG_MAX for what is beyond
  std::string unit = end;
  int shift = 0;
  if (unit == "K") shift = 10;
  if (unit == "M") shift = 20;
  if (unit == "G") shift = 30;
  if ((shift == 0 && !unit.empty()) || value > kMostBytes >> shift) return std::nullopt;
  return value << shift;
}

const Settings& settings() {
  static const Settings* settings = read_settings();
  return *settings;
}

}  // namespace runtime

const char* soc_name() { return runtime::settings().soc_name.c_str(); }

}  // namespace hostcann
