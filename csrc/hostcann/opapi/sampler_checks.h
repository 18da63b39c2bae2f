// What phase 1 of both sampling operators refuses alike.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "hostcann/opapi/opapi.h"

namespace hostcann::opapi {

/// ", got float16 [4, 8]".
std::string got(const Operand& operand);

/// 161002 unless the data type is one of `types`.
int check_type(const char* op, const char* argument, const Operand& operand,
               std::initializer_list<DataType> types);

/// 161002 unless the data type is that of the logits.
int check_type_of_logits(const char* op, const char* argument, const Operand& operand,
                         const Operand& logits);

/// 561003 unless the SoC's name begins with one of `series`.
int check_soc(const char* op, std::initializer_list<const char*> series);

/// 561002 unless the operand has this shape.
int check_shape(const char* op, const char* argument, const Operand& operand,
                const std::vector<int64_t>& expected);

/// 561002 unless the logits are [batch, vocab_size] with a vocab_size up to 2^20 and fewer than
/// 2^32 elements.
int check_logits_shape(const char* op, const Operand& logits);

/// Runs a kernel that works in a workspace; reports what others did to that as a violation.
void run_in_workspace(const char* op, const std::function<void()>& kernel);

}  // namespace hostcann::opapi
