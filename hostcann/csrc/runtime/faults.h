// Injected faults, violations and what is alive, as tests set and read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "hostcann/hostcann.h"

namespace hostcann::runtime {

/// "" or why the text is not a list of faults (site:name:nth[:code],...); faults before the wrong
/// one are injected.
std::string inject_from_text(const std::string& text);
std::string inject(const std::string& site, const std::string& name, int nth, int code,
                   const std::string& message, int count);
void clear_faults();

/// 0, or the error of a fault that was injected into this call; `code` where it names none.
int take_call_fault(const char* site, const char* function, int code);

void reset_violations();
size_t violation_count();
/// Launches of kernels are accepted and dropped: host-side overhead can be measured alone.
bool null_kernels();
void set_null_kernels(bool enabled);
int64_t live_count(Live kind);

std::string violations_json();
std::string live_json();
std::string quote_json(const std::string& text);

}  // namespace hostcann::runtime
