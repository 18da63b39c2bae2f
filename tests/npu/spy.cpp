// A vendor's operator library (libcust_opapi.so) that writes down how the sampling operators are
// called and hands every call on to the library that SPY_NEXT names. One line of JSON a call goes to
// the file named by SPY_LOG.
//
// It sees what the operator sees: which tensor is which argument, how each was described, eps to
// its last bit, the values of k when the kernel is about to run.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Description {
  std::vector<int64_t> shape, strides, storage;
  int64_t offset;
  int data_type, format;
  const char* address;
};

struct Call {
  std::string text;
  Description k;
};

std::mutex mutex;
std::map<const void*, Description> tensors;
std::map<const void*, Call> calls;  // by executor

template <typename Function>
Function next(const char* library, const char* name) {
  void* symbol = dlsym(dlopen(library, RTLD_LAZY), name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "spy: %s has no %s\n", library, name);
    std::abort();
  }
  return reinterpret_cast<Function>(symbol);
}

std::string text_of(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

std::string text_of(const void* tensor) {
  if (tensor == nullptr) return "null";
  const std::lock_guard lock(mutex);
  const Description& seen = tensors.at(tensor);
  return "{\"shape\": " + text_of(seen.shape) + ", \"strides\": " + text_of(seen.strides) +
         ", \"storage\": " + text_of(seen.storage) +
         ", \"offset\": " + std::to_string(seen.offset) +
         ", \"data_type\": " + std::to_string(seen.data_type) +
         ", \"format\": " + std::to_string(seen.format) +
         ", \"address\": " + std::to_string(reinterpret_cast<uintptr_t>(seen.address)) + "}";
}

/// The values of k, once everything before this launch has run.
std::vector<int64_t> read(const Description& k, void* stream) {
  static const auto synchronize = next<int (*)(void*)>("libascendcl.so", "aclrtSynchronizeStream");
  static const auto copy =
      next<int (*)(void*, size_t, const void*, size_t, int)>("libascendcl.so", "aclrtMemcpy");
  constexpr int kDeviceToHost = 2;
  std::vector<int64_t> values;
  if (synchronize(stream) != 0) return values;
  for (int64_t row = 0; row < k.shape[0]; ++row) {
    int32_t value = 0;
    const char* address = k.address + 4 * (k.offset + row * k.strides[0]);
    if (copy(&value, sizeof value, address, sizeof value, kDeviceToHost) != 0) return {};
    values.push_back(value);
  }
  return values;
}

const char* text_of(bool value) { return value ? "true" : "false"; }

/// What both operators take, as the beginning of a JSON object.
std::string common(const void* logits, const void* k, const void* p, const void* q, double eps,
                   bool is_need_logits, int64_t top_k_guess, const void* selected,
                   const void* kept) {
  char number[40];
  std::snprintf(number, sizeof number, "%.17g", eps);
  return "{\"logits\": " + text_of(logits) + ", \"k\": " + text_of(k) + ", \"p\": " + text_of(p) +
         ", \"q\": " + text_of(q) + ", \"eps\": " + number +
         ", \"is_need_logits\": " + text_of(is_need_logits) +
         ", \"top_k_guess\": " + std::to_string(top_k_guess) +
         ", \"selected\": " + text_of(selected) + ", \"kept\": " + text_of(kept);
}

void remember(const void* executor, const void* k, std::string text) {
  const std::lock_guard lock(mutex);
  calls[executor] = {std::move(text), tensors.at(k)};
}

void write_down(const void* executor, void* stream) {
  Call call;
  {
    const std::lock_guard lock(mutex);
    call = calls.at(executor);
  }
  const std::string values = text_of(read(call.k, stream));
  if (std::FILE* log = std::fopen(std::getenv("SPY_LOG"), "a"); log != nullptr) {
    const auto handle = static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(stream));
    std::fprintf(log, "%s, \"stream\": %llu, \"k_values\": %s}\n", call.text.c_str(), handle,
                 values.c_str());
    std::fclose(log);
  }
}

}  // namespace

extern "C" {

void* aclCreateTensor(const int64_t* view_dims, uint64_t view_rank, int data_type,
                      const int64_t* strides, int64_t offset, int format,
                      const int64_t* storage_dims, uint64_t storage_rank, void* address) {
  static const auto create = next<decltype(&aclCreateTensor)>("libopapi.so", __func__);
  void* tensor = create(view_dims, view_rank, data_type, strides, offset, format, storage_dims,
                        storage_rank, address);
  const std::lock_guard lock(mutex);
  tensors[tensor] = {{view_dims, view_dims + view_rank},
                     {strides, strides + (strides == nullptr ? 0 : view_rank)},
                     {storage_dims, storage_dims + storage_rank},
                     offset,
                     data_type,
                     format,
                     static_cast<const char*>(address)};
  return tensor;
}

int aclnnTopKTopPSampleGetWorkspaceSize(const void* logits, const void* k, const void* p,
                                        const void* q, double eps, bool is_need_logits,
                                        int64_t top_k_guess, const void* selected, const void* kept,
                                        uint64_t* workspace_size, void** executor) {
  static const auto plan =
      next<decltype(&aclnnTopKTopPSampleGetWorkspaceSize)>(std::getenv("SPY_NEXT"), __func__);
  const int status = plan(logits, k, p, q, eps, is_need_logits, top_k_guess, selected, kept,
                          workspace_size, executor);
  if (status != 0) return status;
  remember(*executor, k,
           common(logits, k, p, q, eps, is_need_logits, top_k_guess, selected, kept));
  return status;
}

int aclnnTopKTopPSampleV2GetWorkspaceSize(const void* logits, const void* k, const void* p,
                                          const void* q, const void* min_p, double eps,
                                          bool is_need_logits, int64_t top_k_guess, int64_t ks_max,
                                          bool input_is_logits, bool is_need_sample_result,
                                          const void* selected, const void* kept, const void* ids,
                                          const void* weights, uint64_t* workspace_size,
                                          void** executor) {
  static const auto plan =
      next<decltype(&aclnnTopKTopPSampleV2GetWorkspaceSize)>(std::getenv("SPY_NEXT"), __func__);
  const int status =
      plan(logits, k, p, q, min_p, eps, is_need_logits, top_k_guess, ks_max, input_is_logits,
           is_need_sample_result, selected, kept, ids, weights, workspace_size, executor);
  if (status != 0) return status;
  remember(*executor, k,
           common(logits, k, p, q, eps, is_need_logits, top_k_guess, selected, kept) +
               ", \"min_p\": " + text_of(min_p) + ", \"ks_max\": " + std::to_string(ks_max) +
               ", \"input_is_logits\": " + text_of(input_is_logits) +
               ", \"is_need_sample_result\": " + text_of(is_need_sample_result) +
               ", \"ids\": " + text_of(ids) + ", \"weights\": " + text_of(weights));
  return status;
}

int aclnnTopKTopPSample(void* workspace, uint64_t workspace_size, void* executor, void* stream) {
  static const auto launch = next<decltype(&aclnnTopKTopPSample)>(std::getenv("SPY_NEXT"), __func__);
  write_down(executor, stream);
  return launch(workspace, workspace_size, executor, stream);
}

int aclnnTopKTopPSampleV2(void* workspace, uint64_t workspace_size, void* executor, void* stream) {
  static const auto launch = next<decltype(&aclnnTopKTopPSampleV2)>(std::getenv("SPY_NEXT"), __func__);
  write_down(executor, stream);
  return launch(workspace, workspace_size, executor, stream);
}

}  // extern "C"
