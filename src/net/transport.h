// Bytes over one connected socket that does not block: plain, or under TLS.
//
// OpenSSL stays behind this header. A transport borrows its descriptor and never
// waits: it says what to wait for.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::net {

enum class IoStatus : uint8_t {
  kDone,       // `bytes` went through
  kWantRead,   // nothing now; wait until readable
  kWantWrite,  // nothing now; wait until writable
  kEnded,      // the other side is gone
};

struct IoResult {
  IoStatus status = IoStatus::kDone;
  size_t bytes = 0;
};

// A certificate chain and its key, shared by the connections that use them.
class TlsContext {
 public:
  // PEM files. Errors name the file.
  static Result<std::shared_ptr<TlsContext>> load(const std::string& certificate_file,
                                                  const std::string& key_file);
  ~TlsContext();

 private:
  friend class Transport;
  struct State;
  explicit TlsContext(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Transport {
 public:
  // Plain without a context.
  Transport(int fd, const TlsContext* tls);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Until kDone or kEnded; at once done when plain.
  IoResult handshake();
  IoResult read(std::span<char> into);
  IoResult write(std::string_view bytes);
  // No more will be written; the other side sees an end.
  void finish_writing();

 private:
  struct Tls;
  int fd_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace galley::net
