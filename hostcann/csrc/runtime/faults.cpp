// Fault injection: the nth occurrence of a site (and, for operators, a name) fails, `count` times
// running.
#include "runtime/faults.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/errors.h"

namespace hostcann {
namespace {

constexpr std::array<const char*, 7> kSites = {"malloc", "workspace", "phase1",     "phase2",
                                               "task",   "memcpy",    "synchronize"};

struct Fault {
  std::string site;
  std::string name;  // empty: every name
  int nth;
  int count;
  int code;  // 0: what the site usually reports
  std::string message;
  int seen = 0;
};

struct Faults {
  std::mutex mutex;
  std::vector<Fault> list;
};

Faults& faults() { return only<Faults>(); }

}  // namespace

std::optional<InjectedFault> take_injected_fault(const char* site, const std::string& name) {
  Faults& all = faults();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::optional<InjectedFault> taken;
  for (Fault& fault : all.list) {
    if (fault.site != site || (!fault.name.empty() && fault.name != name)) continue;
    ++fault.seen;
    if (taken || fault.seen < fault.nth || fault.seen - fault.nth >= fault.count) continue;
    std::string message = fault.message;
    if (message.empty()) {
      message = "injected fault: " + fault.site + (name.empty() ? "" : " of " + name) +
                ", occurrence " + std::to_string(fault.seen);
    }
    taken = InjectedFault{fault.code, std::move(message)};
  }
  return taken;
}

namespace runtime {

std::string inject(const std::string& site, const std::string& name, int nth, int code,
                   const std::string& message, int count) {
  if (std::find(kSites.begin(), kSites.end(), site) == kSites.end()) {
    std::string known;
    for (const char* each : kSites) known += std::string(known.empty() ? "" : ", ") + each;
    return "site must be one of " + known + ", got '" + site + "'";
  }
  if (nth < 1) return "nth must be at least 1, got " + std::to_string(nth);
  if (count < 1) return "count must be at least 1, got " + std::to_string(count);
  Faults& all = faults();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.list.push_back({site, name, nth, count, code, message});
  return "";
}

std::string inject_from_text(const std::string& text) {
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    std::vector<std::string> fields;
    std::istringstream parts(item);
    for (std::string field; std::getline(parts, field, ':');) fields.push_back(field);
    auto number = [&fields](size_t index, int otherwise) {
      if (index >= fields.size() || fields[index].empty()) return std::optional<int>(otherwise);
      char* end = nullptr;
      long value = std::strtol(fields[index].c_str(), &end, 10);  // LONG_MAX for what is beyond
      bool fits =
          std::numeric_limits<int>::min() <= value && value <= std::numeric_limits<int>::max();
      return *end == '\0' && fits ? std::optional<int>(static_cast<int>(value)) : std::nullopt;
    };
    std::optional<int> nth = number(2, 1);
    std::optional<int> code = number(3, 0);
    if (fields.empty() || fields.size() > 4 || !nth || !code) {
      return "a fault must be site:name:nth[:code], of numbers of 32 bits, got '" + item + "'";
    }
    std::string error = inject(fields[0], fields.size() > 1 ? fields[1] : "", *nth, *code, "", 1);
    if (!error.empty()) return error;
  }
  return "";
}

int take_call_fault(const char* site, const char* function, int code) {
  auto fault = take_injected_fault(site, function);
  return fault ? fail(function, fault->code == 0 ? code : fault->code, fault->message) : kSuccess;
}

void clear_faults() {
  Faults& all = faults();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.list.clear();
}

}  // namespace runtime
}  // namespace hostcann
