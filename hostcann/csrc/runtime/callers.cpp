// Which line of a Python program asks for something. A function of that program says it
// (hostcann/src/hostcann/_lines.py), and needs Python's lock (the GIL) for it.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/activities.h"
#include "runtime/errors.h"
#include "runtime/faults.h"
#include "runtime/memory.h"
#include "runtime/settings.h"

namespace hostcann {
namespace {

constexpr int64_t kMemoryWanted = -1;  // what a Caller's memory says until it is known
constexpr std::chrono::seconds kPatience{1};

/// Functions of the Python program, and of its interpreter.
struct Program {
  /// Says the line that a thread is in, and the memory that tensors hold where that is wanted.
  void (*find)(unsigned long thread, Caller* caller);
  void* (*thread_state)();  // null on a thread that Python does not know
  int (*holds_lock)();
};

std::atomic<const Program*> current_program{nullptr};

/// The program, if the calling thread is one of its own.
const Program* program_of_thread() {
  const Program* program = current_program.load();
  return program != nullptr && program->thread_state() != nullptr ? program : nullptr;
}

struct Lines {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, int64_t> numbers;
  std::vector<std::pair<std::string, int>> lines{{"", 0}};  // number 0: no line is known
};

Lines& lines() { return only<Lines>(); }

/// What another thread asks on behalf of one that waits.
struct Question {
  std::mutex mutex;
  std::condition_variable changed;
  bool answered = false;
  Caller caller;
};

}  // namespace

Caller find_caller() {
  if (!runtime::is_profiling()) return {};
  if (current_program.load() == nullptr) return {0, runtime::memory_in_use()};
  const Program* program = program_of_thread();
  if (program == nullptr) return {};
  Caller caller{0, kMemoryWanted};
  program->find(pthread_self(), &caller);
  if (caller.memory == kMemoryWanted) caller.memory = runtime::memory_in_use();
  return caller;
}

namespace runtime {

/// torch_npu's allocator waits for the device while it holds its mutex, and a thread that holds the
/// GIL may be waiting for that mutex: the one that is to ask Python must not be the one that holds
/// it, and its answer is not waited for without end.
Caller find_waiting_caller() {
  const Program* program = is_profiling() ? program_of_thread() : nullptr;
  if (program == nullptr) return {};
  if (program->holds_lock() != 0) {
    Caller caller;
    program->find(pthread_self(), &caller);
    return caller;
  }
  auto question = std::make_shared<Question>();
  std::thread([program, question, thread = pthread_self()] {
    Caller caller;
    program->find(thread, &caller);
    std::lock_guard<std::mutex> lock(question->mutex);
    question->caller = caller;
    question->answered = true;
    question->changed.notify_one();
  }).detach();
  std::unique_lock<std::mutex> lock(question->mutex);
  question->changed.wait_for(lock, kPatience, [&] { return question->answered; });
  return question->caller;
}

std::string line_json(int64_t number) {
  std::lock_guard<std::mutex> lock(lines().mutex);
  const auto& [file, line] = lines().lines.at(static_cast<size_t>(number));
  return "\"file\": " + quote_json(file) + ", \"line\": " + std::to_string(line);
}

void run_startup() {
  const std::string& code = settings().startup;
  if (code.empty()) return;
  open_profile();  // of the rest of the process: the report has what is counted anyway, with lines
  auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
  auto is_initialized = reinterpret_cast<int (*)()>(find("Py_IsInitialized"));
  auto ensure = reinterpret_cast<int (*)()>(find("PyGILState_Ensure"));
  auto release = reinterpret_cast<void (*)(int)>(find("PyGILState_Release"));
  auto run = reinterpret_cast<int (*)(const char*, void*)>(find("PyRun_SimpleStringFlags"));
  if (!is_initialized || !ensure || !release || !run || is_initialized() == 0) return;
  const int state = ensure();
  run(code.c_str(), nullptr);  // prints its error, should it have one; the program goes on
  release(state);
}

}  // namespace runtime
}  // namespace hostcann

using namespace hostcann;  // NOLINT: this file ends with C functions

/// Says who is asked for the lines.
CANN_API void hostcann_begin_program(void (*find)(unsigned long, Caller*), void* (*thread_state)(),
                                     int (*holds_lock)()) {
  // What was set before is kept: another thread may be calling it.
  current_program.store(new Program{find, thread_state, holds_lock});
}

/// The interpreter ends: what torch_npu does afterwards is not the program's.
CANN_API void hostcann_end_program() {
  current_program.store(nullptr);
  runtime::end_counting();
}

/// The number of a line of a file.
CANN_API int64_t hostcann_line(const char* file, int line) {
  Lines& all = lines();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto [found, is_new] =
      all.numbers.try_emplace({file, line}, static_cast<int64_t>(all.lines.size()));
  if (is_new) all.lines.push_back(found->first);
  return found->second;
}
