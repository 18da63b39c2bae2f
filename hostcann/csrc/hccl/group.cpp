// How the ranks of a group find each other, and move bytes. A rank listens at an abstract Unix
// socket that bears the group's name and its number, connects to the ranks below it and is
// connected to by those above. When a rank dies, its sockets end, which the others see at once.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "hccl/groups.h"

namespace hostcann::hccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDefaultConnectSeconds = 120;
constexpr int kDefaultExecSeconds = 1836;

/// What a rank says first to another one.
struct Hello {
  int32_t ranks;
  int32_t rank;
};

/// Seconds from an environment variable of HCCL's.
std::chrono::seconds limit_from(const char* variable, int otherwise, int least) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::chrono::seconds(otherwise);
  char* end = nullptr;
  const long seconds = std::strtol(text, &end, 10);
  if (*end != '\0' || seconds < least || seconds > std::numeric_limits<int32_t>::max()) {
    throw GroupError(kParameter, std::string(variable) + " must be a number of seconds, at least " +
                                     std::to_string(least) + ", got '" + text + "'");
  }
  return std::chrono::seconds(seconds);
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

std::string seconds_text(std::chrono::seconds limit) {
  return std::to_string(limit.count()) + " s";
}

[[noreturn]] void fail_system_call(const char* call) {
  throw GroupError(kSystemCall, std::string(call) + ": " + std::strerror(errno));
}

/// The address of a rank; `size` becomes its length.
sockaddr_un address_of(const std::string& group, int rank, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "hostcann." + group + "." + std::to_string(rank);
  path.copy(address.sun_path + 1, sizeof address.sun_path - 2);  // begins with 0: in no file system
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
  return address;
}

int new_socket() {
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) fail_system_call("socket");
  return made;
}

/// What poll() may wait, in milliseconds.
int time_left(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, std::numeric_limits<int>::max()));
}

/// Waits until the descriptor can be read; false when the time is over first.
bool wait_readable(int descriptor, Clock::time_point end) {
  for (;;) {
    pollfd polled{descriptor, POLLIN, 0};
    const int ready = poll(&polled, 1, time_left(end));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) fail_system_call("poll");
  }
}

/// False where the other rank has closed the socket, or says nothing in time.
bool read_hello(int descriptor, Hello* hello, Clock::time_point end) {
  return wait_readable(descriptor, end) &&
         recv(descriptor, hello, sizeof *hello, MSG_WAITALL) == sizeof *hello;
}

bool say_hello(int descriptor, const Hello& hello) {
  return send(descriptor, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
}

struct Descriptor {
  explicit Descriptor(int number_) : number(number_) {}
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int release() { return std::exchange(number, -1); }
  int number;
};

}  // namespace

std::string new_group_name() {
  uint64_t random;
  if (getrandom(&random, sizeof random, 0) != sizeof random) fail_system_call("getrandom");
  return std::to_string(getpid()) + "." + std::to_string(random);
}

Group::Group(const std::string& name, int ranks, int rank)
    : name_(name), rank_(rank), sockets_(static_cast<size_t>(ranks), -1) {
  const Descriptor listener(new_socket());
  socklen_t size;
  const sockaddr_un address = address_of(name_, rank_, &size);
  if (bind(listener.number, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EADDRINUSE) fail_system_call("bind");
    throw GroupError(kParameter, rank_text(rank_) + " of this group exists already");
  }
  if (listen(listener.number, ranks) != 0) fail_system_call("listen");
  cancelled_ = eventfd(0, EFD_CLOEXEC);
  if (cancelled_ < 0) fail_system_call("eventfd");
  try {
    meet(listener.number);
  } catch (...) {
    close_all();
    throw;
  }
}

Group::~Group() { close_all(); }

void Group::meet(int listener) {
  const auto limit = limit_from("HCCL_CONNECT_TIMEOUT", kDefaultConnectSeconds, 1);
  const auto end = Clock::now() + limit;
  const auto check = [&](const Hello& other, int expected) {
    if (other.ranks != ranks()) {
      throw GroupError(kParameter, "nRanks must be the same on every rank, got " +
                                       std::to_string(ranks()) + " on " + rank_text(rank_) +
                                       " and " + std::to_string(other.ranks) + " on " +
                                       rank_text(expected));
    }
  };
  const auto miss = [&](int rank) {
    throw GroupError(kTimeout, rank_text(rank) + " did not come within " + seconds_text(limit) +
                                   " (HCCL_CONNECT_TIMEOUT). All ranks must be on this host, and "
                                   "call HcclCommInitRootInfo with the same root info.");
  };
  for (int other = 0; other < rank_; ++other) {
    socklen_t size;
    const sockaddr_un address = address_of(name_, other, &size);
    Descriptor connected(new_socket());
    while (connect(connected.number, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
      if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) fail_system_call("connect");
      if (Clock::now() >= end) miss(other);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    Hello hello{};
    if (!say_hello(connected.number, {ranks(), rank_}) ||
        !read_hello(connected.number, &hello, end))
      miss(other);
    check(hello, other);
    sockets_[static_cast<size_t>(other)] = connected.release();
  }
  for (int missing = ranks() - rank_ - 1; missing > 0; --missing) {
    const auto first_missing = [&] {
      int rank = rank_ + 1;
      while (sockets_[static_cast<size_t>(rank)] >= 0) ++rank;
      return rank;
    };
    if (!wait_readable(listener, end)) miss(first_missing());
    Descriptor accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted.number < 0) fail_system_call("accept");
    Hello hello{};
    if (!read_hello(accepted.number, &hello, end)) miss(first_missing());
    say_hello(accepted.number, {ranks(), rank_});  // also to one that does not fit: it says so too
    check(hello, hello.rank);
    sockets_[static_cast<size_t>(hello.rank)] = accepted.release();
  }
}

/// One direction of one socket.
struct Group::Transfer {
  int rank;
  bool is_out;
  std::vector<std::pair<std::byte*, size_t>> spans;
  size_t next = 0;

  /// Moves what can be moved now; false when the other rank is gone.
  bool advance(int socket) {
    for (; next < spans.size(); ++next) {
      auto& [data, size] = spans[next];
      while (size > 0) {
        const ssize_t moved = is_out ? send(socket, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                                     : recv(socket, data, size, MSG_DONTWAIT);
        if (moved > 0) {
          data += moved;
          size -= static_cast<size_t>(moved);
          continue;
        }
        if (moved < 0 && errno == EINTR) continue;
        return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      }
    }
    return true;
  }

  bool is_done() const { return next == spans.size(); }
};

void Group::transfer(std::vector<Transfer> transfers) {
  const auto limit = limit_from("HCCL_EXEC_TIMEOUT", kDefaultExecSeconds, 0);
  const bool is_limited = limit.count() > 0;
  constexpr int kForEver = -1;
  auto end = Clock::now() + limit;
  for (;;) {
    std::vector<pollfd> polled{{cancelled_, POLLIN, 0}};
    std::vector<Transfer*> waiting;
    for (Transfer& each : transfers) {
      if (!each.advance(sockets_[static_cast<size_t>(each.rank)]))
        fail(kRemote, rank_text(each.rank) + " has ended, or has given the group up");
      if (each.is_done()) continue;
      const auto what = static_cast<short>(each.is_out ? POLLOUT : POLLIN);
      polled.push_back({sockets_[static_cast<size_t>(each.rank)], what, 0});
      waiting.push_back(&each);
    }
    if (waiting.empty()) return;
    const int ready = poll(polled.data(), polled.size(), is_limited ? time_left(end) : kForEver);
    if (ready < 0 && errno != EINTR)
      fail(kSystemCall, std::string("poll: ") + std::strerror(errno));
    if (polled[0].revents != 0) {
      std::lock_guard<std::mutex> lock(reason_mutex_);
      fail(kRuntime, reason_);
    }
    if (ready == 0) {
      fail(kTimeout, rank_text(waiting.front()->rank) + " did not take part within " +
                         seconds_text(limit) + " (HCCL_EXEC_TIMEOUT)");
    }
    if (ready > 0) end = Clock::now() + limit;
  }
}

void Group::check_same(const Signature& mine, const Signature& other, int rank) const {
  if (std::memcmp(&mine, &other, sizeof mine) == 0) return;
  const auto text = [](const Signature& each) {
    return std::string(each.operation) + " of " + std::to_string(each.count) + " " +
           name_of_type(each.data_type) + ", reduction " + std::to_string(each.reduction) +
           ", root " + std::to_string(each.root);
  };
  const std::string message = "ranks must call the same collective with the same arguments, got " +
                              text(mine) + " on " + rank_text(rank_) + " and " + text(other) +
                              " on " + rank_text(rank);
  report_violation(Violation::kCollectiveMismatch, message);
  throw GroupError(kParameter, message);
}

void Group::exchange(const Signature& signature, const std::vector<Link>& links) {
  struct Header {
    Signature signature;
    uint64_t bytes;
  };
  std::lock_guard<std::mutex> lock(exchange_mutex_);
  if (error_.load() != 0) throw TaskError(kDeviceTaskFailed, "the group has failed before");
  const auto bytes_of = [](const auto& spans) {
    uint64_t bytes = 0;
    for (const auto& span : spans) bytes += span.size();
    return bytes;
  };

  // First what is to come, so that ranks that differ say so instead of waiting for each other.
  std::vector<Header> sent(links.size());
  std::vector<Header> received(links.size());
  std::vector<Transfer> headers;
  std::vector<Transfer> data;
  for (size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    if (link.sends) {
      sent[i] = {signature, bytes_of(link.out)};
      headers.push_back(
          {link.rank, true, {{reinterpret_cast<std::byte*>(&sent[i]), sizeof(Header)}}});
      Transfer& out = data.emplace_back(Transfer{link.rank, true, {}});
      for (const auto& span : link.out)
        out.spans.emplace_back(const_cast<std::byte*>(span.data()), span.size());
    }
    if (link.receives) {
      headers.push_back(
          {link.rank, false, {{reinterpret_cast<std::byte*>(&received[i]), sizeof(Header)}}});
      Transfer& in = data.emplace_back(Transfer{link.rank, false, {}});
      for (const auto& span : link.in) in.spans.emplace_back(span.data(), span.size());
    }
  }
  transfer(std::move(headers));
  try {
    for (size_t i = 0; i < links.size(); ++i) {
      if (!links[i].receives) continue;
      check_same(signature, received[i].signature, links[i].rank);
      const uint64_t expected = bytes_of(links[i].in);
      if (received[i].bytes == expected) continue;
      const std::string message = std::string(signature.operation) + ": " + rank_text(rank_) +
                                  " must receive what " + rank_text(links[i].rank) +
                                  " sends it, got room for " + std::to_string(expected) +
                                  " bytes and " + std::to_string(received[i].bytes) + " sent";
      report_violation(Violation::kCollectiveMismatch, message);
      throw GroupError(kParameter, message);
    }
  } catch (const GroupError& error) {
    fail(error.result, error.what());
  }
  transfer(std::move(data));
}

void Group::cancel(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(reason_mutex_);
    reason_ = reason;
  }
  const uint64_t one = 1;
  if (write(cancelled_, &one, sizeof one) < 0) return;  // it is cancelled already, or is a fork's
}

void Group::fail(int result, const std::string& message) {
  error_.store(result);
  close_sockets();
  throw TaskError(kDeviceTaskFailed, message);
}

void Group::close_all() {
  close_sockets();
  if (cancelled_ >= 0) close(std::exchange(cancelled_, -1));
}

void Group::close_sockets() {
  for (int& socket : sockets_) {
    if (socket >= 0) close(socket);
    socket = -1;
  }
}

}  // namespace hostcann::hccl
